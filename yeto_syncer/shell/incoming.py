"""Messages of admitted groups on their way to the coordinator: counted, checked, and kept in their order.

Small ones are checked on the event loop, large ones by the workers, while the lane of the group keeps their
places. What waits in a lane is bounded: none of the sockets of its group is read at the limit. A message that
has to wait is a sign of life all the same, and the coordinator hears of it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from yeto_proto._generated.errors import YetoError
from yeto_proto._generated.messages import Message
from yeto_proto._generated.types import FrameType
from yeto_proto.memory import Allocate
from yeto_proto.writer import frame
from yeto_syncer.core.events import Heard, Received, Refused
from yeto_syncer.core.jobs import F32
from yeto_syncer.core.merge import Map
from yeto_syncer.shell.checks import INLINE_BYTES, bulk_size, examine
from yeto_syncer.shell.connection import Connection
from yeto_syncer.shell.counters import Counters
from yeto_syncer.shell.group import Group
from yeto_syncer.shell.workers import Workers

CHECKS_IN_FLIGHT = 4
"""Bulk messages of one group that may be under check; then none of its sockets is read."""

LANE_LIMIT = 4096
"""Messages of one group that may wait behind those under check; then none of its sockets is read."""

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
        if size > INLINE_BYTES:
            self._examine(conn, group, message)
            return True
        values = None
        if size:
            try:
                values = examine(message, group.session)
            except YetoError as error:
                conn.hold("broken")
                self._broken(conn, error)
                return False
        self._put(group, Received(conn.number, group.link, message, values))
        return True

    def _put(self, group: Group, event: Received) -> None:
        if len(group.lane):
            group.lane.overtake(Heard(group.link))
        group.lane.put(event)
        if len(group.lane) >= LANE_LIMIT:
            group.pause("lane")

    def _examine(self, conn: Connection, group: Group, message: Message) -> None:
        fill = group.lane.reserve()
        group.lane.overtake(Heard(group.link))
        group.checks += 1
        if group.checks >= CHECKS_IN_FLIGHT:
            group.pause("checks")

        def examined(future: Future[F32 | None]) -> None:
            group.checks -= 1
            try:
                values = future.result()
            except YetoError as error:
                conn.hold("broken")
                fill(Refused(conn.number, error))
            else:
                fill(Received(conn.number, group.link, message, values))
            group.resume("checks")
            if len(group.lane) < LANE_LIMIT:
                group.resume("lane")

        self._workers.submit(lambda: examine(message, group.session, self._spread, self._allocate), examined)
