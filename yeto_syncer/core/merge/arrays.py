"""What every formula shares: flat f32 arguments, and the one order in which products are summed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from yeto_proto._generated.constants import REDUCTION_BLOCK
from yeto_proto._generated.errors import BadArgument

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

# What a gradient is multiplied with in a sum of gradients; one that is None adds nothing.
Coefficient: TypeAlias = np.float32 | np.float64 | None


def coefficient(exact: float) -> np.float32 | np.float64:
    """`exact` rounded to f32, and in f64 where it is finite but too large for f32.

    That happens to directions: 1 / |delta| overflows f32 for |delta| below 2^-128, though no element of
    delta / |delta| is longer than 1. numpy then multiplies in f64 and rounds each product to f32 once.
    """
    with np.errstate(over="ignore"):
        rounded = np.float32(exact)
    return np.float64(exact) if np.isinf(rounded) and math.isfinite(exact) else rounded


def flat(array: F32, name: str) -> F32:
    """`array` as a contiguous 1-D f32 array in row-major order (a view where possible, never written to).

    Raises `BadArgument` for another dtype: a silent conversion would round before the formula does.
    """
    if array.dtype != np.float32:
        raise BadArgument(detail=f"{name} must be float32, not {array.dtype}")
    return np.ascontiguousarray(array).reshape(-1)


def same_shape(arrays: Sequence[F32], names: str) -> None:
    """Raises `BadArgument` unless all arrays have one shape (nothing is broadcast)."""
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise BadArgument(detail=f"{names} must have one shape, not {sorted(shapes)}")


def product_sums(left: F64, right: F64, product: F64) -> list[float]:
    """sum(left * right) of each reduction block, for operands that begin where a block begins.

    `product` is scratch of the same length; it may be one of the operands.
    """
    np.multiply(left, right, out=product)
    return sums_of_blocks(product)


def sums_of_blocks(product: F64) -> list[float]:
    """The sum of each reduction block of numbers that begin where a block begins."""
    whole = product.size - product.size % REDUCTION_BLOCK
    # Along a contiguous axis numpy sums every row just as it sums a 1-D array.
    sums: list[float] = np.add.reduce(product[:whole].reshape(-1, REDUCTION_BLOCK), axis=1).tolist()
    if whole < product.size:
        sums.append(float(np.add.reduce(product[whole:])))
    return sums


def in_order(sums: Iterable[float]) -> float:
    """The sum, rounded at each addition. (Python's own `sum` compensates from 3.12 on: another result.)"""
    total = 0.0
    for one in sums:
        total += one
    return total


def dot(left: F32 | F64, right: F32 | F64) -> float:
    """sum(left * right) of two flat tensors in f64: block sums added in order (D30)."""
    x, y = left.astype(np.float64), right.astype(np.float64)
    return in_order(product_sums(x, y, x))


def norm(tensor: F32 | F64) -> float:
    """|tensor| in f64 (D30)."""
    return math.sqrt(dot(tensor, tensor))
