"""A sorted set of disjoint byte ranges, for the overlap check of chunks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class RangeSet:
    """Half-open ranges that never overlap; neighbours that touch become one range."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """Number of disjoint ranges."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges (start, end) in ascending order."""
        return zip(self._starts, self._ends, strict=True)

    def overlap(self, start: int, end: int) -> tuple[int, int] | None:
        """The part of [start, end) that the lowest range already holds, or None."""
        at = bisect_right(self._starts, start)
        if at and self._ends[at - 1] > start:
            return start, min(end, self._ends[at - 1])
        if at < len(self._starts) and self._starts[at] < end:
            return self._starts[at], min(end, self._ends[at])
        return None

    def growth(self, start: int, end: int) -> int:
        """How many ranges more there would be with [start, end): 1, 0 when it touches one, -1 when two."""
        at = bisect_right(self._starts, start)
        touches_left = at > 0 and self._ends[at - 1] == start
        touches_right = at < len(self._starts) and self._starts[at] == end
        return 1 - touches_left - touches_right

    def add(self, start: int, end: int) -> None:
        """Add [start, end), which must not overlap what is held."""
        at = bisect_right(self._starts, start)
        touches_left = at > 0 and self._ends[at - 1] == start
        touches_right = at < len(self._starts) and self._starts[at] == end
        if touches_left and touches_right:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]
        elif touches_left:
            self._ends[at - 1] = end
        elif touches_right:
            self._starts[at] = start
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)
