"""How much memory the large HELLOs of sockets in handshake may take together. No sockets in here.

A HELLO may be 16 MiB long, and hundreds of strangers may each send one. So the first frame of a socket that
is longer than SMALL waits, unread, until its bytes fit into the budget. Its handshake deadline goes on
meanwhile (D6), so nobody waits for ever, and whoever holds memory gives it back in time.
"""

from __future__ import annotations

from yeto_proto._generated.constants import HELLO_MAX

SMALL = 1 << 16
"""First frames up to this many bytes do not count: all that may be in handshake make 16 MiB."""

BUDGET = 4 * HELLO_MAX
"""Bytes of all larger ones."""

MODERATE = 1 << 20
"""A layout of tens of thousands of tensors. Longer ones may not take the last quarter of the budget, so that
a few strangers with the longest HELLOs there are cannot keep out everybody who brings a real one."""


class Greetings:
    """Who holds how many bytes, and who waits for some, in the order in which they asked."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._held: dict[int, int] = {}
        self._waiting: dict[int, int] = {}

    @property
    def held(self) -> int:
        """Bytes that are given out."""
        return sum(self._held.values())

    def ask(self, conn: int, size: int) -> bool:
        """Whether socket `conn` may receive a first frame of `size` bytes now; if not, it waits."""
        if size <= SMALL:
            return True
        if self._fits(size) and not any(self._class(other) == self._class(size) for other in self._queue()):
            self._held[conn] = size
            return True
        self._waiting[conn] = size
        return False

    def leave(self, conn: int) -> list[int]:
        """The socket has left its handshake, or is gone; returns those that may receive now."""
        self._waiting.pop(conn, None)
        if self._held.pop(conn, None) is None:
            return []
        granted = []
        blocked: set[bool] = set()
        for other, size in list(self._waiting.items()):
            if self._class(size) in blocked:
                continue
            if not self._fits(size):
                blocked.add(self._class(size))  # those behind it that ask for less must not overtake for ever
                continue
            del self._waiting[other]
            self._held[other] = size
            granted.append(other)
        return granted

    def _queue(self) -> list[int]:
        return list(self._waiting.values())

    @staticmethod
    def _class(size: int) -> bool:
        return size > MODERATE

    def _fits(self, size: int) -> bool:
        limit = self._budget * 3 // 4 if self._class(size) else self._budget
        return self.held + size <= limit
