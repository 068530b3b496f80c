"""Memory for large buffers, used again as soon as nobody holds it any more.

Memory that comes fresh from the operating system has to be cleared page by page on its first touch, which
costs as much as all the arithmetic of a merge, and far more in a virtual machine whose host hands out memory
late.  A round needs the same few sizes as the round before, so a `BufferPool` keeps what the last round gave
up.

A buffer goes back by itself when the last array or memoryview that looks into it is gone; nobody can give it
back too early.  So a background checkpoint or an unsent broadcast that still holds an old version keeps it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from .memory import SLACK, SMALLEST, Block, fresh, lend

__all__ = ["BufferPool"]

STEPS: Final = 16  # size classes between a power of two and the next
HEADROOM: Final = 1 << 16  # so that a payload behind its header is of the same class as its values alone


class BufferPool:
    """Lends buffers, and lends them again.

    What is lent and what lies idle together never exceed the most that was ever lent at one time: a program
    with a pool has the peak memory of the same program without one.  All methods are for any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Filled by whoever drops the last view, at any moment, perhaps inside `take`: so without the lock.
        self._returned: deque[Block] = deque()
        self._idle: list[Block] = []  # the one that came back last stands last
        self._idle_bytes = 0
        self._lent_bytes = 0
        self._peak_bytes = 0

    def take(self, size: int, /) -> memoryview:
        """A writable buffer of `size` bytes with any contents; as `memory.Allocate`."""
        if size < SMALLEST:
            return fresh(size)
        wanted = _rounded(size)
        with self._lock:
            self._collect()
            block = self._find(wanted)
            if block is None:
                block = np.empty(wanted, np.uint8)
            self._lent_bytes += block.size
            self._peak_bytes = max(self._peak_bytes, self._lent_bytes)
            dropped = self._trim()
        del dropped  # giving memory back to the operating system takes time: not under the lock
        return lend(block, size, self._returned.append)

    def empty(self, numel: int, /) -> npt.NDArray[np.float32]:
        """An f32 array of `numel` values with any contents."""
        return np.frombuffer(self.take(4 * numel), np.float32)

    @property
    def lent(self) -> int:
        """Bytes of the buffers that somebody holds, rounded up to their size classes."""
        with self._lock:
            self._collect()
            return self._lent_bytes

    @property
    def idle(self) -> int:
        """Bytes of the buffers that wait to be lent again."""
        with self._lock:
            self._collect()
            return self._idle_bytes

    @property
    def peak(self) -> int:
        """The most that was lent at one time."""
        with self._lock:
            return self._peak_bytes

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._idle.append(block)
            self._idle_bytes += block.size
            self._lent_bytes -= block.size

    def _find(self, wanted: int) -> Block | None:
        for index in range(len(self._idle) - 1, -1, -1):
            if wanted <= self._idle[index].size <= wanted + wanted // SLACK:
                block = self._idle.pop(index)
                self._idle_bytes -= block.size
                return block
        return None

    def _trim(self) -> list[Block]:
        """Take out the blocks that came back first until the bound holds."""
        count = 0
        while self._lent_bytes + self._idle_bytes > self._peak_bytes:
            self._idle_bytes -= self._idle[count].size
            count += 1
        dropped, self._idle = self._idle[:count], self._idle[count:]
        return dropped


def _rounded(size: int) -> int:
    """The size class: fragments that differ by a few values share their blocks.  The unused end of a block is
    never touched, so it takes no memory."""
    size += HEADROOM
    step = 1 << max((size - 1).bit_length() - STEPS.bit_length(), 0)
    return -(-size // step) * step
