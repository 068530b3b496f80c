"""Weights, weighted mean (avg) and weighted radial-directional averaging (RDA) of one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from yeto_proto._generated.constants import RDA_MIN_DIRECTION
from yeto_proto._generated.errors import BadArgument
from yeto_syncer.core.merge.arrays import F32, Coefficient, coefficient, flat, in_order, norm, same_shape


def weight(c_tokens: int, c_steps: int) -> float:
    """w_m = c_tokens^2 / c_steps in f64, both counters rounded to f64 first; 0.0 when c_steps is 0.

    Source: protocol text, "Learner weight"; arXiv 2604.21428. A push with c_steps 0 never gets this far
    (D12); c_tokens 0 is legal and weighs nothing.
    """
    tokens, steps = float(c_tokens), float(c_steps)
    return tokens * tokens / steps if steps else 0.0


def total_weight(weights: Sequence[float]) -> float:
    """W = sum of w_m in learner order, in f64."""
    return in_order(weights)


def shares(weights: Sequence[float], total: float) -> list[np.float32]:
    """The coefficients of avg: w_m / W in f64, each rounded to f32."""
    return [np.float32(one / total) for one in weights]


def radial_mean(norms: Sequence[float], weights: Sequence[float], total: float) -> float:
    """r = (sum of n_m w_m) / W in f64, in learner order. A zero gradient counts with n = 0: it shrinks r."""
    return in_order(length * one for length, one in zip(norms, weights, strict=True)) / total


def directions(norms: Sequence[float], weights: Sequence[float], total: float) -> list[Coefficient]:
    """The coefficients of RDA's direction sum: (w_m / W) / n_m in f64, rounded to f32; None for n_m = 0.

    One that overflows f32 stays in f64 (see `coefficient`).
    """
    pairs = zip(norms, weights, strict=True)
    return [None if length == 0.0 else coefficient(one / total / length) for length, one in pairs]


def _accumulate(tensors: Sequence[F32], coefficients: Sequence[Coefficient]) -> F32:
    """sum of coefficient_m * tensor_m in f32, from zeros, in order; every product and sum is rounded."""
    total, term = np.zeros_like(tensors[0]), np.empty_like(tensors[0])
    for tensor, factor in zip(tensors, coefficients, strict=True):
        if factor is not None:
            np.multiply(tensor, factor, out=term)
            total += term
    return total


def _arguments(gradients: Sequence[F32], weights: Sequence[float]) -> list[F32]:
    if not gradients or len(gradients) != len(weights):
        raise BadArgument(
            detail=f"{len(gradients)} gradients need as many weights, not {len(weights)}; at least one"
        )
    if not all(math.isfinite(one) and one >= 0.0 for one in weights):
        raise BadArgument(detail=f"weights must be finite and not negative: {list(weights)}")
    same_shape(gradients, "gradients")
    return [flat(gradient, "gradient") for gradient in gradients]


def avg(gradients: Sequence[F32], weights: Sequence[float]) -> F32:
    """delta = sum of (w_m / W) delta_m, with W = sum of w_m.

    `gradients`: one tensor's outer gradients, f32 arrays of one shape, in ascending (learner id, generation);
    `weights`: f64 numbers as many. Gives a new f32 array of that shape; zeros when W is 0 (D12). w_m / W is
    formed in f64 and rounded to f32; then each product and each sum is rounded to f32, from zeros, in order,
    so the order is part of the result. Source: protocol text, "Avg computes the weighted mean of signed outer
    gradients". Raises BadArgument for other dtypes, shapes that differ, or weights that are negative or not
    finite.
    """
    tensors = _arguments(gradients, weights)
    total = total_weight(weights)
    if total <= 0.0:
        return np.zeros(gradients[0].shape, np.float32)
    with np.errstate(all="ignore"):  # an overflow shows as inf in the result, which `run` refuses
        return _accumulate(tensors, shares(weights, total)).reshape(gradients[0].shape)


def rda(gradients: Sequence[F32], weights: Sequence[float]) -> F32:
    """delta = r u / |u| with r = (sum of w_m |delta_m|) / W and u = sum of (w_m / W) delta_m / |delta_m|.

    The length is the weighted mean of the lengths, the direction the weighted mean of the directions, so
    gradients that disagree do not shrink. Arguments, result and errors as in `avg`; over ONE tensor, never
    over a joined fragment. |delta_m|, r and |u| in f64 (D30); (w_m / W) / |delta_m| is rounded to f32 and u
    accumulated in f32; where that quotient overflows f32 (|delta_m| below about 2^-128 W / w_m) it stays in
    f64, and each of its products is rounded to f32. A learner with |delta_m| exactly 0 adds nothing to u, but
    counts in r. When |u| <
    1e-12 there is no direction and the result is `avg`. Otherwise each element is multiplied in f32 by r /
    |u| rounded to f32. Source: protocol text, "RDA computes weighted radial/directional averaging per
    tensor"; arXiv 2604.21428.
    """
    tensors = _arguments(gradients, weights)
    shape = gradients[0].shape
    total = total_weight(weights)
    if total <= 0.0:
        return np.zeros(shape, np.float32)
    with np.errstate(all="ignore"):
        norms = [norm(tensor) for tensor in tensors]
        merged = _accumulate(tensors, directions(norms, weights, total))
        length = norm(merged)
        if length < RDA_MIN_DIRECTION:
            return avg(gradients, weights)
        return (merged * np.float32(radial_mean(norms, weights, total) / length)).reshape(shape)
