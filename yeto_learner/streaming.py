"""Bulk messages on their way out: cut into chunks, striped over the data streams, in one generation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from yeto_proto._generated.constants import HEADER_BYTES, WIRE
from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.messages import Buffer, InitParams, PushFragment
from yeto_proto.chunks import cut
from yeto_proto.codec import encode, header

from .connection import Connection
from .errors import PartialMessageGenerationLost
from .group import Group
from .outbox import Ticket

__all__ = ["BulkSender"]

BulkMessage = InitParams | PushFragment


class BulkSender:
    """Sends INIT_PARAMS and PUSH_FRAGMENT over whatever generation is connected when a message begins."""

    def __init__(self, connection: Connection, num_streams: int) -> None:
        self._connection = connection
        self._streams = num_streams
        self._lock = threading.Lock()
        self._messages = 0  # chunk message ids, never reset, so that a redial cannot reuse one
        self._stripes = 0

    def send(self, message: BulkMessage, ticket: Ticket | None = None) -> bool:
        """Queue a whole message, waiting for room.  False when the link was lost before its end."""
        group = self._group()
        if group is None:
            return False
        buffers = encode(message)
        if self._streams == 0:
            return group.outboxes[0].put(buffers, ticket)
        total = sum(map(len, buffers))
        return all(self._put(group, chunk, ticket) for chunk in cut(buffers, total, self._next_id()))

    def send_parts(
        self,
        head: BulkMessage,
        bulk_bytes: int,
        parts: Iterable[Buffer],
        *,
        operation: str,
        before_last_enqueue: Callable[[], None] | None = None,
        ticket: Ticket | None = None,
        deadline: float | None = None,
    ) -> int | None:
        """Queue a message whose bulk of `bulk_bytes` bytes comes in parts, one chunk at a time.

        `head` has an empty bulk.  Returns the generation that all chunks were queued on; None when nothing
        was queued. Raises TypeError or ValueError for a part that is not contiguous bytes or a wrong total,
        and whatever `parts` raises; if a chunk was queued by then the connection is given up, for the message
        cannot be completed.  Raises PartialMessageGenerationLost when the link is lost in mid-message,
        TimeoutError when there is no room in a send queue by `deadline` (monotonic seconds).
        """
        group = self._group()
        if group is None:
            return None
        source = _checked(parts)
        fixed = b"".join(encode(head))[HEADER_BYTES:]
        start = header(head.frame_type, len(fixed) + bulk_bytes) + fixed
        total = len(start) + bulk_bytes
        last = (total - 1) // WIRE.chunk_slice
        queued = 0
        try:
            for number, chunk in enumerate(cut(_chain(start, source), total, self._next_id())):
                if number == last and before_last_enqueue is not None:
                    before_last_enqueue()  # `cut` has seen the end of the parts by now
                if not self._put(group, chunk, ticket, deadline):
                    if queued == 0:
                        return None
                    raise PartialMessageGenerationLost(operation, group.generation, group.epoch, queued)
                queued += 1
        except BadArgument as error:
            self._give_up(group, queued)
            raise ValueError(f"{operation}: {error}") from error
        except BaseException:
            self._give_up(group, queued)
            raise
        return group.generation

    def _group(self) -> Group | None:
        with self._connection.changed:
            return None if self._connection.link.shutdown else self._connection.group

    def _next_id(self) -> int:
        with self._lock:
            self._messages += 1
            return self._messages - 1

    def _put(
        self, group: Group, chunk: list[Buffer], ticket: Ticket | None, deadline: float | None = None
    ) -> bool:
        with self._lock:
            stream = 1 + self._stripes % self._streams if self._streams else 0
            self._stripes += 1
        return group.outboxes[stream].put(chunk, ticket, deadline=deadline)

    def _give_up(self, group: Group, queued: int) -> None:
        if queued:
            self._connection.drop(group, ConnectionError("a streamed message broke off"))


def _chain(start: bytes, source: Iterator[memoryview]) -> Iterator[Buffer]:
    yield start
    yield from source


def _checked(parts: Iterable[Buffer]) -> Iterator[memoryview]:
    """The parts as bytes, empty ones left out.  Raises TypeError for what is not contiguous bytes."""
    for part in parts:
        view = memoryview(part)
        if not view.c_contiguous:
            raise TypeError("a part of a streamed message must be contiguous bytes")
        if view.nbytes:
            yield view.cast("B")
