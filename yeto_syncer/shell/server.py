"""The sockets of the server: accepting, reading, checking, writing and closing. It decides nothing.

What arrives becomes events for the coordinator; what the coordinator answers comes back through the methods
of `Server`, each of which ignores links and connections that are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from yeto_proto._generated.errors import AuthenticationFailed, YetoError
from yeto_proto._generated.messages import DataHello, Error, Hello, Message
from yeto_proto._generated.types import Dtype, FrameType, Role
from yeto_proto.pool import BufferPool
from yeto_proto.reader import FrameReader, decode_hello
from yeto_proto.session import Session
from yeto_proto.writer import frame
from yeto_syncer.core.effects import Versioned
from yeto_syncer.core.events import (
    DataHelloReceived,
    Disconnected,
    Dropped,
    Event,
    HelloReceived,
    Opened,
    Refused,
)
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.merge import Map
from yeto_syncer.shell.checks import no_memory
from yeto_syncer.shell.connection import Connection
from yeto_syncer.shell.counters import Counters
from yeto_syncer.shell.doorman import Doorman
from yeto_syncer.shell.greetings import Greetings
from yeto_syncer.shell.group import Group
from yeto_syncer.shell.incoming import TYPES, Incoming
from yeto_syncer.shell.listener import Listener, host_of
from yeto_syncer.shell.outbound import CONTROL, Stream
from yeto_syncer.shell.payloads import Payloads
from yeto_syncer.shell.watch import Depths
from yeto_syncer.shell.wires import Wire
from yeto_syncer.shell.workers import Workers, settled

INLINE_HELLO = 1 << 16
"""HELLOs up to this many bytes are parsed on the event loop."""


class Line(Protocol):
    """Where events go."""

    @property
    def congested(self) -> bool: ...

    def post(self, event: Event) -> None: ...


class Server:
    """All connections and groups of the process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        line: Line,
        workers: Workers,
        greeting: Workers,
        spread: Map,
        key: bytes | None,
        write_timeout_s: float,
        pool: BufferPool,
        doorman: Doorman,
        counters: Counters,
        warn: Callable[[str, dict[str, object]], None],
    ) -> None:
        self.loop = loop
        self._line = line
        self._greeting = greeting
        self._key = key
        self._doorman = doorman
        self._counters = counters
        self._warn = warn
        self._session: Session | None = None
        self._write_timeout_s = write_timeout_s
        self._pool = pool
        self._payloads = Payloads(workers, spread, pool.take)
        self._incoming = Incoming(workers, spread, pool.take, counters, self.broken)
        self._connections: dict[int, Connection] = {}
        self._groups: dict[Link, Group] = {}
        self._member_of: dict[int, Group] = {}
        self._pending: set[int] = set()
        self._greetings = Greetings()
        self._congested: set[Connection] = set()
        self._dirty: dict[Group, None] = {}
        self._numbers = 0
        self._listener: Listener | None = None
        self._when_empty: Callable[[], None] | None = None
        self._sweep()

    # -- accepting

    def listen(self, listener: Listener) -> None:
        """Accept from now on."""
        self._listener = listener
        listener.start(self)

    def accepted(self, wire: Wire, peer: str) -> int:
        """A new socket; returns how many are still in handshake."""
        self._numbers += 1
        grant = partial(self._greetings.ask, self._numbers)
        reader = FrameReader(Role.SYNCER, defer_hello=True, allocate=self._pool.take, grant=grant)
        conn = Connection(self._numbers, wire, peer, reader, self)
        self._connections[conn.number] = conn
        self._pending.add(conn.number)
        self._line.post(Opened(conn.number))
        conn.release("new")
        return len(self._pending)

    def turned_away(self, peer: str) -> None:
        """The listener has closed a socket unheard."""
        self._counters.add("connections_turned_away")

    def _failed(self, conn: Connection) -> None:
        # A handshake came to nothing.
        host = host_of(conn.peer)
        if self._doorman.failed(host, self.loop.time()):
            self._warn("too many failed handshakes: turned away for a while", {"host": host})

    def _settled(self, conn: Connection) -> None:
        self._pending.discard(conn.number)
        for number in self._greetings.leave(conn.number):
            self.loop.call_soon(self._proceed, number)
        if self._listener is not None:
            self._listener.pending(len(self._pending))

    def _proceed(self, number: int) -> None:
        conn = self._connections.get(number)
        if conn is not None:
            conn.proceed()

    # -- what connections tell

    def greeted(self, conn: Connection, payload: memoryview) -> None:
        """Check the MAC of a HELLO and parse it; off the event loop when it is large (D27)."""

        def parsed(future: Future[Hello]) -> None:
            if conn.is_over:
                return
            try:
                hello = future.result()
            except YetoError as error:
                self.broken(conn, error)
            else:
                if self._may_be(conn, "HELLO", hello.learner_id):
                    self._line.post(HelloReceived(conn.number, hello))

        def parse(known: Session | None = self._session) -> Hello:
            try:
                return decode_hello(payload, known=known, key=self._key)
            except MemoryError:
                raise no_memory("a HELLO", len(payload)) from None

        if len(payload) <= INLINE_HELLO:
            parsed(settled(parse))
        else:
            self._greeting.submit(parse, parsed)

    def _may_be(self, conn: Connection, frame: str, learner_id: int) -> bool:
        # D25: with a client CA, the certificate of every socket names its learner.
        allowed = conn.wire.learners
        if allowed is None or learner_id in allowed:
            return True
        names = ", ".join(map(str, sorted(allowed))) or "none"
        detail = f"the certificate does not name learner {learner_id} (it names: {names})"
        self.broken(conn, AuthenticationFailed(rule="syncer.tls.learner_name", frame=frame, detail=detail))
        return False

    def arrived(self, conn: Connection, messages: Sequence[Message]) -> None:
        """Whole messages of one socket."""
        group = self._member_of.get(conn.number)
        for message in messages:
            if conn.is_over:
                return
            if group is not None:
                if not self._incoming.take(conn, group, message):
                    return
            elif isinstance(message, DataHello) and self._may_be(conn, "DATA_HELLO", message.learner_id):
                self._line.post(DataHelloReceived(conn.number, message))
        if self._line.congested:
            self._congested.add(conn)
            conn.hold("backlog")

    def broken(self, conn: Connection, error: YetoError) -> None:
        """Bytes were refused. The coordinator says what happens to the socket."""
        event = Refused(conn.number, error)
        group = self._member_of.get(conn.number)
        if group is None:
            self._line.post(event)
        else:
            group.lane.put(event)

    def ended(self, conn: Connection) -> None:
        """End of stream or a socket error. The end of a control socket is the end of its group."""
        group = self._member_of.get(conn.number)
        if group is None:
            if conn.wire.trouble is None:
                conn.close()
            else:
                self._counters.add("connections_refused", {"reason": "TlsFailed"})
                self._warn("connection refused", {"peer": conn.peer, "reason": f"TLS: {conn.wire.trouble}"})
                self._failed(conn)
                conn.retire()  # the alert that says why is still to be read
            self._line.post(Disconnected(conn.number))
            return
        stream = group.stream_of(conn)
        if stream == CONTROL:
            self._forget(group)
            group.abort()
        elif stream is not None:
            group.detach(stream)
            conn.close()
            self._dirty[group] = None
        group.lane.put(Disconnected(conn.number))

    def writable(self, conn: Connection) -> None:
        """A socket takes bytes again."""
        group = self._member_of.get(conn.number)
        if group is not None:
            group.flush()

    def closed(self, conn: Connection) -> None:
        """A socket is closed."""
        del self._connections[conn.number]
        self._member_of.pop(conn.number, None)
        self._congested.discard(conn)
        self._settled(conn)
        if self._when_empty is not None and not self._connections:
            self._when_empty()

    # -- what the coordinator asks for

    def accept(self, number: int, link: Link, session: Session, num_streams: int) -> None:
        """The socket is the control stream of a new group, whose HELLO announced so many data streams."""
        conn = self._connections.get(number)
        if conn is None or conn.is_over:
            return
        self._session = session
        self._doorman.admitted(host_of(conn.peer))
        group = Group(
            link,
            session,
            conn,
            self.loop,
            self._line.post,
            self.ended,
            self._wake,
            self._pool.take,
            self._queued,
            num_streams,
        )
        self._groups[link] = group
        self._join(conn, group)

    def attach(self, number: int, link: Link, stream_idx: int) -> None:
        """The socket is a data stream of a group."""
        conn = self._connections.get(number)
        group = self._groups.get(link)
        if conn is None or conn.is_over or group is None:
            return
        group.attach(stream_idx, conn)
        self._join(conn, group)
        self._dirty[group] = None  # bulk may have waited for this stream

    def _join(self, conn: Connection, group: Group) -> None:
        self._member_of[conn.number] = group
        self._settled(conn)
        conn.admit(group.session, group.reassembler)

    def refuse(self, number: int, error: YetoError) -> None:
        """Send the error, if it is one that is sent, and close."""
        conn = self._connections.get(number)
        if conn is None:
            return
        self._failed(conn)
        if not error.sends:
            conn.close()
            return
        last = Stream()
        last.put(frame(Error(text=str(error))))
        conn.part(last)

    def close_connection(self, number: int) -> None:
        """Close one socket without a word. A data socket of a live group stays open for a moment, unheard: a
        peer that saw it end first would take that for a broken line and never read the ERROR on its control
        stream."""
        conn = self._connections.get(number)
        if conn is None:
            return
        group = self._member_of.get(number)
        stream = group.stream_of(conn) if group is not None else None
        if group is not None and stream is not None and stream != CONTROL:
            group.detach(stream)
            self._dirty[group] = None
            conn.retire()
        else:
            conn.close()

    def close_link(self, link: Link, error: YetoError | None) -> None:
        """Close a group; the ERROR is the last frame on its control stream."""
        group = self._groups.get(link)
        if group is None:
            return
        self._forget(group)
        group.close(Error(text=str(error)) if error is not None and error.sends else None)

    def send(self, link: Link, message: Message) -> None:
        """Queue a small frame."""
        group = self._groups.get(link)
        if group is not None:
            group.send(message)
            self._dirty[group] = None

    def deliver(
        self, links: Sequence[Link], fragments: Sequence[Versioned], final: bool, token: int | None
    ) -> None:
        """Queue bulk for the links that are still there, encoded once for all of them."""
        groups = [self._groups[link] for link in links if link in self._groups]
        if not groups:
            return
        dtype = Dtype.F32 if final else groups[0].session.bulk_dtype
        payloads = [self._payloads.get(fragment, dtype, final) for fragment in fragments]
        for group in groups:
            group.deliver(payloads, token)
            self._dirty[group] = None

    # -- for those who look on

    def depths(self, effects: int) -> Depths:
        """What waits here; `effects` are those that wait before it."""
        queues = [group.depth for group in self._groups.values()]
        return Depths(
            connections=len(self._connections),
            pending=len(self._pending),
            bulk_messages=sum(messages for messages, _ in queues),
            control_bytes=sum(size for _, size in queues),
            checks=sum(group.checks for group in self._groups.values()),
            effects=effects,
        )

    def catch_up_left(self, link: Link, token: int) -> int | None:
        """Fragments of a delivery that have not left yet; None for one that is over."""
        group = self._groups.get(link)
        return None if group is None else group.left(token)

    def _queued(self, kind: FrameType, size: int) -> None:
        self._counters.add("sent_bytes", TYPES[kind], size)

    # -- turns

    def settle(self) -> None:
        """Send what the last steps have queued, and read again what a full line had stopped."""
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for group in dirty:
                if group.link in self._groups and self._groups[group.link] is group:
                    group.flush()
                    if group.overflowed:
                        self._drop(group, "it does not read its control stream")
        if self._congested and not self._line.congested:
            congested, self._congested = self._congested, set()
            for conn in congested:
                conn.release("backlog")

    def _wake(self, group: Group) -> None:
        # A payload that the group waited for has been encoded.
        group.flush()

    def _sweep(self) -> None:
        for group in list(self._groups.values()):
            if group.stalled(self._write_timeout_s):
                self._drop(group, f"no byte was taken for {self._write_timeout_s:g} s")
        self.loop.call_later(min(1.0, self._write_timeout_s / 4), self._sweep)

    def _drop(self, group: Group, reason: str) -> None:
        self._forget(group)
        group.abort()
        group.lane.put(Dropped(group.link, reason))

    def _forget(self, group: Group) -> None:
        if self._groups.get(group.link) is group:
            del self._groups[group.link]
        self._dirty.pop(group, None)

    # -- the end

    def shut_down(self, linger: float, done: Callable[[], None]) -> None:
        """Stop accepting, let queued small frames leave, and call `done` when every socket is closed."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._when_empty = done
        for group in list(self._groups.values()):
            self._forget(group)
            group.close(None, linger)
        for number in list(self._pending):
            if not self._connections[number].is_over:
                self._connections[number].close()
        if not self._connections:
            done()
