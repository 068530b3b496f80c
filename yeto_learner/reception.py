"""The memory that broadcasts are received into: one block, used again, and never kept beside another one.

Memory that comes fresh from the operating system is cleared page by page on its first touch, so a learner
that receives one fragment now and then gets the same memory for it each time.  But it may hold only one
fragment beside its anchors.  While one is installed the first chunks of the next have to go elsewhere: to
fresh memory, which takes room only as it is filled, and not to a used block, which takes all of it at once.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import numpy as np

from yeto_proto.memory import SLACK, SMALLEST, Block, fresh, lend

__all__ = ["ReceptionMemory"]


class ReceptionMemory:
    """Lends buffers; the last one to come back is kept, while nothing else is lent.

    A buffer goes back by itself when the last array or memoryview that looks into it is gone.  That may
    happen on any thread and at any moment, so nothing here takes a lock: each step is atomic, and the order
    of the steps keeps a block from lying idle beside one that is lent.
    """

    def __init__(self) -> None:
        self._lent: set[object] = set()
        self._idle: deque[Block] = deque(maxlen=1)

    def take(self, size: int, /) -> memoryview:
        """A writable buffer of `size` bytes with any contents; as `yeto_proto.memory.Allocate`."""
        if size < SMALLEST:
            return fresh(size)
        key = object()
        self._lent.add(key)  # before looking: what comes back from now on is not kept
        block = self._pop()
        if block is None or not size <= block.size <= size + size // SLACK:
            del block  # before the new one is filled
            try:
                block = np.empty(size, np.uint8)
            except (MemoryError, ValueError):
                self._lent.discard(key)
                raise
        return lend(block, size, partial(self.give, key))

    def give(self, key: object, block: Block) -> None:
        """A loan ends."""
        self._lent.discard(key)
        if not self._lent:
            self._idle.append(block)
            if self._lent:  # taken in between, and perhaps before there was anything to find
                self._pop()

    def _pop(self) -> Block | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    @property
    def idle(self) -> int:
        """Bytes of the block that waits to be lent again."""
        return sum(block.size for block in tuple(self._idle))
