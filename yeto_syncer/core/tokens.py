"""Names for deliveries, so that the shell can tell when one of them has left."""

from __future__ import annotations


class Tokens:
    """Ascending numbers, never given twice in one process."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last
