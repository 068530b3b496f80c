"""The island lease: a learner that is not heard for the lease time loses its connection group (D37)."""

from __future__ import annotations

from collections import OrderedDict

from yeto_syncer.core.jobs import Link


class Leases:
    """Last sign of life of each group. All leases are equally long, so the oldest one stands first."""

    __slots__ = ("_heard", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._heard: OrderedDict[Link, float] = OrderedDict()

    def heard(self, link: Link, now: float) -> None:
        """Any message renews the lease."""
        if self._seconds > 0:
            self._heard[link] = now
            self._heard.move_to_end(link)

    def forget(self, link: Link) -> None:
        self._heard.pop(link, None)

    def next_deadline(self) -> float | None:
        for last in self._heard.values():
            return last + self._seconds
        return None

    def expired(self, now: float) -> list[Link]:
        """Groups whose lease is over, the longest silent first. They stay until they are forgotten."""
        over = []
        for link, last in self._heard.items():
            if now < last + self._seconds:
                break
            over.append(link)
        return over
