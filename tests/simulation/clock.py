"""Virtual time: one heap of actions, played in the order of their times and then of their planning."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], object]


class Clock:
    """The only clock of a simulated world."""

    __slots__ = ("_heap", "_order", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = 0

    def at(self, time: float, action: Action) -> None:
        """Do something at a time; at once when that has passed."""
        self._order += 1
        heapq.heappush(self._heap, (time, self._order, action))

    def after(self, delay: float, action: Action) -> None:
        """Do something after some seconds."""
        self._order += 1
        heapq.heappush(self._heap, (self.now + delay, self._order, action))

    def play(self, over: Callable[[], bool], horizon: float) -> bool:
        """Play until `over()`; False when that has not come by the horizon."""
        heap = self._heap
        while not over():
            if not heap or heap[0][0] > horizon:
                return False
            time, _, action = heapq.heappop(heap)
            self.now = max(self.now, time)
            action()
        return True
