"""`round`, walked beside the coordinator: every transition has its reason outside, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.machines.walks import Walks, explore
from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, training
from yeto_proto._generated.machines import ROUND, RoundInput, RoundState
from yeto_proto._generated.messages import BudgetDone, PullReq
from yeto_syncer.core.effects import Effect, Merge, Send
from yeto_syncer.core.events import Stop
from yeto_syncer.core.rounds import Round

LEARNERS = 3
QUORUM = 2
GRACE = 4.0  # seconds; nobody tells a step time, so each window is as long as it may be
TIMEOUT = 15.0
SHARE = 0.9  # of the capacity, which is the same for everybody: all three of them
SOFT = 6.0
STOPPING = 8.0
BUDGET_STEPS = 1000
FRAGMENTS = 3
RARE = st.integers(0, 6)  # what ends a run happens at 4 only

walks: Walks[RoundState, RoundInput] = Walks(ROUND)

GATHERS = (RoundState.GATHERING, RoundState.GRACE)


@dataclass
class Seen:
    """One step as it looks from outside."""

    state: RoundState = ROUND.initial
    attempt: int = 0
    asked: set[int] = field(default_factory=set)
    asked_at: float = 0.0
    answers: set[int] = field(default_factory=set)
    quorum_at: float = 0.0


@dataclass
class Taken:
    """A transition that the core has made, and when."""

    step: int
    state: RoundState
    happened: RoundInput
    at: float


@dataclass
class Asked:
    """A PULL_REQ that has left, and when."""

    learner: int
    pull: PullReq
    at: float


@contextmanager
def told_to(log: list[Taken | Asked], run: Driver) -> Iterator[None]:
    """Log what the core's rounds take."""
    real = Round.take

    def take(self: Round, happened: RoundInput) -> None:
        log.append(Taken(self.global_step, self.state, happened, run.now))
        real(self, happened)

    with patch.object(Round, "take", take):
        yield


class Rounds(RuleBasedStateMachine):
    """Three learners and at most two rounds side by side, with everything slow that may be slow."""

    run: Driver

    @initialize(capacity=st.booleans(), durable=st.booleans())
    def train(self, capacity: bool, durable: bool) -> None:
        settings = config(
            learners=LEARNERS,
            quorum=QUORUM,
            pipeline=2,
            total_steps=1000,
            grace_ms=int(1000 * GRACE),
            quorum_timeout_s=int(TIMEOUT),
            checkpoint_path="state.ckpt",
            checkpoint_every=1 if durable else 0,
            quorum_capacity=SHARE if capacity else None,
            soft_deadline_s=SOFT if capacity else None,
            shutdown_timeout_s=STOPPING,
            learner_budget_steps=BUDGET_STEPS,
        )
        self.capacity = capacity
        self.durable = durable
        self.log: list[Taken | Asked] = []
        self.run, self.peers = training(config=settings, hold_merges=True, watch=self.see)
        self.run.hold_saves = True
        self.rounds: dict[int, Seen] = {}
        self.committed = 0
        self.refused = 0  # merges in a row that were not finite
        self.stopped_at: float | None = None
        self.gate = False  # the budget gate is closed
        self.wait(TIMEOUT)  # the first attempt of step 1 has one member: its learner was ready first

    # -- what is seen from outside ---------------------------------------------------------------------------

    def see(self, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, PullReq):
            now = self.run.now if hasattr(self, "run") else 0.0  # the first ones come before it is there
            self.log.append(Asked(effect.link.learner_id, effect.message, now))

    def ask(self, asked: Asked) -> None:
        """The first PULL of an attempt begins it."""
        seen = self.rounds.setdefault(asked.pull.global_step, Seen())
        if asked.pull.round_attempt > seen.attempt:
            assert asked.pull.round_attempt == seen.attempt + 1
            seen.attempt, seen.asked, seen.answers = asked.pull.round_attempt, set(), set()
            seen.asked_at = asked.at
        seen.asked.add(asked.learner)

    def enough(self, seen: Seen) -> bool:
        if self.capacity:
            return len(seen.answers) >= SHARE * len(seen.asked) and bool(seen.answers)
        return len(seen.answers) >= min(QUORUM, len(seen.asked))

    def check(self, given_up: bool = False) -> None:
        """Each transition since the last look, in order: was there a reason for it?"""
        log, self.log[:] = list(self.log), []
        for taken in log:
            if isinstance(taken, Asked):
                self.ask(taken)
                continue
            seen = self.rounds[taken.step]
            assert taken.state is seen.state
            seen.state = walks.take(seen.state, taken.happened)
            assert self.has_reason(taken, seen, given_up), taken
            if taken.happened is RoundInput.QUORUM_REACHED:
                seen.quorum_at = taken.at
            elif taken.happened is RoundInput.NOT_FINITE:
                seen.answers = set()
            elif taken.happened is RoundInput.MERGED:
                self.committed = taken.step

    def has_reason(self, taken: Taken, seen: Seen, given_up: bool) -> bool:
        first = taken.step == self.committed + 1
        all_answered = bool(seen.answers) and seen.answers == seen.asked
        match taken.happened:
            case RoundInput.QUORUM_REACHED:
                return self.enough(seen) and not all_answered
            case RoundInput.ALL_ANSWERED:
                return all_answered
            case RoundInput.GRACE_OVER:
                return taken.at >= seen.quorum_at + GRACE and not all_answered
            case RoundInput.SOFT_DEADLINE:
                late = taken.at >= seen.asked_at + SOFT
                return self.capacity and late and len(seen.answers) >= QUORUM and not self.enough(seen)
            case RoundInput.TIMED_OUT:
                return taken.at >= seen.asked_at + TIMEOUT and not self.enough(seen)
            case RoundInput.TURN:
                return first and all_closed(self.rounds, self.committed)
            case RoundInput.MERGED | RoundInput.NOT_FINITE:
                return first
            case RoundInput.DURABLE:
                return taken.step == self.committed
            case _:
                return given_up or self.overdue(taken.at)

    def overdue(self, now: float) -> bool:
        return self.stopped_at is not None and now >= self.stopped_at + STOPPING

    # -- what happens ----------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return self.run.exit is None and not self.gate

    def gathering(self) -> list[tuple[int, Seen, int]]:
        """Every answer that is missing: step, round, learner."""
        return [
            (step, seen, learner)
            for step, seen in self.rounds.items()
            if seen.state in GATHERS
            for learner in sorted(seen.asked - seen.answers)
        ]

    @rule(choice=st.integers(0, 99))
    @precondition(lambda self: self.active and self.gathering() and self.run.saving is None)
    def answer(self, choice: int) -> None:
        missing = self.gathering()
        step, seen, learner = missing[choice % len(missing)]
        self.listen(lambda: self.push(self.peers[learner], step, seen))

    def push(self, peer: Peer, step: int, seen: Seen) -> None:
        accepted = self.run.counted("answers_accepted")
        seen.answers.add(peer.link.learner_id)  # before the core judges it
        peer.push(PullReq((step - 1) % FRAGMENTS, step, seen.attempt))
        assert self.run.counted("answers_accepted") == accepted + 1

    @rule(finite=st.sampled_from((True, True, False)))
    @precondition(lambda self: self.active and self.run.merging is not None)
    def end_the_merge(self, finite: bool) -> None:
        assert self.run.merging is not None
        finite = finite or self.refused == 2
        self.refused = 0 if finite else self.refused + 1
        self.listen(lambda: self.run.finish_merge(finite=finite))

    @rule()
    @precondition(lambda self: self.run.exit is None and self.run.saving is not None)
    def end_the_save(self) -> None:
        self.listen(self.run.finish_save)

    @rule(seconds=st.sampled_from((0.5, GRACE, SOFT, TIMEOUT)))
    @precondition(lambda self: self.active and self.run.saving is None)
    def wait(self, seconds: float) -> None:
        self.listen(lambda: self.run.wait(seconds))

    @rule(rare=RARE)
    @precondition(lambda self: self.active and self.stopped_at is None and self.run.saving is None)
    def stop(self, rare: int) -> None:
        """A signal: rounds in flight may still close, for a while."""
        if rare == 4:
            self.stopped_at = self.run.now
            self.listen(lambda: self.run.feed(Stop(15)))

    @rule(rare=RARE)
    @precondition(lambda self: self.active and self.run.saving is None)
    def close_the_budget_gate(self, rare: int) -> None:
        """The first report of a budget gives every round up that is not committed yet."""
        if rare == 4:
            self.gate = True
            report = BudgetDone(BUDGET_STEPS)
            self.listen(lambda: self.peers[0].send(report), given_up=True)

    @rule()
    @precondition(lambda self: not self.active)
    def nothing_begins(self) -> None:
        merges = len(self.run.of(Merge))
        self.listen(lambda: self.run.wait(0.5))
        assert len(self.run.of(Merge)) == merges

    def listen(self, act: object, *, given_up: bool = False) -> None:
        assert callable(act)
        with told_to(self.log, self.run):
            act()
        self.check(given_up)

    # -- where the core stands -------------------------------------------------------------------------------

    @invariant()
    def the_core_stands_where_the_machine_leads(self) -> None:
        scheduler = self.run.core._run.scheduler
        assert scheduler is not None
        for step, round_ in scheduler._rounds.items():
            assert round_.state is self.rounds[step].state
        for step, seen in self.rounds.items():
            assert (step in scheduler._rounds) == (seen.state not in ROUND.final)
        if self.active:
            self.nothing_that_is_due_is_left_out()

    def nothing_that_is_due_is_left_out(self) -> None:
        now = self.run.now
        for step, seen in self.rounds.items():
            if self.run.saving is not None:
                continue  # the world stands still until the step is durable
            if seen.state is RoundState.GATHERING:
                assert not self.enough(seen)
                assert now < seen.asked_at + TIMEOUT or not seen.asked
                late = self.capacity and now >= seen.asked_at + SOFT
                assert not (late and len(seen.answers) >= QUORUM)
            elif seen.state is RoundState.GRACE:
                assert self.enough(seen) and seen.answers != seen.asked and now < seen.quorum_at + GRACE
            elif seen.state is RoundState.COMPLETE:
                assert step > self.committed + 1, "its turn had come"
            elif seen.state is RoundState.MERGING:
                assert self.run.merging is not None and self.run.merging.step == step
            elif seen.state is RoundState.COMMITTING:
                assert self.run.saving is not None


def all_closed(rounds: dict[int, Seen], committed: int) -> bool:
    """Every step up to this one is committed, and seen."""
    return all(rounds[step].state is RoundState.COMMITTED for step in rounds if step <= committed)


@pytest.mark.timeout(3600)
def test_rounds_go_where_the_machine_leads() -> None:
    explore(Rounds, lambda: walks.missing(), examples=80, steps=45)
