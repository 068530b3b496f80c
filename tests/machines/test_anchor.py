"""`anchor`, walked beside the learner's boundary: which anchor answers which pull, and what frees it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.machines.walks import Walks, explore
from yeto_learner.core.boundary import Answer, Boundary
from yeto_learner.core.modes import InstallMode
from yeto_learner.core.records import BcastFragment, FinalManifest, PullRequest
from yeto_proto._generated.machines import ANCHOR, AnchorInput, AnchorState

MIN_STEPS = 2

walks: Walks[AnchorState, AnchorInput] = Walks(ANCHOR)

WITHOUT_EFFECT = [
    (AnchorState.NONE, AnchorInput.PUSH),
    (AnchorState.FINAL, AnchorInput.PUSH),
    (AnchorState.NONE, AnchorInput.RELEASED),
    (AnchorState.FRESH, AnchorInput.RELEASED),
    (AnchorState.FINAL, AnchorInput.RELEASED),
]
"""Pulls that must not be answered, and releases of what is not spent. The link lets no broadcast pass after
the final cut, and a replay is one of a broadcast that is held."""


class Anchors(RuleBasedStateMachine):
    """The anchor of one fragment. Pushes leave in order, each on the link of its time or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.boundary = Boundary(1, MIN_STEPS)
        self.state: AnchorState = ANCHOR.initial
        self.version = 0
        self.arrivals = 0
        self.generation = 1
        self.steps = 0  # local ones since the anchor
        self.spent_for: int | None = None
        self.on_their_way: list[Answer] = []  # of any anchor
        self.serial = 0
        self.reached: int | None = None  # the link on which the last push of this anchor was delivered
        self.delivered = False

    def take(self, happened: AnchorInput) -> None:
        self.state = walks.take(self.state, happened)
        if self.state is not AnchorState.SPENT:
            self.spent_for = None

    @property
    def in_flight(self) -> int:
        return sum(answer.anchor_serial == self.serial for answer in self.on_their_way)

    def install(self, version: int, *, catch_up: bool) -> InstallMode:
        self.arrivals += 1
        update = BcastFragment(
            0, version, b"", 0.0, bytes([version % 251]), catch_up, self.arrivals, self.generation
        )
        mode = self.boundary.mode_of(update)
        self.boundary.installed(update, mode)
        return mode

    @rule(attempt=st.integers(1, 2))
    def train_until_it_may_answer(self, attempt: int) -> None:
        self.train(MIN_STEPS)
        self.pull(1, attempt)

    @rule(steps=st.integers(1, MIN_STEPS))
    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.boundary.count_step(8)
        self.steps += steps

    @rule(newer=st.integers(1, 3), catch_up=st.booleans())
    @precondition(lambda self: self.state is not AnchorState.FINAL)
    def broadcast(self, newer: int, catch_up: bool) -> None:
        held = self.boundary.fragments[0].version
        self.version += newer
        mode = self.install(self.version, catch_up=catch_up)
        assert mode is not InstallMode.CONFIRM
        if not mode.keeps_counters or held is None:
            self.steps = 0
        self.serial += 1
        self.reached, self.delivered = None, False
        self.take(AnchorInput.BROADCAST)

    @rule(catch_up=st.booleans())
    @precondition(lambda self: self.state in (AnchorState.FRESH, AnchorState.SPENT))
    def replay(self, catch_up: bool) -> None:
        assert self.install(self.version, catch_up=catch_up) is InstallMode.CONFIRM
        self.take(AnchorInput.REPLAY)

    @rule(ahead=st.integers(-1, 3), attempt=st.integers(1, 2))
    def pull(self, ahead: int, attempt: int) -> None:
        """A pull comes and is answered, if its anchor may: fresh, or spent on an attempt of the same step."""
        self.arrivals += 1
        step = max(self.version + ahead, 1)
        pull = PullRequest(0, step, attempt, 0.0, self.arrivals, self.generation)
        self.boundary.add_pulls([pull])
        answer = self.boundary.answer(pull)
        spent_for = self.spent_for
        may = self.state is AnchorState.FRESH or (
            self.state is AnchorState.SPENT
            # The second one: the push answered a step that the anchor held already, so it is never merged.
            and (spent_for == step or (spent_for is not None and spent_for <= self.version < step))
        )
        assert (answer is not None) == (may and self.steps >= MIN_STEPS)
        if answer is None:
            self.boundary.pending.remove(pull)
            if self.state in (AnchorState.NONE, AnchorState.FINAL):
                self.take(AnchorInput.PUSH)
            return
        assert (answer.base_version, answer.c_steps) == (self.version, self.steps)
        self.boundary.handed_out(answer)
        self.on_their_way.append(answer)
        self.take(AnchorInput.PUSH)
        self.spent_for = step

    @rule(delivered=st.booleans())
    @precondition(lambda self: self.on_their_way)
    def settle(self, delivered: bool) -> None:
        """The sender is done with the oldest push: it went out on the present link, or it did not."""
        answer = self.on_their_way.pop(0)
        self.boundary.settled(answer, self.generation if delivered else None)
        if answer.anchor_serial != self.serial or self.state is AnchorState.FINAL:
            return
        if delivered:
            self.delivered, self.reached = True, self.generation
        elif not self.delivered and not self.in_flight:
            self.take(AnchorInput.RELEASED)

    @rule()
    def redial(self) -> None:
        self.generation += 1

    @rule()
    def release_replaced(self) -> None:
        """What was spent on a link that is gone may answer again."""
        self.boundary.release_replaced(self.generation)
        if self.state is not AnchorState.SPENT or (not self.in_flight and self.reached != self.generation):
            self.take(AnchorInput.RELEASED)

    @rule(number=st.integers(0, 9))
    @precondition(lambda self: self.state is not AnchorState.FINAL)
    def final_cut(self, number: int) -> None:
        """Not in every example: nothing comes after it. It may be the first thing that a learner gets."""
        if number not in (5, 6):
            return
        self.boundary.finalized(FinalManifest(self.version + 1, (self.version + 1,)))
        self.take(AnchorInput.CUT)
        assert self.boundary.pending == []

    @invariant()
    def the_core_stands_where_the_machine_leads(self) -> None:
        fragment = self.boundary.fragments[0]
        assert fragment.anchor is self.state
        assert fragment.spent_step == self.spent_for


@pytest.mark.timeout(3600)
def test_anchors_go_where_the_machine_leads() -> None:
    explore(Anchors, lambda: walks.missing(WITHOUT_EFFECT), examples=80, steps=30)
