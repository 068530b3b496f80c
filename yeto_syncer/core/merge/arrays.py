"""What every formula shares: how arguments become flat f32 arrays, and the one order in which products are summed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from yeto_proto._generated.constants import REDUCTION_BLOCK
from yeto_proto._generated.errors import BadArgument

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


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


def blocks(numel: int) -> Iterator[tuple[int, int]]:
    """The reduction blocks of a tensor of `numel` elements, as (start, stop) from the tensor's start."""
    for start in range(0, numel, REDUCTION_BLOCK):
        yield start, min(start + REDUCTION_BLOCK, numel)


def product_sum(left: F64, right: F64, product: F64) -> float:
    """sum(left * right) of one block; `product` is scratch of the same length and may be either operand."""
    np.multiply(left, right, out=product)
    return float(np.add.reduce(product))


def dot(left: F32, right: F32) -> float:
    """sum(left * right) of two flat tensors: exact f64 products, one f64 sum per block, block sums added in order (D30)."""
    total = 0.0
    for start, stop in blocks(left.size):
        x = left[start:stop].astype(np.float64)
        y = x if right is left else right[start:stop].astype(np.float64)
        total += product_sum(x, y, np.empty_like(x))
    return total


def norm(tensor: F32) -> float:
    """|tensor| in f64 (D30)."""
    return math.sqrt(dot(tensor, tensor))


def norm64(tensor: F64) -> float:
    """|tensor| of f64 values, in the same blocks."""
    total = 0.0
    for start, stop in blocks(tensor.size):
        x = tensor[start:stop]
        total += product_sum(x, x, np.empty_like(x))
    return math.sqrt(total)
