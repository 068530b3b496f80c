"""Messages of admitted groups on their way to the coordinator: counted, checked, and kept in their order.

Small ones are checked on the event loop, large ones by the workers, while the lane of the group keeps their
places.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from yeto_proto._generated.errors import YetoError
from yeto_proto._generated.messages import Message
from yeto_proto._generated.types import FrameType
from yeto_proto.memory import Allocate
from yeto_proto.writer import frame
from yeto_syncer.core.events import Received, Refused
from yeto_syncer.core.jobs import F32
from yeto_syncer.core.merge import Map
from yeto_syncer.shell.checks import INLINE_BYTES, bulk_size, examine
from yeto_syncer.shell.connection import Connection
from yeto_syncer.shell.counters import Counters
from yeto_syncer.shell.group import Group
from yeto_syncer.shell.workers import Workers

CHECKS_IN_FLIGHT = 4
"""Bulk messages of one group that may be under check; then its sockets are not read."""

TYPES = {kind: {"type": kind.name} for kind in FrameType}
"""The labels by which frames are counted."""


class Incoming:
    """Takes the messages of all groups. `broken` hears of values that were refused on the event loop."""

    def __init__(
        self,
        workers: Workers,
        spread: Map,
        allocate: Allocate,
        counters: Counters,
        broken: Callable[[Connection, YetoError], None],
    ) -> None:
        self._workers = workers
        self._spread = spread
        self._allocate = allocate
        self._counters = counters
        self._broken = broken

    def take(self, conn: Connection, group: Group, message: Message) -> bool:
        """Whether the socket may go on: it may not when a rule of values is broken."""
        size = bulk_size(message)
        kind = TYPES[message.frame_type]
        self._counters.add("received_messages", kind)
        self._counters.add("received_bytes", kind, size or sum(map(len, frame(message))))
        if not size:
            group.lane.put(Received(conn.number, group.link, message))
            return True
        if size <= INLINE_BYTES:
            try:
                values = examine(message, group.session)
            except YetoError as error:
                conn.hold("broken")
                self._broken(conn, error)
                return False
            group.lane.put(Received(conn.number, group.link, message, values))
            return True
        self._examine(conn, group, message)
        return True

    def _examine(self, conn: Connection, group: Group, message: Message) -> None:
        fill = group.lane.reserve()
        group.checks += 1
        if group.checks >= CHECKS_IN_FLIGHT:
            group.held.append(conn)
            conn.hold("checks")

        def examined(future: Future[F32 | None]) -> None:
            group.checks -= 1
            while group.held:
                group.held.pop().release("checks")
            try:
                values = future.result()
            except YetoError as error:
                conn.hold("broken")
                fill(Refused(conn.number, error))
            else:
                fill(Received(conn.number, group.link, message, values))

        self._workers.submit(lambda: examine(message, group.session, self._spread, self._allocate), examined)
