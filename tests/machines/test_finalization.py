"""`finalization`, walked beside the coordinator: cuts that leave, ACKs, lost learners, redials, deadlines."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.machines.walks import Walks, explore
from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, training
from yeto_proto._generated.machines import FINALIZATION, FinalizationInput, FinalizationState
from yeto_proto._generated.messages import FinalAck, FinalManifest, Shutdown
from yeto_syncer.core.events import Delivered, Tick
from yeto_syncer.core.jobs import Link

OBSERVER = 2
STEPS = 4
PATIENCE = 30.0  # seconds for an ACK
MOST_PEERS = 9

walks: Walks[FinalizationState, FinalizationInput] = Walks(FINALIZATION)

WITHOUT_EFFECT = [
    (FinalizationState.COMPLETE, FinalizationInput.TIMED_OUT),
    (FinalizationState.FAILED, FinalizationInput.TIMED_OUT),
]

OPEN = (FinalizationState.DELIVERING, FinalizationState.ACKS, FinalizationState.CLOSING)


class Terminal(RuleBasedStateMachine):
    """Two learners that must acknowledge, one observer, and all that may happen to them."""

    run: Driver

    @initialize(observed=st.sampled_from((True, True, False)))
    def reach_the_last_step(self, observed: bool) -> None:
        self.run, peers = training(
            config=config(
                total_steps=STEPS,
                observers=(OBSERVER,),
                final_ack_timeout_s=int(PATIENCE),
                min_start_learners=2,
            ),
            peers=3 if observed else 2,
        )
        for _ in range(STEPS):
            self.run.hold_deliveries = len(self.run.tape()) == STEPS - 1
            for peer in peers:
                peer.answer()
        self.state: FinalizationState = FINALIZATION.initial
        self.peers = {peer.link: peer for peer in peers}
        self.expected = {0, 1}
        self.acked: dict[int, Link] = {}
        self.left = dict.fromkeys(self.peers, 0)  # parts of the cut that have left
        self.manifested: set[Link] = set()
        self.first = set(self.peers)
        self.deadline = self.run.now + PATIENCE
        self.let_go: set[Link] = set()

    # -- the walk --------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.state not in OPEN

    def take(self, happened: FinalizationInput) -> None:
        self.state = walks.take(self.state, happened)

    def cuts_left(self) -> None:
        if not self.first and self.state is FinalizationState.DELIVERING:
            self.take(FinalizationInput.CUTS_LEFT)

    def look_at_the_time(self) -> None:
        """What becomes due at any event."""
        if self.state is FinalizationState.CLOSING:
            waited = [link for link in self.live(OBSERVER) if link not in self.manifested]
            if not waited:
                self.take(FinalizationInput.FLUSHED)
            elif self.run.now >= self.deadline:
                self.take(FinalizationInput.TIMED_OUT)
        elif self.state in OPEN and self.run.now >= self.deadline:
            self.take(FinalizationInput.TIMED_OUT)

    def live(self, *learners: int) -> list[Link]:
        return [link for link, peer in self.peers.items() if link.learner_id in learners and peer.connected]

    # -- what happens ----------------------------------------------------------------------------------------

    @rule(choice=st.integers(0, 99))
    @precondition(lambda self: not self.over and self.run.held)
    def one_part_leaves(self, choice: int) -> None:
        event = self.run.held[choice % len(self.run.held)]
        self.run.held.remove(event)
        self.leaves(event)

    def leaves(self, event: Delivered) -> None:
        link = event.link
        self.run.feed(event)
        if not self.peers[link].connected and link not in self.manifested:
            self.look_at_the_time()
            return  # nobody is there any more
        self.left[link] += 1
        if link in self.first:
            self.deadline = self.run.now + PATIENCE
        if self.left[link] == 3:
            self.first.discard(link)
            self.manifested.add(link)
            assert len(list(self.peers[link].messages(FinalManifest))) == 1
            self.cuts_left()
        self.look_at_the_time()

    @rule(learners=st.sampled_from(((0,), (1,), (0, 1), (0, 1), (OBSERVER,))))
    @precondition(lambda self: not self.over and self.run.held)
    def everything_leaves(self, learners: tuple[int, ...]) -> None:
        for event in [each for each in self.run.held if each.link.learner_id in learners]:
            if not self.over:
                self.run.held.remove(event)
                self.leaves(event)

    def owing(self) -> list[Link]:
        """The generations whose ACK would count."""
        return [
            link for link in self.live(0, 1) if link in self.manifested and link.learner_id not in self.acked
        ]

    @rule()
    @precondition(lambda self: not self.over and self.owing())
    def acknowledge(self) -> None:
        self.ack(self.owing()[0], STEPS)

    @rule(choice=st.integers(0, 99), step=st.sampled_from((STEPS, STEPS, STEPS - 1, STEPS + 1)))
    @precondition(lambda self: not self.over and self.live(0, 1))
    def acknowledge_anyhow(self, choice: int, step: int) -> None:
        """An ACK, perhaps of another step, perhaps of a generation that did not get the whole cut."""
        live = self.live(0, 1)
        self.ack(live[choice % len(live)], step)

    def ack(self, link: Link, step: int) -> None:
        self.peers[link].send(FinalAck(final_global_step=step))
        if step == STEPS and link in self.owing():
            self.acked[link.learner_id] = link
            if self.state is FinalizationState.CLOSING:
                self.let_go.add(link)
            elif self.expected <= set(self.acked):
                self.take(FinalizationInput.LAST_ACK)
                self.let_go |= {each for each in self.acked.values() if self.peers[each].connected}
        self.look_at_the_time()

    @rule(choice=st.integers(0, 99), learner=st.sampled_from((0, 1, OBSERVER, None)))
    @precondition(lambda self: not self.over)
    def leave(self, choice: int, learner: int | None) -> None:
        live = [] if learner is None else self.live(learner)
        if not live:
            return
        link = live[choice % len(live)]
        self.peers[link].close()
        self.first.discard(link)
        self.cuts_left()
        self.look_at_the_time()

    @rule(learner=st.integers(0, OBSERVER))
    @precondition(lambda self: not self.over and len(self.peers) < MOST_PEERS)
    def return_(self, learner: int) -> None:
        """A new generation: the cut again, if its learner still owes its ACK."""
        before = self.live(learner)
        peer = Peer(self.run, learner, 100 + len(self.peers))
        for link in before:
            if not self.peers[link].connected:  # one of many older ones, which nothing needs
                assert link not in before[-1:] and link not in self.acked.values()
                self.first.discard(link)
        self.peers[peer.link] = peer
        self.left[peer.link] = 0
        owes = learner == OBSERVER or learner not in self.acked
        assert bool(self.run.cuts[peer.link]) == owes
        if not owes:
            self.left[peer.link] = -1  # nothing comes
        self.cuts_left()
        self.look_at_the_time()

    @rule(seconds=st.sampled_from((0.5, 1.0, 3.0)), long=st.integers(0, 6))
    @precondition(lambda self: not self.over)
    def wait(self, seconds: float, long: int) -> None:
        """Mostly a moment, now and then so long that little is left or nothing."""
        if long == 6:
            seconds += PATIENCE - 2.0
        self.run.wait(seconds)
        self.look_at_the_time()

    @rule()
    @precondition(lambda self: self.over)
    def time_goes_on(self) -> None:
        """Nothing follows an exit."""
        self.take(FinalizationInput.TIMED_OUT)
        assert self.run.core.step(self.run.now + 2 * PATIENCE, Tick()) == []

    # -- where the core stands -------------------------------------------------------------------------------

    @invariant()
    def the_core_stands_where_the_machine_leads(self) -> None:
        core = self.run.core._run.finalization
        assert core is not None
        assert core.state is self.state
        if self.state is FinalizationState.FAILED:
            assert self.run.exit is not None and self.run.exit.code == 1
            missing = ", ".join(map(str, sorted(self.expected - set(self.acked))))
            assert f"from learner {missing} within" in self.run.exit.message
        elif self.state is FinalizationState.COMPLETE:
            assert self.run.exit is not None and self.run.exit.code == 0
        else:
            assert self.run.exit is None
            assert core.missing == sorted(self.expected - set(self.acked))
        told = {link for link, inbox in self.run.inbox.items() if any(isinstance(m, Shutdown) for m in inbox)}
        assert told == self.let_go


@pytest.mark.timeout(3600)
def test_the_terminal_exchange_goes_where_the_machine_leads() -> None:
    explore(Terminal, lambda: walks.missing(WITHOUT_EFFECT), examples=120, steps=25)
