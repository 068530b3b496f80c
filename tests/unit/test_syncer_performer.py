"""Folds and merges in the shell: off the loop, in the order of their effects, errors told to the core."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from tests.unit.test_syncer_shell import WAIT_S, Loop
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_proto.pool import BufferPool
from yeto_syncer.core.effects import Fold, Merge
from yeto_syncer.core.events import Event, Folded, Merged, MergeFailed
from yeto_syncer.core.jobs import F32, Accumulator, Answer, FoldJob, Link, MergeJob, MergeTensors
from yeto_syncer.shell.counters import Counters
from yeto_syncer.shell.performer import INLINE_MERGE, Performer


class Line:
    """The engine: keeps the events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def post(self, event: Event) -> None:
        self.events.append(event)

    def resume(self, event: Event | None, failed: bool = False) -> None:
        raise AssertionError("nothing here holds back effects")


class Desk:
    """A performer without sockets or files."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.line = Line()
        self.performer = Performer(
            cast(Any, self.loop),
            Mock(),
            Mock(),
            None,
            Mock(),
            map,
            None,
            lambda exit: None,
            BufferPool(),
            Counters(),
        )
        self.performer.connect(self.line)

    def until(self, count: int) -> list[Event]:
        """Turn the loop until there are so many events."""
        while len(self.line.events) < count:
            self.loop.turn()
        return self.line.events


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    assert made.performer.close(WAIT_S)


def layout(size: int) -> MergeTensors:
    return MergeTensors(MergeMode.AVG, np.array([size], np.uint64), None)


def fold(into: Accumulator, learner: int, delta: F32) -> Fold:
    answer = Answer(Link(learner, 1), 1.0, Dtype.F32, delta.tobytes())
    momentum = np.zeros(into.values.size, np.float32)
    return Fold(FoldJob(1, 1, 0, momentum, layout(into.values.size), answer, False, into))


@pytest.mark.rule("syncer.fold.on_arrival")
@pytest.mark.parametrize("size", [4, INLINE_MERGE + 1], ids=["inline", "thread"])
def test_folds_run_in_the_order_of_their_effects_and_the_merge_after_them(desk: Desk, size: int) -> None:
    """2^24 + 1 - 2^24 is 0 in f32, and 1 when the last two change places."""
    into = Accumulator(layout(size))
    for learner, value in enumerate((-(2.0**24), -1.0, 2.0**24)):
        assert not desk.performer(fold(into, learner, np.full(size, value, np.float32))), "nothing waits"
    assert desk.until(3) == [Folded(1, 1)] * 3
    assert not into.values.any()
    zeros = np.zeros(size, np.float32)
    desk.performer(Merge(MergeJob(1, 1, 0, zeros, zeros, layout(size), (), 1.0, 0.0, False, into)))
    merged = desk.until(4)[3]
    assert isinstance(merged, Merged) and merged.result is not None and merged.result.gnorm == 0.0


def test_large_folds_leave_the_loop_alone(desk: Desk) -> None:
    size = INLINE_MERGE + 1
    entered, release = threading.Event(), threading.Event()
    into = Accumulator(layout(size))

    def slowly(function: Any, items: Any) -> Any:
        entered.set()
        assert release.wait(WAIT_S)
        return map(function, items)

    desk.performer._spread = slowly
    desk.performer(fold(into, 0, np.ones(size, np.float32)))
    assert entered.wait(WAIT_S) and not desk.line.events
    release.set()
    assert desk.until(1) == [Folded(1, 1)]


@pytest.mark.parametrize("size", [4, INLINE_MERGE + 1], ids=["inline", "thread"])
def test_a_fold_that_raises_is_told_like_a_merge_that_does(desk: Desk, size: int) -> None:
    into = Accumulator(layout(size))
    desk.performer(fold(into, 0, np.zeros(3, np.float32)))
    (event,) = desk.until(1)
    assert isinstance(event, MergeFailed) and (event.step, event.attempt) == (1, 1)
    assert event.reason.startswith("BadArgument: ")


@pytest.mark.parametrize("size", [4, INLINE_MERGE + 1], ids=["inline", "thread"])
def test_the_bytes_of_an_answer_are_gone_once_it_is_folded(desk: Desk, size: int) -> None:
    class Bytes(bytearray):
        """A buffer whose end can be seen."""

    into = Accumulator(layout(size))
    delta = Bytes(4 * size)
    alive = weakref.ref(delta)
    answer = Answer(Link(0, 1), 1.0, Dtype.F32, cast(Any, delta))
    del delta
    momentum = np.zeros(size, np.float32)
    desk.performer(Fold(FoldJob(1, 1, 0, momentum, layout(size), answer, False, into)))
    del answer
    desk.until(1)
    # The thread lets go of its work a moment after it has handed the result over.
    desk.performer(fold(into, 1, np.ones(size, np.float32)))
    desk.until(2)
    assert alive() is None
