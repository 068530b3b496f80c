"""A decoupled run in virtual time: the real coordinator, and learners that train, fail and come back.

Of a learner only time and counting are simulated, the counting by the learner's own `Boundary`. Values never
decide when something happens, so a merge returns its parameters unchanged.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

import numpy as np

from tests.study.failures import Gaps
from tests.study.setting import (
    BULK_S,
    CONTROL_S,
    FRAGMENTS,
    MERGE_S,
    PACE_SPREAD,
    PIPELINE,
    STEP_S,
    SYNC_STEPS,
    Point,
)
from yeto_learner.core.boundary import Answer, Boundary
from yeto_learner.core.records import BcastFragment, PullRequest
from yeto_proto._generated.messages import Hello, InitParams, PullReq, PushFragment
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_proto.files import Snapshot
from yeto_proto.session import WireLayout
from yeto_syncer.core.config import Config
from yeto_syncer.core.coordinator import Coordinator
from yeto_syncer.core.effects import (
    AppendTape,
    Deliver,
    Effect,
    Exit,
    Merge,
    Refuse,
    Save,
    Send,
    SetTimer,
)
from yeto_syncer.core.events import (
    Delivered,
    Disconnected,
    Event,
    HelloReceived,
    Merged,
    Opened,
    Received,
    Saved,
    Stop,
    Tick,
)
from yeto_syncer.core.jobs import Link, MergeResult

WARM_UP_S: Final = 120.0  # before the first failure; the run is observed from then on
SETTLE_S: Final = 48.0  # how long a run is played after a change before its rates are taken for lasting
MEASURE_S: Final = 2.0 * SYNC_STEPS * STEP_S  # how long these are measured: two turns of all fragments
TOTAL_STEPS: Final = 2**40  # never reached
LAYOUT: Final = WireLayout.build([(MergeMode.AVG, [1], None)] * FRAGMENTS)
DELTA: Final = np.zeros(1, np.float32).tobytes()
NAME: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to in its observed time.

    `steps`: completed inner steps as a share of those of learners that never fail. `merged`: the same for the
    tokens of all merged answers, as the ledger counts them. `failures` and `rounds` are numbers, `answers` is
    the mean number of answers merged in a round.
    """

    steps: float
    merged: float
    failures: int
    rounds: int
    answers: float


class Learner:
    """One learner: its life between failures, and the boundary after each of its steps."""

    def __init__(self, world: World, number: int, pace: float) -> None:
        self.world, self.number, self.pace = world, number, pace
        self.generation = 0
        self.up = False
        self.conn = 0
        self.boundary = Boundary(FRAGMENTS)
        self.inbox: list[BcastFragment] = []
        self._sequence = 0

    @property
    def link(self) -> Link:
        return Link(self.number, self.generation)

    def start(self) -> None:
        """Connect anew. Training begins when the catch-up has come."""
        world = self.world
        self.generation += 1
        self.boundary = Boundary(FRAGMENTS)
        self.inbox.clear()
        self.up = True
        self.conn = world.conn()
        hello = Hello(self.number, self.generation, Dtype.F32, LAYOUT, NAME, NAME, None, 0)
        world.feed(Opened(self.conn), HelloReceived(self.conn, hello))

    def fail(self) -> None:
        """The process is gone, and with it whatever it had on the way."""
        self.up = False
        self.world.feed(Disconnected(self.conn))

    def alive(self, generation: int) -> bool:
        return self.up and self.generation == generation

    def step(self, generation: int) -> None:
        """One inner step has ended: install what came, answer what was asked."""
        if not self.alive(generation):
            return
        world, boundary = self.world, self.boundary
        world.later(self.pace, partial(self.step, generation))
        boundary.count_step(1)
        world.count_step()
        for update in self.inbox:
            boundary.installed(update, boundary.mode_of(update))
        self.inbox.clear()
        for pull in list(boundary.pending):
            answer = boundary.answer(pull)
            if answer is not None:
                boundary.handed_out(answer)
                world.later(BULK_S, partial(self._pushed, generation, answer))

    def _pushed(self, generation: int, answer: Answer) -> None:
        if not self.alive(generation):
            return
        self.boundary.settled(answer, generation)
        push = PushFragment(
            self.number,
            answer.pull.fragment_id,
            answer.pull.global_step,
            answer.pull.round_attempt,
            answer.base_version,
            answer.local_step,
            answer.c_steps,
            answer.c_tokens,
            DELTA,
        )
        self.world.feed(Received(self.conn, self.link, push))

    def asked(self, generation: int, pull: PullReq) -> None:
        if self.alive(generation):
            self._sequence += 1
            request = PullRequest(
                pull.fragment_id,
                pull.global_step,
                pull.round_attempt,
                sequence=self._sequence,
                generation=generation,
            )
            self.boundary.add_pulls([request])

    def told(self, generation: int, fragments: tuple[tuple[int, int], ...], token: int | None) -> None:
        """Broadcasts have come. The first ones of a connection are its catch-up: now it trains."""
        if not self.alive(generation):
            return
        for fragment, version in fragments:
            self._sequence += 1
            update = BcastFragment(fragment, version, b"", sequence=self._sequence, generation=generation)
            self.inbox.append(update)
        if token is not None:
            self.world.feed(Delivered(self.link, token))
            self.world.later(self.pace, partial(self.step, generation))


class World:
    """One point of the grid, played once. Everything that takes time is on one heap; a seed replays it."""

    def __init__(self, point: Point, seed: int) -> None:
        self.point = point
        self.rng = Random(f"{seed} {point}")
        self.now = 0.0
        self.config = Config(
            learners=point.learners,
            quorum=point.quorum,
            quorum_timeout_s=point.quorum_timeout_s,
            total_steps=TOTAL_STEPS,
            pipeline=PIPELINE,
            grace_ms=2000,
            sync_interval_steps=SYNC_STEPS,
            checkpoint_path="state.ckpt",
            checkpoint_every=0,
            event_tape="tape.jsonl",
        )
        assert self.config.validate() == []
        self.core = Coordinator(self.config)
        self.ledger: Snapshot | None = None
        self.exit: Exit | None = None
        self.tokens = 0  # of all answers merged so far
        self.failures = self.rounds = self.answers = self.steps = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._changes: list[tuple[float, int, Callable[[], None]]] = []  # failures and returns
        self._life = 0.0  # the clock by which learners fail: it runs on while the other one is not played
        self._commits: list[tuple[float, int]] = []  # time and tokens merged so far, of each commit of late
        self._order = 0
        self._conns = 0
        self._timer: float | None = None
        self._gaps = Gaps(self.rng, point.mean_s)
        count = point.learners
        spread = [number / (count - 1) - 0.5 for number in range(count)] if count > 1 else [0.0]
        self.learners = [
            Learner(self, number, STEP_S * (1.0 + PACE_SPREAD * spread[number])) for number in range(count)
        ]

    # -- time ------------------------------------------------------------------------------------------------

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Do this after so many seconds; what is due at one moment happens in the order of asking."""
        self._order += 1
        heapq.heappush(self._heap, (self.now + delay, self._order, action))

    def _change(self, delay: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._changes, (self._life + delay, self._order, action))

    def _run_until(self, time: float) -> None:
        while self._heap and self._heap[0][0] <= time:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = time

    def play(self) -> Outcome:
        """Warm up without failures, then observe for the horizon."""
        for learner in self.learners:
            learner.start()
        first = self.learners[0]
        for fragment in range(FRAGMENTS):
            values = np.ones(1, np.float32)
            init = InitParams(fragment, values.tobytes())
            self.feed(Received(first.conn, first.link, init, values))
        self._run_until(WARM_UP_S)
        self.failures = self.rounds = self.answers = self.steps = 0
        before = self.tokens
        if math.isfinite(self.point.mean_s):
            self._begin_failing()
        end = self._life + self.point.horizon_s
        steps = merged = 0.0
        while self._life < end:
            more = self._stretch(min(end, self._changes[0][0] if self._changes else end))
            steps, merged = steps + more[0], merged + more[1]
            if self._life < end:
                heapq.heappop(self._changes)[2]()
        possible = sum(self.point.horizon_s / learner.pace for learner in self.learners)
        outcome = Outcome(
            steps=(self.steps + steps) / possible,
            merged=(self.tokens - before + merged) / FRAGMENTS / possible,
            failures=self.failures,
            rounds=self.rounds,
            answers=self.answers / self.rounds if self.rounds else 0.0,
        )
        self._stop()
        return outcome

    def _stretch(self, until: float) -> tuple[float, float]:
        """Play a time in which nobody fails or returns; the end of a long one is counted at the rates that
        were seen before it. Returns the steps and tokens of that end."""
        length, self._life = until - self._life, until
        rest = length - SETTLE_S - MEASURE_S
        if rest <= 0.0:
            self._run_until(self.now + length)
            return 0.0, 0.0
        self._run_until(self.now + SETTLE_S)
        self._commits.clear()
        self._run_until(self.now + MEASURE_S)
        steps = sum(rest / learner.pace for learner in self.learners if learner.up)
        if len(self._commits) < 2:
            return steps, 0.0
        (began, before), (ended, after) = self._commits[0], self._commits[-1]
        return steps, rest * (after - before) / (ended - began)

    # -- failures --------------------------------------------------------------------------------------------

    def _begin_failing(self) -> None:
        """Put each learner where a long history would have left it: at work with a fresh working time ahead
        (it has no memory), or somewhere in a restart."""
        mean, restart = self.point.mean_s, self.point.restart_s
        away = restart / (mean + restart)
        for place, learner in enumerate(self.rng.sample(self.learners, len(self.learners))):
            # One draw from each quantile range, like the working times.
            draw = (place + self.rng.random()) / len(self.learners)
            if draw < away:
                learner.fail()
                self._change(restart * draw / away, partial(self._connect, learner))
            else:
                self._change(self._gaps.next(), partial(self._fail, learner))

    def _fail(self, learner: Learner) -> None:
        self.failures += 1
        learner.fail()
        # The catch-up is a part of the restart, and it is the last one.
        self._change(self.point.restart_s - BULK_S, partial(self._connect, learner))

    def _connect(self, learner: Learner) -> None:
        learner.start()
        self._change(BULK_S + self._gaps.next(), partial(self._fail, learner))

    # -- the syncer ------------------------------------------------------------------------------------------

    def conn(self) -> int:
        self._conns += 1
        return self._conns

    def count_step(self) -> None:
        self.steps += 1

    def feed(self, *events: Event) -> None:
        """Give events to the coordinator and let what it asks for take its time."""
        for event in events:
            for effect in self.core.step(self.now, event):
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SetTimer(at):
                self._timer = at
                self.later(at - self.now, partial(self._tick, at))
            case Send(link, PullReq() as pull):
                learner = self.learners[link.learner_id]
                self.later(CONTROL_S, partial(learner.asked, link.generation, pull))
            case Deliver(links, fragments, _, token):
                told = tuple((each.fragment_id, each.version) for each in fragments)
                for link in links:
                    learner = self.learners[link.learner_id]
                    self.later(BULK_S, partial(learner.told, link.generation, told, token))
            case Merge(job):
                result = MergeResult(job.params, job.momentum, 0.0)
                self.later(MERGE_S, partial(self.feed, Merged(job.step, job.attempt, result)))
            case AppendTape(record):
                if "event" not in record:
                    self._committed(record["responders"])  # type: ignore[arg-type]  # as the spec has it
            case Save(snapshot, kind):
                self.ledger = snapshot
                self.later(0.0, partial(self.feed, Saved(kind, snapshot.global_step)))
            case Refuse(_, error):
                raise AssertionError(f"a learner was refused: {error}")
            case Exit():
                self.exit = effect
            case _:
                pass  # counters, log lines, sockets

    def _committed(self, responders: list[dict[str, int]]) -> None:
        self.rounds += 1
        self.answers += len(responders)
        self.tokens += sum(each["c_tokens"] for each in responders)
        self._commits.append((self.now, self.tokens))

    def _tick(self, at: float) -> None:
        if self._timer == at:
            self._timer = None
            self.feed(Tick())

    def _stop(self) -> None:
        """A graceful stop, so that the ledger of the checkpoint can be held against the tape."""
        for learner in self.learners:
            if learner.up:
                learner.fail()
        self.feed(Stop(15))
        self._run_until(self.now + 2.0 * self.config.shutdown_timeout_s)
        assert self.exit is not None and self.exit.code == 0 and self.ledger is not None, self.exit
        assert sum(entry.tokens for entry in self.ledger.ledger.values()) == self.tokens


def play(point: Point, seed: int) -> Outcome:
    """Play one point of the grid."""
    return World(point, seed).play()
