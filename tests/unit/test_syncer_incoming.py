"""What one group may have waiting in the syncer: messages under check, those behind them, bulk before its
streams are there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from tests.e2e.raw import hello
from yeto_proto import dtypes
from yeto_proto._generated.constants import HEADER_BYTES
from yeto_proto._generated.errors import FrameTooLarge
from yeto_proto._generated.messages import BcastFragment, Heartbeat, InitParams, Message, PushFragment
from yeto_proto._generated.types import Dtype
from yeto_proto.codec import encode
from yeto_proto.layout import build_layout
from yeto_proto.pool import BufferPool
from yeto_proto.session import Session
from yeto_syncer.core.events import Event, Heard, HelloReceived, Received, Refused
from yeto_syncer.core.jobs import Link
from yeto_syncer.shell import checks, server
from yeto_syncer.shell.checks import INLINE_BYTES
from yeto_syncer.shell.connection import Connection
from yeto_syncer.shell.counters import Counters
from yeto_syncer.shell.doorman import Doorman
from yeto_syncer.shell.group import STREAMS_WAIT_S, Group
from yeto_syncer.shell.incoming import CHECKS_IN_FLIGHT, LANE_LIMIT, Incoming
from yeto_syncer.shell.outbound import CONTROL
from yeto_syncer.shell.server import INLINE_HELLO
from yeto_syncer.shell.workers import Workers, settled

NUMEL = INLINE_BYTES  # of f32: four times what is checked on the event loop
LINK = Link(3, 1)
LAYOUT = build_layout({"a": NUMEL}, 1)
SESSION = Session(Dtype.F32, LAYOUT.wire(), LAYOUT.fingerprint(), bytes(32), None)
PUSH = PushFragment(3, 0, 1, 1, 0, 1, 1, 1, dtypes.encode(Dtype.F32, np.zeros(NUMEL, np.float32)))
INIT = InitParams(0, PUSH.delta)
BEAT = Heartbeat(learner_id=3, local_step=7)


class Socket:
    """A connection that takes all it is given, and knows why it is not read."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.wire = self
        self.holds: set[str] = set()
        self.sent = 0
        self.blocked = self.is_closed = False
        self.stalled_since: float | None = None

    def hold(self, reason: str) -> None:
        self.holds.add(reason)

    def release(self, reason: str) -> None:
        self.holds.discard(reason)

    def send(self, buffers: list[memoryview]) -> int:
        count = sum(map(len, buffers))
        self.sent += count
        return count

    def watch_writable(self, wanted: bool) -> None:
        pass


class Later:
    """Workers and event loop: nothing runs before the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], Callable[[Future[Any]], None]]] = []
        self.calls: list[tuple[float, Callable[[], object]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Future[Any]], None]) -> None:
        self.work.append((work, done))

    def finish(self) -> None:
        """Complete the work that has waited longest."""
        work, done = self.work.pop(0)
        done(settled(work))

    def time(self) -> float:
        return 0.0

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        self.calls.append((delay, callback))


class Desk:
    """A group of real parts between sockets and workers that are none."""

    def __init__(self, *, announced: int = 0) -> None:
        self.later = Later()
        self.events: list[Event] = []
        self.sockets = [Socket(0)]
        self.group = Group(
            LINK,
            SESSION,
            cast(Connection, self.sockets[0]),
            self.later,
            self.events.append,
            lambda conn: None,
            lambda group: group.flush(),
            announced=announced,
        )
        workers = cast(Workers, self.later)
        self.incoming = Incoming(
            workers, map, lambda size: memoryview(bytearray(size)), Counters(), self.broken
        )

    def broken(self, conn: Connection, error: Exception) -> None:
        raise AssertionError(error)

    def attach(self) -> None:
        self.sockets.append(Socket(len(self.sockets)))
        self.group.attach(len(self.sockets) - 2, cast(Connection, self.sockets[-1]))

    def take(self, socket: int, message: Message) -> bool:
        return self.incoming.take(cast(Connection, self.sockets[socket]), self.group, message)

    def received(self) -> list[Message]:
        return [event.message for event in self.events if isinstance(event, Received)]


def test_no_socket_of_a_group_is_read_while_too_many_checks_are_in_flight() -> None:
    desk = Desk()
    desk.attach()
    desk.attach()
    for number in range(CHECKS_IN_FLIGHT):
        assert not any(socket.holds for socket in desk.sockets)
        desk.take(number % 3, PUSH)
    desk.attach()
    assert all(socket.holds == {"checks"} for socket in desk.sockets)
    desk.later.finish()
    assert not any(socket.holds for socket in desk.sockets)
    while desk.later.work:
        desk.later.finish()
    assert desk.received() == [PUSH] * CHECKS_IN_FLIGHT


def test_what_waits_behind_a_check_is_bounded() -> None:
    desk = Desk()
    desk.attach()
    desk.take(1, PUSH)
    for _ in range(LANE_LIMIT - 2):
        desk.take(0, BEAT)
    assert not any(socket.holds for socket in desk.sockets)
    desk.take(0, BEAT)
    assert all(socket.holds == {"lane"} for socket in desk.sockets)
    desk.later.finish()
    assert not any(socket.holds for socket in desk.sockets)
    assert desk.received() == [PUSH, *[BEAT] * (LANE_LIMIT - 1)]


def test_a_message_that_waits_is_a_sign_of_life_at_once() -> None:
    desk = Desk()
    desk.take(0, BEAT)
    assert desk.events == [Received(0, LINK, BEAT)]
    desk.take(0, PUSH)
    desk.take(0, BEAT)
    assert desk.events[1:] == [Heard(LINK), Heard(LINK)]
    desk.later.finish()
    assert desk.received() == [BEAT, PUSH, BEAT]


@pytest.mark.parametrize("message", [PUSH, INIT], ids=["push", "init"])
def test_values_for_which_there_is_no_memory_cost_their_own_learner_only(
    message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(checks.dtypes, "check_finite", full)
    desk = Desk()
    desk.take(0, message)
    desk.later.finish()
    event = desk.events[-1]
    assert isinstance(event, Refused) and isinstance(event.error, FrameTooLarge)
    assert "no memory" in str(event.error) and "broken" in desk.sockets[0].holds


class Body:
    """A broadcast that is encoded already."""

    fragment_id, version, final, ready = 0, 1, False, True

    def want(self, wake: Callable[[], None]) -> None: ...

    def message(self) -> BcastFragment:
        return BcastFragment(0, 1, PUSH.delta)

    def retain(self) -> None: ...

    def release(self) -> None: ...


@pytest.mark.parametrize("come", [0, 1, 2])
def test_bulk_waits_for_the_streams_of_its_group_but_not_for_long(come: int) -> None:
    desk = Desk(announced=2)
    desk.group.deliver([Body()], 1)
    for _ in range(come):
        desk.group.flush()
        assert not any(socket.sent for socket in desk.sockets)
        desk.attach()
    desk.group.flush()
    ((delay, callback),) = desk.later.calls
    assert delay == STREAMS_WAIT_S
    if come < 2:
        assert not any(socket.sent for socket in desk.sockets)
        callback()
    expected = {0: [True], 1: [False, True], 2: [False, True, False]}[come]  # one chunk
    assert [socket.sent > 0 for socket in desk.sockets] == expected
    assert len(desk.events) == 1


def test_a_group_without_data_streams_waits_for_none() -> None:
    desk = Desk()
    desk.group.deliver([Body()], 1)
    desk.group.flush()
    assert desk.sockets[0].sent and not desk.later.calls


def test_values_are_checked_off_the_event_loop_while_others_are_served() -> None:
    """8.3: while the check of one learner's values is held, what another one sends goes through."""
    held, calls = threading.Event(), threading.Event()
    ready: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    class Loop:
        def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
            ready.append((callback, args))
            calls.set()

    def slow(function: Any, items: Any) -> Any:
        assert held.wait(60)
        return map(function, items)

    workers = Workers("test", 1, Loop())
    first, second = Desk(), Desk()
    incoming = Incoming(workers, slow, lambda size: memoryview(bytearray(size)), Counters(), first.broken)
    incoming.take(cast(Connection, first.sockets[0]), first.group, INIT)
    incoming.take(cast(Connection, second.sockets[0]), second.group, BEAT)
    assert second.received() == [BEAT] and first.received() == []
    held.set()
    assert calls.wait(60)
    callback, args = ready.pop()
    callback(*args)
    assert first.received() == [INIT]
    assert workers.close(60)
    assert first.group.stream_of(cast(Connection, first.sockets[0])) == CONTROL


@pytest.mark.rule("syncer.hello.bounded")
@pytest.mark.parametrize("memory", [True, False], ids=["enough", "none"])
def test_a_long_hello_does_not_wait_behind_values(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = build_layout({f"tensor.{number}": 1 for number in range(INLINE_HELLO // 8)}, 1)
    greeting = hello(layout, 5)
    payload = memoryview(b"".join(map(bytes, encode(greeting)))[HEADER_BYTES:])
    assert len(payload) > INLINE_HELLO

    def full(*args: object, **kwargs: object) -> None:
        raise MemoryError

    if not memory:
        monkeypatch.setattr(server, "decode_hello", full)
    line, values, parser, conn = Mock(), Later(), Later(), Mock(number=9, is_over=False)
    conn.wire.learners = None
    made = server.Server(
        *(Mock(), line, cast(Workers, values), cast(Workers, parser), map, None, 60.0),
        *(BufferPool(), Doorman(0), Counters(), Mock()),
    )
    made.greeted(conn, payload)
    assert not values.work and not line.post.called
    parser.finish()
    (event,) = line.post.call_args.args
    if memory:
        assert event == HelloReceived(9, greeting)
    else:
        assert isinstance(event, Refused) and isinstance(event.error, FrameTooLarge)
