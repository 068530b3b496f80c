"""The small parts of the syncer's shell: order of events and effects, tape, log lines, threads, shared
payloads."""

from __future__ import annotations

import io
import json
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yeto_proto import dtypes
from yeto_proto._generated.errors import BadScale, NonFinite
from yeto_proto._generated.messages import (
    BcastFragment,
    FinalAck,
    FinalFragment,
    Heartbeat,
    InitParams,
    PushFragment,
)
from yeto_proto._generated.types import Dtype
from yeto_proto.layout import build_layout
from yeto_proto.session import Session
from yeto_syncer.core.effects import Effect, Exit, Log, SetTimer, Versioned
from yeto_syncer.core.events import Disconnected, Event, Opened, Stop, Tick
from yeto_syncer.shell.checks import PART, bulk_size, encode, examine
from yeto_syncer.shell.engine import BACKLOG, Engine
from yeto_syncer.shell.lane import Lane
from yeto_syncer.shell.logs import Log as LogWriter
from yeto_syncer.shell.payloads import INLINE_VALUES, Payloads
from yeto_syncer.shell.tape import Tape
from yeto_syncer.shell.workers import Workers, settled

WAIT_S = 120.0


class Loop:
    """Stands in for the event loop: collects what threads hand over; `turn` runs one of them."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.Queue()

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        self.calls.put((callback, args))

    def turn(self) -> None:
        callback, args = self.calls.get(timeout=WAIT_S)
        callback(*args)


@pytest.fixture
def loop() -> Loop:
    """A stand-in for the event loop."""
    return Loop()


@pytest.fixture
def pool(loop: Loop) -> Iterator[Workers]:
    """Two threads that hand their results to `loop`."""
    workers = Workers("test", 2, loop)
    yield workers
    assert workers.close(WAIT_S)


# -- lane


def test_events_of_a_lane_pass_at_once_when_nothing_is_being_checked() -> None:
    posted: list[Event] = []
    lane = Lane(posted.append)
    lane.put(Opened(1))
    assert posted == [Opened(1)]


def test_events_wait_for_the_checks_before_them() -> None:
    posted: list[Event] = []
    lane = Lane(posted.append)
    first, second = lane.reserve(), lane.reserve()
    lane.put(Disconnected(3))
    second(Opened(2))
    assert posted == []
    first(Opened(1))
    assert posted == [Opened(1), Opened(2), Disconnected(3)]
    lane.put(Opened(4))
    assert posted[-1] == Opened(4)


# -- engine


class Script:
    """A coordinator that answers each event with prepared effects."""

    def __init__(self) -> None:
        self.answers: dict[Event, list[Effect]] = {}
        self.heard: list[Event] = []

    def step(self, now: float, event: Event) -> list[Effect]:
        self.heard.append(event)
        return self.answers.get(event, [])


class Stage:
    """An engine with a scripted coordinator; effects named in `blocking` hold back those behind them."""

    def __init__(self) -> None:
        self.core = Script()
        self.done: list[Effect] = []
        self.blocking: set[str] = set()
        self.on: dict[str, Callable[[], None]] = {}
        self.settled = 0
        self.engine = Engine(self.core, lambda: 0.0, self._perform, self._settle)

    def _perform(self, effect: Effect) -> bool:
        self.done.append(effect)
        if not isinstance(effect, Log):
            return False
        self.on.get(effect.message, lambda: None)()
        return effect.message in self.blocking

    def _settle(self) -> None:
        self.settled += 1

    @property
    def logged(self) -> list[str]:
        return [effect.message for effect in self.done if isinstance(effect, Log)]


def log(text: str) -> Log:
    return Log("info", text, {})


def test_effects_are_performed_in_order_and_events_posted_meanwhile_come_after() -> None:
    stage = Stage()
    stage.core.answers = {Opened(1): [log("a"), log("b")], Opened(2): [log("c")]}
    stage.on["a"] = lambda: stage.engine.post(Opened(2))
    stage.engine.post(Opened(1))
    assert stage.logged == ["a", "b", "c"]
    assert stage.settled == 1


@pytest.mark.rule("syncer.checkpoint.durable_before_visible")
def test_a_blocking_effect_holds_back_all_later_ones_also_of_later_events() -> None:
    stage = Stage()
    stage.blocking = {"save"}
    stage.core.answers = {Opened(1): [log("save"), log("broadcast")], Opened(2): [log("later")]}
    stage.engine.post(Opened(1))
    stage.engine.post(Opened(2))
    assert stage.logged == ["save"]
    stage.core.answers[Tick()] = [log("saved")]
    stage.engine.resume(Tick())
    assert stage.logged == ["save", "broadcast", "later", "saved"]


def test_after_a_failed_blocking_effect_nothing_that_it_held_back_is_performed() -> None:
    stage = Stage()
    stage.blocking = {"save"}
    stage.core.answers = {Opened(1): [log("save"), log("broadcast")], Tick(): [Exit(1, "failed")]}
    stage.engine.post(Opened(1))
    stage.engine.resume(Tick(), failed=True)
    assert stage.done == [log("save"), Exit(1, "failed")]


def test_an_exit_that_waits_behind_a_failed_blocking_effect_is_still_performed() -> None:
    """A stop before training, while the first checkpoint is being written to a full disk."""
    stage = Stage()
    stage.blocking = {"save"}
    stage.core.answers = {Opened(1): [log("save"), log("broadcast")], Stop(15): [Exit(0, "stopped")]}
    stage.engine.post(Opened(1))
    stage.engine.post(Stop(15))
    stage.engine.resume(Tick(), failed=True)
    assert stage.done == [log("save"), Exit(0, "stopped")]


def test_nothing_is_heard_or_performed_after_exit() -> None:
    stage = Stage()
    stage.core.answers = {Opened(1): [Exit(0, "done"), log("never")]}
    stage.engine.post(Opened(1))
    stage.engine.post(Opened(2))
    assert stage.core.heard == [Opened(1)]
    assert stage.done == [Exit(0, "done")]


def test_a_second_signal_does_not_wait_for_a_blocking_effect() -> None:
    stage = Stage()
    stage.blocking = {"save"}
    stage.core.answers = {
        Opened(1): [log("save"), log("broadcast")],
        Stop(2): [Exit(130, "second signal", at_once=True)],
    }
    stage.engine.post(Opened(1))
    stage.engine.post(Stop(2))
    assert stage.done == [log("save"), Exit(130, "second signal", at_once=True)]


def test_a_first_signal_waits_its_turn() -> None:
    stage = Stage()
    stage.blocking = {"save"}
    stage.core.answers = {Opened(1): [log("save")], Stop(15): [Exit(0, "stopped")]}
    stage.engine.post(Opened(1))
    stage.engine.post(Stop(15))
    assert stage.done == [log("save")]
    stage.engine.resume(None)
    assert stage.done == [log("save"), Exit(0, "stopped")]


def test_the_line_is_congested_while_too_many_effects_wait() -> None:
    stage = Stage()
    stage.blocking = {"save"}
    stage.core.answers = {Opened(1): [log("save")], Opened(2): [SetTimer(None)] * (BACKLOG + 1)}
    stage.engine.post(Opened(1))
    assert not stage.engine.congested
    stage.engine.post(Opened(2))
    assert stage.engine.congested
    stage.engine.resume(None)
    assert not stage.engine.congested
    assert len(stage.done) == BACKLOG + 2


# -- tape


@pytest.mark.rule("syncer.tape.lines")
def test_the_tape_appends_whole_lines_and_repairs_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2,"fra')
    tape = Tape(path, clock=lambda: 1_700_000_000.12345)
    tape.append({"step": 3, "text": "ü\n", "none": None, "real": 0.5})
    assert path.read_bytes().endswith(b"\n"), "a line is complete as soon as it is appended"
    tape.close()
    lines = path.read_bytes().split(b"\n")
    assert lines[:2] == [b'{"step":1}', b'{"step":2,"fra']
    record = {"step": 3, "text": "ü\n", "none": None, "real": 0.5}
    assert json.loads(lines[2]) == record | {"time": 1_700_000_000.123}
    assert lines[3:] == [b""]


def test_a_tape_that_ends_with_a_whole_line_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(b'{"step":1}\n')
    Tape(path).close()
    assert path.read_bytes() == b'{"step":1}\n'


def test_a_tape_that_cannot_be_written_raises() -> None:
    tape = Tape(Path("/dev/full"))
    with pytest.raises(OSError, match="No space"):
        tape.append({"step": 1})
    tape.close()


# -- log


def lines(style: str, level: str, *records: tuple[str, str, dict[str, object]]) -> list[str]:
    stream = io.StringIO()
    writer = LogWriter(stream, style, level)
    for record in records:
        writer.write(*record)
    return stream.getvalue().splitlines()


def test_human_lines_hold_message_and_fields_in_order() -> None:
    (line,) = lines("human", "info", ("info", "outer step", {"step": 3, "gnorm": 0.123456789, "who": "a b"}))
    assert line.split(" ", 1)[1] == 'info    outer step step=3 gnorm=0.123457 who="a b"'


def test_json_lines_are_objects() -> None:
    (line,) = lines("json", "info", ("warning", "dropped", {"id": 1, "members": [1, 2], "path": Path("x")}))
    record = json.loads(line)
    record.pop("time")
    assert record == {"level": "warning", "message": "dropped", "id": 1, "members": [1, 2], "path": "x"}


def test_lines_below_the_level_are_not_written() -> None:
    assert len(lines("human", "warning", ("info", "a", {}), ("warning", "b", {}), ("error", "c", {}))) == 2


@pytest.mark.parametrize("style", ["human", "json"])
def test_no_control_character_reaches_the_terminal(style: str) -> None:
    evil = "\x1b[2J\r\n\x07 " + "\u202e"
    (line,) = lines(style, "info", ("info", f"refused: {evil}", {"text": evil, "odd=key": evil}))
    assert not set(line) & {"\x1b", "\r", "\n", "\x07"}


def test_a_closed_stream_is_not_an_error() -> None:
    stream = io.StringIO()
    stream.close()
    LogWriter(stream).write("info", "nobody listens")


# -- workers


def test_work_runs_on_a_daemon_thread_and_its_result_comes_back_to_the_loop() -> None:
    loop = Loop()
    workers = Workers("test", 2, loop)
    seen: list[object] = []

    def done(future: Future[tuple[str, bool]]) -> None:
        seen.extend(future.result())

    workers.submit(lambda: (threading.current_thread().name, threading.current_thread().daemon), done)
    loop.turn()
    assert seen[0] in ("test-0", "test-1") and seen[1] is True
    assert workers.close(WAIT_S)


def test_an_error_of_the_work_is_raised_where_the_result_is_asked_for() -> None:
    loop = Loop()
    workers = Workers("test", 1, loop)
    caught: list[BaseException | None] = []
    workers.submit(lambda: 1 // 0, lambda future: caught.append(future.exception()))
    loop.turn()
    assert isinstance(caught[0], ZeroDivisionError)
    assert workers.close(WAIT_S)
    with pytest.raises(ZeroDivisionError):
        settled(lambda: 1 // 0).result()


def test_an_idle_thread_keeps_nothing_alive() -> None:
    loop = Loop()
    workers = Workers("test", 1, loop)
    array = np.zeros(10, np.float32)
    held = weakref.ref(array)
    workers.submit(lambda kept=array: kept, lambda future: None)
    del array
    loop.turn()
    done = threading.Event()
    workers.submit(done.set, lambda future: None)
    assert done.wait(WAIT_S)
    loop.turn()
    assert workers.close(WAIT_S)
    assert held() is None


def test_close_tells_when_a_thread_is_still_at_work() -> None:
    loop = Loop()
    workers = Workers("test", 1, loop)
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(WAIT_S)

    workers.submit(work, lambda future: None)
    assert started.wait(WAIT_S)
    assert not workers.close(0.01)
    release.set()
    assert workers.close(WAIT_S)


def test_map_gives_results_in_order_and_raises_the_first_error(pool: Workers) -> None:
    assert list(pool.map(lambda item: item * item, range(50))) == [item * item for item in range(50)]
    with pytest.raises(ZeroDivisionError):
        list(pool.map(lambda item: 1 // item, [2, 0, 1]))


# -- payloads


def fragment(version: int, size: int = 100, fragment_id: int = 0) -> Versioned:
    params = np.random.default_rng(version).normal(size=size).astype(np.float32)
    params.flags.writeable = False
    return Versioned(fragment_id, version, params)


def test_f32_is_sent_from_the_arrays_own_memory(pool: Workers) -> None:
    payloads = Payloads(pool)
    source = fragment(1)
    payload = payloads.get(source, Dtype.F32, final=True)
    payload.retain()
    message = payload.message()
    assert isinstance(message, FinalFragment)
    assert np.shares_memory(np.frombuffer(message.tensor, np.float32), source.params)


@pytest.mark.parametrize("size", [100, INLINE_VALUES + 1])
def test_a_version_is_encoded_once_and_shared(size: int, pool: Workers, loop: Loop) -> None:
    payloads = Payloads(pool)
    source, woken = fragment(1, size), []
    first = payloads.get(source, Dtype.BF16, final=False)
    first.retain()
    assert payloads.get(source, Dtype.BF16, final=False) is first
    first.retain()
    for wake in (lambda: woken.append("a"), lambda: woken.append("b")):
        first.want(wake)
    if size > INLINE_VALUES:
        assert not first.ready
        loop.turn()
        assert sorted(woken) == ["a", "b"]
        assert loop.calls.empty(), "it was encoded twice"
    message = first.message()
    assert isinstance(message, BcastFragment)
    assert bytes(message.tensor) == bytes(dtypes.encode(Dtype.BF16, source.params))
    assert first.message().tensor is message.tensor


def test_a_payload_is_freed_by_its_last_user(pool: Workers) -> None:
    payloads = Payloads(pool)
    source = fragment(1)
    payload = payloads.get(source, Dtype.BF16, final=False)
    payload.retain()
    payload.retain()
    payload.want(lambda: None)
    payload.release()
    assert payload.ready and len(payloads) == 1
    held = weakref.ref(source.params)
    del source
    payload.release()
    assert not payload.ready and len(payloads) == 0
    assert held() is None


def test_a_payload_released_while_it_is_encoded_stays_empty(pool: Workers, loop: Loop) -> None:
    payloads = Payloads(pool)
    payload = payloads.get(fragment(1, INLINE_VALUES + 1), Dtype.BF16, final=False)
    payload.retain()
    payload.want(lambda: None)
    payload.release()
    loop.turn()
    assert not payload.ready


def test_bcast_and_final_of_one_version_are_different_payloads(pool: Workers) -> None:
    payloads = Payloads(pool)
    source = fragment(3)
    bcast = payloads.get(source, Dtype.F32, final=False)
    bcast.retain()
    assert payloads.get(source, Dtype.F32, final=True) is not bcast


# -- checks


def session(dtype: Dtype, numel: int) -> Session:
    layout = build_layout({"embed": numel}, 1)
    return Session(dtype, layout.wire(), layout.fingerprint(), bytes(32), None)


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("numel", [1, PART - 1, PART, PART + 1, 2 * PART + 7])
def test_an_init_is_decoded_in_parts_to_the_same_values(dtype: Dtype, numel: int, pool: Workers) -> None:
    bulk = Dtype.BF16 if dtype is Dtype.Q4 else dtype
    values = np.linspace(-7, 11, numel, dtype=np.float32)
    wire = encode(bulk, values, pool.map)
    assert bytes(wire) == bytes(dtypes.encode(bulk, values))
    decoded = examine(InitParams(0, wire), session(dtype, numel), pool.map)
    assert decoded is not None and decoded.flags.aligned
    assert np.array_equal(decoded, dtypes.decode(bulk, wire, numel))


@pytest.mark.rule("init_params.tensor.finite")
@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("place", [0, PART - 1, PART, PART + 5])
def test_the_first_value_that_is_not_finite_is_named_with_its_offset(
    dtype: Dtype, place: int, pool: Workers
) -> None:
    values = np.zeros(PART + 10, np.float32)
    values[[place, -1]] = np.nan
    wire = dtypes.encode(dtype, values)
    for spread in (map, pool.map):
        with pytest.raises(NonFinite) as refused:
            examine(InitParams(0, wire), session(dtype, values.size), spread)
        assert refused.value.offset == place * (4 if dtype is Dtype.F32 else 2)


def test_values_that_do_not_lie_on_a_boundary_are_moved_to_one() -> None:
    values = np.arange(100, dtype=np.float32)
    shifted = memoryview(b"\0" + values.tobytes())[1:]
    decoded = examine(InitParams(0, shifted), session(Dtype.F32, 100))
    assert decoded is not None and decoded.flags.aligned
    assert np.array_equal(decoded, values)


@pytest.mark.rule("push_fragment.delta.finite")
@pytest.mark.rule("push_fragment.delta.scale")
def test_a_push_is_checked_in_the_dtype_of_the_session() -> None:
    for dtype, error in ((Dtype.F32, NonFinite), (Dtype.BF16, NonFinite), (Dtype.Q4, BadScale)):
        good = np.ones(300, np.float32)
        bad = np.array([*good[:-1], np.inf], np.float32)
        assert examine(push(dtype, good), session(dtype, 300)) is None
        with pytest.raises(error):
            examine(push(dtype, bad), session(dtype, 300))


def push(dtype: Dtype, values: np.ndarray[Any, Any]) -> PushFragment:
    return PushFragment(0, 0, 1, 1, 0, 1, 1, 1, dtypes.encode(dtype, values))


@pytest.mark.parametrize("message", [Heartbeat(0, 1), FinalAck(final_global_step=1)])
def test_small_messages_have_nothing_to_check(message: Heartbeat | FinalAck) -> None:
    assert bulk_size(message) == 0
    assert examine(message, session(Dtype.F32, 10)) is None
