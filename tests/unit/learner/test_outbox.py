"""The bounded send queue: order, back-pressure, closing, and the fate of messages."""

from __future__ import annotations

import threading
import time

import pytest

from yeto_learner import outbox as module
from yeto_learner.outbox import Outbox, Ticket
from yeto_proto._generated.messages import Buffer

WAIT_S = 120.0


class Wire:
    """A peer that takes frames only while its gate is open."""

    def __init__(self, *, open: bool = True) -> None:
        self.frames: list[bytes] = []
        self.entered = threading.Semaphore(0)
        self._gate = threading.Event()
        self._broken = False
        if open:
            self._gate.set()

    def write(self, buffers: list[Buffer]) -> None:
        self.entered.release()
        assert self._gate.wait(WAIT_S)
        if self._broken:
            raise BrokenPipeError
        self.frames.append(b"".join(buffers))

    def open(self) -> None:
        self._gate.set()

    def break_off(self) -> None:
        self._broken = True
        self._gate.set()


class Runner:
    """Runs an outbox on a thread of its own."""

    def __init__(self, outbox: Outbox, wire: Wire) -> None:
        self.error: OSError | None = None

        def run() -> None:
            try:
                outbox.run(wire.write)
            except OSError as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


class Fate:
    def __init__(self) -> None:
        self.known = threading.Event()
        self.delivered: bool | None = None

    def __call__(self, delivered: bool) -> None:
        assert self.delivered is None, "settled twice"
        self.delivered = delivered
        self.known.set()


def test_frames_are_written_in_order_and_the_message_settles_with_the_last() -> None:
    outbox, wire, fate = Outbox(), Wire(), Fate()
    ticket = Ticket(fate)
    runner = Runner(outbox, wire)
    for number in range(5):
        assert outbox.put([b"%d" % number, b"!"], ticket)
    assert fate.delivered is None  # the sender may still add frames
    ticket.written()
    assert fate.known.wait(WAIT_S)
    assert fate.delivered is True
    outbox.close()
    runner.join()
    assert wire.frames == [b"0!", b"1!", b"2!", b"3!", b"4!"]


def test_a_full_queue_makes_the_sender_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    outbox, wire = Outbox(), Wire(open=False)
    runner = Runner(outbox, wire)
    assert outbox.put([bytes(60)])
    assert outbox.put([bytes(40)])
    assert wire.entered.acquire(timeout=WAIT_S)
    assert outbox.queued_bytes == 100  # a frame that is being written still counts
    with pytest.raises(TimeoutError):
        outbox.put([b"x"], deadline=time.monotonic() + 0.01)
    wire.open()
    assert outbox.put([b"x"], deadline=time.monotonic() + WAIT_S)
    outbox.close()
    runner.join()


def full(outbox: Outbox) -> bool:
    try:
        return not outbox.put([b"x"], deadline=time.monotonic() + 0.01)
    except TimeoutError:
        return True


def test_a_small_frame_goes_before_the_bulk_that_waits_however_much_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_FRAMES", 3)
    outbox, wire = Outbox(), Wire(open=False)
    runner = Runner(outbox, wire)
    for part in (b"a", b"b", b"c"):
        assert outbox.put([part])
    assert wire.entered.acquire(timeout=WAIT_S)
    assert outbox.offer([b"1", b"!"])
    assert outbox.offer([b"2"])
    wire.open()
    for _ in range(4):
        assert wire.entered.acquire(timeout=WAIT_S)
    outbox.close()
    runner.join()
    assert wire.frames == [b"a", b"1!", b"2", b"b", b"c"]
    assert outbox.queued_bytes == 0


def test_the_number_of_small_frames_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FIRST", 2)
    outbox = Outbox()
    assert outbox.offer([b"a"])
    assert outbox.offer([b"b"])
    assert not outbox.offer([b"c"])


def test_a_frame_above_the_bound_is_taken_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    outbox = Outbox()
    assert outbox.put([bytes(1000)])
    assert full(outbox)


def test_the_number_of_frames_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FRAMES", 2)
    outbox = Outbox()
    assert outbox.put([b"a"])
    assert outbox.put([b"b"])
    assert full(outbox)


def test_closing_drops_what_waits_and_wakes_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FRAMES", 1)
    outbox, fate = Outbox(), Fate()
    ticket = Ticket(fate)
    assert outbox.put([b"a"], ticket)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(outbox.put([b"b"])))
    waiting.start()
    outbox.close()
    waiting.join(WAIT_S)
    assert answers == [False]
    assert fate.delivered is False
    assert not outbox.put([b"c"])
    assert not outbox.offer([b"d"])


def test_the_fate_of_a_frame_that_is_being_written_is_its_writers() -> None:
    outbox, wire, fate = Outbox(), Wire(open=False), Fate()
    ticket = Ticket(fate)
    runner = Runner(outbox, wire)
    assert outbox.put([b"a"], ticket)
    ticket.written()
    assert wire.entered.acquire(timeout=WAIT_S)
    outbox.close()
    assert fate.delivered is None
    wire.open()
    runner.join()
    assert fate.delivered is True


def test_a_failed_write_loses_the_message() -> None:
    outbox, wire, fate = Outbox(), Wire(open=False), Fate()
    ticket = Ticket(fate)
    runner = Runner(outbox, wire)
    assert outbox.put([b"a"], ticket)
    ticket.written()
    wire.break_off()
    runner.join()
    assert isinstance(runner.error, BrokenPipeError)
    assert fate.delivered is False


def test_a_message_over_two_queues_is_lost_with_either() -> None:
    first, second, wire, fate = Outbox(), Outbox(), Wire(), Fate()
    ticket = Ticket(fate)
    runner = Runner(first, wire)
    assert first.put([b"a"], ticket)
    assert second.put([b"b"], ticket)
    ticket.written()
    second.close()
    assert fate.known.wait(WAIT_S)
    assert fate.delivered is False
    first.close()
    runner.join()
