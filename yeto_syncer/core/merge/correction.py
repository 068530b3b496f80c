"""HeLoCo, the directional correction of one learner's gradient against the fragment's momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from yeto_proto._generated.constants import (
    HELOCO_BETA_MAX,
    HELOCO_C_OK,
    HELOCO_EPS,
    HELOCO_K_D,
    HELOCO_K_S,
    HELOCO_KAPPA,
)
from yeto_syncer.core.merge.arrays import F32, F64, dot, flat, norm, same_shape


@dataclass(frozen=True, slots=True)
class Opposed:
    """c < 0: add `pull` times the momentum, in f32."""

    pull: np.float32


@dataclass(frozen=True, slots=True)
class Oblique:
    """0 <= c < c_ok: `own` times the gradient plus `pull` times the momentum, in f64, back to `length`."""

    own: float
    pull: float
    length: float

    def stretch(self, blended: float) -> np.float32:
        """What brings a blend of length `blended` (of its f64 values) back to the gradient's length."""
        return np.float32(self.length / max(blended, HELOCO_EPS))


Correction: TypeAlias = Opposed | Oblique | None


def judge(gradient_norm: float, momentum_norm: float, product: float) -> Correction:
    """What HeLoCo does to a gradient, from |d|, |m| and d.m alone. None leaves it as it is."""
    if gradient_norm < HELOCO_EPS or momentum_norm < HELOCO_EPS:
        return None
    cosine = product / (gradient_norm * momentum_norm)
    if cosine >= HELOCO_C_OK:
        return None
    confidence = gradient_norm / (gradient_norm + HELOCO_KAPPA * momentum_norm + HELOCO_EPS)
    if cosine < 0.0:
        beta = min(HELOCO_K_S * -cosine * confidence, HELOCO_BETA_MAX)
        return Opposed(np.float32(-beta * cosine * gradient_norm / momentum_norm))
    turn = min(HELOCO_K_D * (1.0 - cosine) * confidence, 1.0)
    return Oblique((1.0 - turn) / gradient_norm, turn / momentum_norm, gradient_norm)


def oppose(gradient: F32, momentum: F32, pull: np.float32, out: F32) -> F32:
    """out = gradient + pull * momentum, two f32 roundings."""
    np.multiply(momentum, pull, out=out)
    return np.add(gradient, out, out=out)


def blend(gradient: F64, momentum: F64, own: float, pull: float, scratch: F64, out: F64) -> F64:
    """out = own * gradient + pull * momentum in f64; `out` may be `gradient`."""
    np.multiply(momentum, pull, out=scratch)
    np.multiply(gradient, own, out=out)
    return np.add(out, scratch, out=out)


def heloco(gradient: F32, momentum: F32) -> F32:
    """The corrected gradient d' for gradient d and momentum m, with c = d.m / (|d| |m|) and
    conf = |d| / (|d| + kappa |m| + eps):

        |d| < eps, |m| < eps or c >= c_ok:   d' = d
        c < 0:           d' = d + (-beta c |d| / |m|) m      with beta = min(k_s (-c) conf, beta_max)
        0 <= c < c_ok:   d' = |d| x / |x|,   x = (1 - lambda) d / |d| + lambda m / |m|
                                                             with lambda = min(k_d (1 - c) conf, 1)

    c_ok 0.2, k_s 0.5, k_d 1, beta_max 0.5, kappa 3, eps 1e-8. Opposition is damped, never turned round; a
    weak agreement is turned towards the momentum without a change of length. `gradient` and `momentum`: f32
    arrays of one shape, one tensor, the momentum before this commit; gives a new f32 array. Norms, dot and x
    in f64, the coefficient of m and |d| / |x| rounded to f32. Applied to each learner before avg, RDA or iso.
    Source: protocol text, "directional correction ... against the fragment momentum"; arXiv 2606.00271
    (HeLoCo). Raises BadArgument for other dtypes or two shapes.
    """
    same_shape((gradient, momentum), "gradient and momentum")
    d, m = flat(gradient, "gradient"), flat(momentum, "momentum")
    with np.errstate(all="ignore"):
        what = judge(norm(d), norm(m), dot(d, m))
        if what is None:
            return gradient.copy()
        if isinstance(what, Opposed):
            return oppose(d, m, what.pull, np.empty_like(d)).reshape(gradient.shape)
        x = d.astype(np.float64)
        blend(x, m.astype(np.float64), what.own, what.pull, np.empty_like(x), x)
        return (x.astype(np.float32) * what.stretch(norm(x))).reshape(gradient.shape)
