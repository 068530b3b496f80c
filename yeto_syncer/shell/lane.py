"""Events of one connection group, in the order in which its bytes came, while some are being checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from yeto_syncer.core.events import Event


class Lane:
    """A line of events. One that still has to be checked holds back those behind it, also a disconnect."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        self._post = post
        self._line: deque[list[Event]] = deque()

    def __len__(self) -> int:
        """Events that wait."""
        return len(self._line)

    def overtake(self, event: Event) -> None:
        """An event that may come before those that wait; posted at once."""
        self._post(event)

    def put(self, event: Event) -> None:
        """An event that is ready; posted at once when nothing stands before it."""
        if self._line:
            self._line.append([event])
        else:
            self._post(event)

    def reserve(self) -> Callable[[Event], None]:
        """Keep a place for an event that is being checked; call the result with the event."""
        place: list[Event] = []
        self._line.append(place)

        def fill(event: Event) -> None:
            place.append(event)
            while self._line and self._line[0]:
                self._post(self._line.popleft()[0])

        return fill
