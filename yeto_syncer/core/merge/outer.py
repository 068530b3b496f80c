"""The outer optimizer: Nesterov momentum in f32."""

from __future__ import annotations

import numpy as np

from yeto_syncer.core.merge.arrays import F32, flat, same_shape


def nesterov(params: F32, momentum: F32, delta: F32, lr: float, mu: float) -> tuple[F32, F32]:
    """buf <- mu buf + delta;  theta <- theta - lr (delta + mu buf), with the new buf in the second line.

    `params` (theta), `momentum` (buf, zeros before the first step) and `delta` (the merged outer gradient):
    f32 arrays of one shape. lr and mu are rounded to f32; every operation is rounded to f32 on its own. No
    decay, dampening, clipping or division by steps. A zero delta still lets buf decay and moves theta. Gives
    new arrays (params, momentum). Source: protocol text, "The outer step is f32 Nesterov". Raises BadArgument
    for other dtypes or shapes that differ.
    """
    same_shape((params, momentum, delta), "params, momentum and delta")
    p, b, d = flat(params, "params"), flat(momentum, "momentum"), flat(delta, "delta")
    out = np.empty_like(p), np.empty_like(b)
    with np.errstate(all="ignore"):  # an overflow shows as inf in the result
        step(p, b, d, np.float32(lr), np.float32(mu), out, np.empty_like(d))
    return out[0].reshape(params.shape), out[1].reshape(params.shape)


def step(
    params: F32,
    momentum: F32,
    delta: F32,
    rate: np.float32,
    decay: np.float32,
    out: tuple[F32, F32],
    scratch: F32,
) -> None:
    """The step on flat arrays, into `out` = (params, momentum), without a temporary."""
    new_params, new_momentum = out
    np.multiply(momentum, decay, out=scratch)
    np.add(scratch, delta, out=new_momentum)
    np.multiply(new_momentum, decay, out=scratch)
    np.add(delta, scratch, out=scratch)
    np.multiply(scratch, rate, out=scratch)
    np.subtract(params, scratch, out=new_params)
