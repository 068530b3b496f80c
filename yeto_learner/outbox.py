"""The send queue of one socket, bounded in bytes and frames, and the fate of messages that are spread over
several.

Nothing queues without bound: `put` waits for room, which is the back-pressure that a blocking push feels.
When the connection goes, what is queued is dropped and every `Ticket` of it learns so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from yeto_proto._generated.messages import Buffer
from yeto_proto.writer import size

__all__ = ["Outbox", "Ticket"]

MAX_FRAMES: Final = 256
MAX_FIRST: Final = 64  # frames that were offered
MAX_BYTES: Final = 16 * 1024 * 1024  # not of the wire; a frame above it still fits an empty queue


class Ticket:
    """Follows one message through the queues: settled once all its frames were written, or one was dropped.

    `settled` is called exactly once, on whichever thread ends it, with True when everything was written.
    """

    def __init__(self, settled: Callable[[bool], None]) -> None:
        self._lock = threading.Lock()
        self._settled: Callable[[bool], None] | None = settled
        self._open = 1  # the frames that are not written, and one for the sender that may add more

    def add(self) -> None:
        """One more frame of the message goes into a queue."""
        with self._lock:
            self._open += 1

    def written(self) -> None:
        """A frame was written, or the sender added its last one."""
        self._end(True)

    def lost(self) -> None:
        """A frame was dropped, or the sender gave up: the message will not arrive."""
        self._end(False)

    def _end(self, delivered: bool) -> None:
        with self._lock:
            self._open -= 1
            if (delivered and self._open) or self._settled is None:
                return
            settled, self._settled = self._settled, None
        settled(delivered)


class Item(NamedTuple):
    """One frame that waits: its buffers, their bytes, and the message that it is a part of, if one asks."""

    buffers: list[Buffer]
    size: int
    ticket: Ticket | None


class Outbox:
    """Frames that wait to be written to one socket, in order; small ones that were offered go first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._first: deque[list[Buffer]] = deque()
        self._bytes = 0
        self._writing = False
        self._closed = False

    def put(
        self, buffers: list[Buffer], ticket: Ticket | None = None, *, deadline: float | None = None
    ) -> bool:
        """Queue one frame, waiting for room until `deadline` (monotonic seconds; None: for ever).

        False when the queue is closed.  Raises TimeoutError when there is no room by the deadline.
        """
        total = size(buffers)
        with self._changed:
            while not self._closed and not self._has_room(total):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError("the peer takes no more bytes; the send queue stayed full")
                self._changed.wait(left)
            if self._closed:
                return False
            if ticket is not None:
                ticket.add()
            self._items.append(Item(buffers, total, ticket))
            self._bytes += total
            self._changed.notify_all()
            return True

    def offer(self, buffers: list[Buffer]) -> bool:
        """Queue one small frame before all others, and never wait; False when too many of them wait already.

        Behind bulk on the same socket a heartbeat would come too late for a lease.
        """
        with self._changed:
            if self._closed or len(self._first) >= MAX_FIRST:
                return False
            self._first.append(buffers)
            self._changed.notify_all()
            return True

    def _has_room(self, more: int) -> bool:
        return not self._items or (self._bytes + more <= MAX_BYTES and len(self._items) < MAX_FRAMES)

    def run(self, write: Callable[[list[Buffer]], None]) -> None:
        """Write frames until the queue is closed; for the thread that owns the sending side of the socket.

        Raises what `write` raises; the frame that failed counts as lost.
        """
        while True:
            with self._changed:
                while not self._items and not self._first:
                    if self._closed:
                        return
                    self._changed.wait()
                small = self._first.popleft() if self._first else None
                # The item stays in the queue while it is written, so that its bytes count against the bound.
                item = None if small is not None else self._items[0]
                self._writing = item is not None
            if small is not None:
                write(list(small))
            if item is not None:
                self._write(item, write)

    def _write(self, item: Item, write: Callable[[list[Buffer]], None]) -> None:
        written = False
        try:
            write(list(item.buffers))
            written = True
        finally:
            with self._changed:
                self._writing = False
                self._items.popleft()
                self._bytes -= item.size
                self._changed.notify_all()
            if item.ticket is not None:
                (item.ticket.written if written else item.ticket.lost)()

    def close(self) -> None:
        """Refuse further frames and drop those that wait; every `put` that waits returns False.

        A write that is under way ends by itself when its socket is shut down.
        """
        with self._changed:
            self._closed = True
            self._first.clear()
            # The fate of a frame that is being written is known by its writer alone.
            keep = 1 if self._writing else 0
            dropped = list(self._items)[keep:]
            while len(self._items) > keep:
                self._bytes -= self._items.pop().size
            self._changed.notify_all()
        for item in dropped:
            if item.ticket is not None:
                item.ticket.lost()

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait or are being written."""
        with self._changed:
            return self._bytes
