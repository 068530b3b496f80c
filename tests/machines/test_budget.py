"""`budget`, walked beside the coordinator: reports, progress leases, and the checkpoint of the cutoff."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.machines.walks import Walks, explore
from tests.simulation.driver import Driver, Peer, saves
from tests.unit.syncer_core.runs import config, training
from yeto_proto._generated.machines import BUDGET, BudgetInput, BudgetState
from yeto_proto._generated.messages import BudgetDone, FinalManifest, Shutdown
from yeto_syncer.core.coordinator import Phase
from yeto_syncer.core.effects import Exit, Merge, SaveKind, WriteMarker
from yeto_syncer.core.events import Tick

BUDGET_STEPS = 40
PATIENCE = 15.0  # seconds of a lease
STEPS = 3
RARE = st.integers(0, 5)  # what ends a run happens at 5 only

walks: Walks[BudgetState, BudgetInput] = Walks(BUDGET)

SAVED = (BudgetState.SAVING, BudgetState.ENDED)

WITHOUT_EFFECT = [
    (BudgetState.TRAINING, BudgetInput.LEASE_OVER),
    (BudgetState.SAVING, BudgetInput.LEASE_OVER),
    (BudgetState.ENDED, BudgetInput.LEASE_OVER),
    (BudgetState.FAILED, BudgetInput.LEASE_OVER),
    (BudgetState.FAILED, BudgetInput.WRONG_REPORT),
    (BudgetState.ENDED, BudgetInput.WRONG_REPORT),
]
"""Time that passes while no lease runs, and what comes when all is over."""


class Cutoffs(RuleBasedStateMachine):
    """One to three learners of a benchmark."""

    run: Driver

    @initialize(learners=st.integers(1, 3))
    def train(self, learners: int) -> None:
        settings = config(
            learners=learners,
            quorum=learners,
            total_steps=STEPS,
            quorum_timeout_s=int(PATIENCE),
            checkpoint_path="state.ckpt",
            checkpoint_every=0,
            learner_budget_steps=BUDGET_STEPS,
        )
        self.run, self.peers = training(config=settings, hold_saves=True)
        self.state: BudgetState = BUDGET.initial
        self.reported: set[int] = set()
        self.leases: dict[int, float] = {}
        self.merges = 0

    def take(self, happened: BudgetInput) -> None:
        self.state = walks.take(self.state, happened)

    @property
    def over(self) -> bool:
        return self.state in BUDGET.final

    @property
    def missing(self) -> list[int]:
        """Who has not reported."""
        return [learner for learner in range(len(self.peers)) if learner not in self.reported]

    def peer(self, choice: int) -> Peer:
        return self.peers[choice % len(self.peers)]

    def look_at_the_time(self) -> None:
        if self.state is BudgetState.CUTOFF and any(self.run.now >= until for until in self.leases.values()):
            self.take(BudgetInput.LEASE_OVER)

    # -- what happens ----------------------------------------------------------------------------------------

    @rule(choice=st.integers(0, 99))
    @precondition(lambda self: self.missing and not self.over)
    def report(self, choice: int) -> None:
        """A budget is used up."""
        learner = self.missing[choice % len(self.missing)]
        self.peers[learner].send(BudgetDone(BUDGET_STEPS))
        if self.state is BudgetState.TRAINING:
            self.leases = dict.fromkeys(range(len(self.peers)), self.run.now + PATIENCE)
        self.reported.add(learner)
        del self.leases[learner]
        self.take(BudgetInput.REPORT if self.leases else BudgetInput.LAST_REPORT)

    @rule(
        choice=st.integers(0, 99), steps=st.sampled_from((1, BUDGET_STEPS - 1, BUDGET_STEPS + 1)), rare=RARE
    )
    def report_another_number(self, choice: int, steps: int, rare: int) -> None:
        if rare == 5:
            self.peer(choice).send(BudgetDone(steps))
            self.take(BudgetInput.WRONG_REPORT)

    @rule(choice=st.integers(0, 99), rare=RARE)
    @precondition(lambda self: self.reported)
    def report_again(self, choice: int, rare: int) -> None:
        if rare == 5:
            learner = sorted(self.reported)[choice % len(self.reported)]
            self.peers[learner].send(BudgetDone(BUDGET_STEPS))
            self.take(BudgetInput.WRONG_REPORT)

    @rule(choice=st.integers(0, 99), step=st.sampled_from((3, BUDGET_STEPS, BUDGET_STEPS + 1)))
    def beat(self, choice: int, step: int) -> None:
        """Progress renews a lease; a step beyond the budget is none."""
        peer = self.peer(choice)
        peer.heartbeat(step)
        if peer.link.learner_id in self.leases and step <= BUDGET_STEPS and not self.over:
            self.leases[peer.link.learner_id] = self.run.now + PATIENCE
        self.look_at_the_time()

    @rule(learners=st.sampled_from((1, 2, 3)))
    @precondition(lambda self: not self.over)
    def answer(self, learners: int) -> None:
        """Some answer what they are asked: the steps may be used up before any budget."""
        before = len(self.run.tape())
        for peer in self.peers[:learners]:
            peer.answer()
        committed = len(self.run.tape())
        assert committed == before or self.state is BudgetState.TRAINING, "a commit behind the gate"
        if committed == STEPS:
            self.take(BudgetInput.STEPS_OVER)

    @rule(seconds=st.sampled_from((1.0, 6.0, PATIENCE)))
    def wait(self, seconds: float) -> None:
        if self.over or (seconds == PATIENCE and self.state is not BudgetState.CUTOFF):
            self.take(BudgetInput.LEASE_OVER)
        if self.over:
            assert self.run.core.step(self.run.now + seconds, Tick()) == []
            return
        self.run.wait(seconds)
        self.look_at_the_time()

    @rule(works=st.booleans())
    @precondition(lambda self: self.state is BudgetState.SAVING)
    def end_the_save(self, works: bool) -> None:
        self.run.finish_save(None if works else "no space left on device")
        self.take(BudgetInput.SAVED if works else BudgetInput.SAVE_FAILED)

    # -- where the core stands -------------------------------------------------------------------------------

    def core_state(self) -> BudgetState:
        # What follows a save that is still being written waits behind it, the exit too.
        decided = [effect for effect in (*self.run.performed, *self.run._effects) if isinstance(effect, Exit)]
        if decided:
            assert len(decided) == 1
            return BudgetState.ENDED if decided[0].code == 0 else BudgetState.FAILED
        cutoff = self.run.core._run.cutoff
        return BudgetState.TRAINING if cutoff is None else cutoff.state

    @invariant()
    def the_core_stands_where_the_machine_leads(self) -> None:
        assert self.core_state() is self.state
        assert (self.run.core.phase is Phase.DONE) == self.over
        assert (self.run.core.phase is Phase.TRAINING) == (self.state is BudgetState.TRAINING)
        asked = [kind for kind, _ in saves(self.run)]
        if self.state is BudgetState.FAILED:
            assert asked in ([], [SaveKind.CUTOFF])
        else:
            assert asked == ([SaveKind.CUTOFF] if self.state in SAVED else [])
        assert (self.run.disk is not None) <= (self.state is BudgetState.ENDED)
        assert not self.run.of(WriteMarker)
        for peer in self.peers:
            assert not any(isinstance(m, FinalManifest | Shutdown) for m in self.run.inbox[peer.link])
        if self.state is BudgetState.TRAINING:
            self.merges = len(self.run.of(Merge))
        assert len(self.run.of(Merge)) <= self.merges + (self.state is BudgetState.FAILED)


@pytest.mark.timeout(3600)
def test_a_cutoff_goes_where_the_machine_leads() -> None:
    explore(Cutoffs, lambda: walks.missing(WITHOUT_EFFECT), examples=90, steps=25)
