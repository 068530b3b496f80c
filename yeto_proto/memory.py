"""Where the memory of a large payload comes from: the caller of a reader or a merge may say."""

from __future__ import annotations

from typing import Protocol

import numpy as np

__all__ = ["Allocate", "fresh"]


class Allocate(Protocol):
    """Gives a writable buffer of `size` bytes with any contents, aligned for f32.

    Raises MemoryError, or ValueError for a size that no address can count.
    """

    def __call__(self, size: int, /) -> memoryview: ...


def fresh(size: int, /) -> memoryview:
    """Memory from the operating system, which commits it when it is first written to."""
    return np.empty(size, np.uint8).data
