"""One connection group at the sockets: its control and data streams, its outbound side and its line of
events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from yeto_proto._generated.limits import payload_limit
from yeto_proto._generated.messages import Error, Message
from yeto_proto._generated.types import FrameType, Role
from yeto_proto.chunks import Reassembler
from yeto_proto.memory import Allocate, fresh
from yeto_proto.session import Session
from yeto_syncer.core.events import Delivered, Event
from yeto_syncer.core.jobs import Link
from yeto_syncer.shell.connection import Connection
from yeto_syncer.shell.lane import Lane
from yeto_syncer.shell.outbound import CONTROL, Outbound, Payload

WRITE_TURN = 8 << 20
"""Bytes written for one group before the others get their turn."""

STREAMS_WAIT_S = 2.0
"""How long bulk waits for the data streams that a HELLO announced. Then it goes over those that are there."""

CONTROL_BYTES = 1 << 20
"""Small frames that may wait for one learner, beside two manifests."""


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What the group needs of the event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer: ...


class Group:
    """The sockets of one learner's connection. `flush` sends what the kernel takes and never blocks."""

    def __init__(
        self,
        link: Link,
        session: Session,
        control: Connection,
        clock: Clock,
        post: Callable[[Event], None],
        lost: Callable[[Connection], None],
        wake: Callable[[Group], None],
        allocate: Allocate = fresh,
        tell: Callable[[FrameType, int], None] = lambda kind, size: None,
        announced: int = 0,
    ) -> None:
        self.link = link
        self.session = session
        self.reassembler = Reassembler(Role.SYNCER, session, allocate=allocate)
        self.sockets: dict[int, Connection] = {CONTROL: control}
        self.lane = Lane(post)
        self.checks = 0
        self._pauses: set[str] = set()
        self.overflowed = False
        self._closed = False
        self._clock = clock
        self._post = post
        self._lost = lost
        manifest = payload_limit(FrameType.FINAL_MANIFEST, Role.LEARNER, session)
        self._outbound = Outbound(
            lambda: wake(self), CONTROL_BYTES + 2 * manifest, tell=tell, announced=announced
        )
        self._streams_wait = clock.call_later(STREAMS_WAIT_S, self._wait_no_more) if announced else None

    def _wait_no_more(self) -> None:
        self._outbound.wait_no_more()
        self.flush()

    @property
    def control(self) -> Connection:
        return self.sockets[CONTROL]

    @property
    def idle(self) -> bool:
        """Nothing waits to be sent."""
        return self._outbound.idle

    @property
    def depth(self) -> tuple[int, int]:
        """Bulk messages and bytes of small frames that wait."""
        return self._outbound.depth

    def left(self, token: int) -> int | None:
        """Messages of a delivery that have not left yet; None when it is over."""
        return self._outbound.left(token)

    def stream_of(self, conn: Connection) -> int | None:
        """The stream that a socket of this group carries; None when it is not attached any more."""
        return next((stream for stream, socket in self.sockets.items() if socket is conn), None)

    def attach(self, stream_idx: int, conn: Connection) -> None:
        """Use one more data socket, for messages that start from now on."""
        self.sockets[stream_idx] = conn
        self._outbound.attach(stream_idx)
        for reason in self._pauses:
            conn.hold(reason)

    def detach(self, stream_idx: int) -> None:
        """A data socket has ended."""
        del self.sockets[stream_idx]
        self._outbound.detach(stream_idx)

    def pause(self, reason: str) -> None:
        """Read nothing more from any socket of the group, until `resume` was called for the same reason."""
        if reason in self._pauses or self._closed:
            return
        self._pauses.add(reason)
        for conn in self.sockets.values():
            conn.hold(reason)

    def resume(self, reason: str) -> None:
        """One reason to pause has gone."""
        if reason not in self._pauses:
            return
        self._pauses.remove(reason)
        for conn in list(self.sockets.values()):
            conn.release(reason)

    def send(self, message: Message) -> None:
        """Queue a small frame; `overflowed` tells when too many wait."""
        if not self._outbound.send(message):
            self.overflowed = True

    def deliver(self, payloads: Sequence[Payload], token: int | None) -> None:
        """Queue bulk messages; a `Delivered` event follows for the token."""
        self._outbound.deliver(payloads, token)

    def flush(self) -> None:
        """Hand to the kernel what it takes now, the streams in turn."""
        if self._closed:
            return
        left = WRITE_TURN
        moved = True
        while moved and left > 0 and not self._outbound.idle:
            moved = False
            for stream, conn in list(self.sockets.items()):
                if conn.blocked or conn.is_closed or self._closed:
                    continue
                count = self._write(stream, conn)
                left -= count
                moved = moved or count > 0
        if left <= 0 and not self._closed:  # ask the loop to come back to this group after the others
            for conn in self.sockets.values():
                conn.watch_writable(True)
        for token in self._outbound.delivered():
            self._post(Delivered(self.link, token))

    def _write(self, stream: int, conn: Connection) -> int:
        buffers = self._outbound.next(stream)
        if not buffers:
            return 0
        try:
            count = conn.wire.send(buffers)
        except OSError:
            self._lost(conn)
            return 0
        if count:
            self._outbound.sent(stream, count)
        if count and not self._outbound.partial(stream):
            conn.stalled_since = None
            return count
        if count is not None or conn.stalled_since is None:
            conn.stalled_since = self._clock.time()
        conn.watch_writable(True)
        return count or 0

    def stalled(self, seconds: float) -> bool:
        """Whether one of the sockets has bytes to take and took none for this long (D13). The others do not
        count: chunks go round all streams, and control frames alone are no use to a learner."""
        since = self._clock.time() - seconds
        return any(
            conn.stalled_since is not None and conn.stalled_since < since for conn in self.sockets.values()
        )

    def close(self, error: Error | None, linger: float | None = None) -> None:
        """Say what is left to say on the control stream, then close all sockets."""
        self._end()
        last = self._outbound.close(error)
        data = [conn for stream, conn in self.sockets.items() if stream != CONTROL]
        if linger is None:
            self.control.part(last, data)
        else:
            self.control.part(last, data, linger)

    def abort(self) -> None:
        """Close all sockets at once."""
        self._end()
        self._outbound.close()
        for conn in list(self.sockets.values()):
            conn.close()

    def _end(self) -> None:
        self._closed = True
        if self._streams_wait is not None:
            self._streams_wait.cancel()  # it would keep all of this in memory
