"""Where the memory of a large payload comes from: the caller of a reader or a merge may say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["SLACK", "SMALLEST", "Allocate", "Block", "fresh", "lend"]

Block = npt.NDArray[np.uint8]

SMALLEST: Final = 1 << 20  # bytes; the allocator of the C library keeps smaller blocks by itself
SLACK: Final = 8  # a lent block serves a buffer that is smaller by up to an eighth


class Allocate(Protocol):
    """Gives a writable buffer of `size` bytes with any contents, aligned for f32.

    Raises MemoryError, or ValueError for a size that no address can count.
    """

    def __call__(self, size: int, /) -> memoryview: ...


def fresh(size: int, /) -> memoryview:
    """Memory from the operating system, which commits it when it is first written to."""
    return np.empty(size, np.uint8).data


def lend(block: Block, size: int, give_back: Callable[[Block], object]) -> memoryview:
    """The first `size` bytes of a block. `give_back` gets it when the last view of them is gone, which may be
    on any thread and at any moment, so it must take no lock.
    """
    return np.asarray(_Loan(block, size, give_back)).data


class _Loan:
    """Holds a block for the arrays that look into it, and gives it back when they are gone."""

    __slots__ = ("__array_interface__", "_block", "_give_back")

    def __init__(self, block: Block, size: int, give_back: Callable[[Block], object]) -> None:
        self._block = block
        self._give_back = give_back
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (block.__array_interface__["data"][0], False),
        }

    def __del__(self) -> None:
        self._give_back(self._block)
