"""`link` and `learner_group`, walked beside the coordinator: sockets and generations of two learners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.machines.walks import Walks, explore
from tests.simulation.driver import CONTRACT, FINGERPRINT, LAYOUT, NUMEL, Driver
from tests.unit.syncer_core.runs import config
from yeto_proto._generated.errors import BadMagic, NonFinite
from yeto_proto._generated.machines import (
    LEARNER_GROUP,
    LINK,
    LearnerGroupInput,
    LearnerGroupState,
    LinkInput,
    LinkState,
)
from yeto_proto._generated.messages import DataHello, Hello, InitParams
from yeto_proto._generated.types import Dtype
from yeto_syncer.core.coordinator import Phase
from yeto_syncer.core.events import DataHelloReceived, Disconnected, Dropped, HelloReceived, Received, Refused
from yeto_syncer.core.jobs import Link

LEARNERS = 2
STREAMS = 2
PATIENCE = 10.0  # seconds of a handshake
MOST_SOCKETS = 10

links: Walks[LinkState, LinkInput] = Walks(LINK)
groups: Walks[LearnerGroupState, LearnerGroupInput] = Walks(LEARNER_GROUP)

NEVER_HEARD = [
    *((LinkState.CLOSED, happened) for happened in LinkInput if happened is not LinkInput.GROUP_MISSING),
    (LinkState.CONTROL, LinkInput.TIMED_OUT),
    (LinkState.DATA, LinkInput.TIMED_OUT),
]
"""What happens to sockets as well, without a word of the specification: nothing may follow from it."""

WITHOUT_EFFECT = [
    (LearnerGroupState.SUPERSEDED, LearnerGroupInput.CUT_LEFT),
    (LearnerGroupState.SUPERSEDED, LearnerGroupInput.REPLACED),
    (LearnerGroupState.GONE, LearnerGroupInput.CUT_LEFT),
    (LearnerGroupState.GONE, LearnerGroupInput.LEFT),
]

chosen = st.integers(0, 1_000_000)


class Connections(RuleBasedStateMachine):
    """Sockets open, greet, break rules, end and time out in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Driver(
            config(learners=LEARNERS, quorum=1, total_steps=1000, handshake_timeout_s=PATIENCE),
            hold_deliveries=True,
        )
        self.sockets: dict[int, LinkState] = {}
        self.opened_at: dict[int, float] = {}
        self.of: dict[int, Link] = {}  # the group of a socket, also of one that waits for it
        self.index: dict[int, int] = {}
        self.groups: dict[Link, LearnerGroupState] = {}
        self.current: dict[int, Link] = {}
        self.taken: dict[Link, set[int]] = {}
        self.initialized = False
        self.training = False
        self.generations = 0

    # -- the walk --------------------------------------------------------------------------------------------

    def socket(self, conn: int, happened: LinkInput) -> None:
        self.sockets[conn] = links.take(self.sockets[conn], happened)

    def group(self, link: Link, happened: LearnerGroupInput) -> None:
        self.groups[link] = groups.take(self.groups[link], happened)

    def leave(self, link: Link, culprit: int | None, how: LinkInput) -> None:
        """A generation ends with all its sockets, the culprit among them in its own way."""
        self.group(link, LearnerGroupInput.LEFT)
        if self.current.get(link.learner_id) == link:
            del self.current[link.learner_id]
        for conn, owner in self.of.items():
            if owner == link and self.sockets[conn] in (LinkState.CONTROL, LinkState.DATA):
                self.socket(conn, how if conn == culprit else LinkInput.GROUP_ENDED)

    def attach(self, conn: int, link: Link) -> None:
        index = self.index[conn]
        if index >= STREAMS or index in self.taken[link]:
            self.socket(conn, LinkInput.REFUSED)
        else:
            self.taken[link].add(index)
            self.socket(conn, LinkInput.STREAM_ATTACHED)

    def begin(self) -> None:
        """Training begins once everybody is there and learner 0 has sent its parameters."""
        if not self.training and self.initialized and len(self.current) == LEARNERS:
            self.training = True
            for link in self.current.values():
                self.group(link, LearnerGroupInput.CUT_QUEUED)

    def a_socket(self, choice: int, *states: LinkState) -> int | None:
        """One in any of these states; first a state is chosen, since some are rare."""
        there = [state for state in states if state in self.sockets.values()]
        if not there:
            return None
        wanted = there[choice % len(there)]
        found = [conn for conn, state in self.sockets.items() if state is wanted]
        return found[choice // len(there) % len(found)]

    def a_group(self, choice: int) -> Link:
        return list(self.groups)[choice % len(self.groups)]

    # -- what happens ----------------------------------------------------------------------------------------

    @initialize(learners=st.integers(0, LEARNERS), streams=st.integers(0, STREAMS), begun=st.booleans())
    def some_are_there(self, learners: int, streams: int, begun: bool) -> None:
        """An example need not begin from nothing."""
        for learner in range(learners):
            self.open()
            self.generations += 1
            link = Link(learner, self.generations)
            self.greet(max(self.sockets), link)
            for index in range(streams):
                self.open()
                self.greet_stream(max(self.sockets), link, index)
        if learners and begun:
            self.initialize()

    @rule()
    @precondition(
        lambda self: (
            len(self.sockets) < MOST_SOCKETS + sum(s is LinkState.CLOSED for s in self.sockets.values())
        )
    )
    def open(self) -> None:
        conn = self.run.conn()
        self.sockets[conn] = LINK.initial
        self.opened_at[conn] = self.run.now

    @rule(choice=chosen, learner=st.integers(0, LEARNERS), repeats=st.booleans())
    def hello(self, choice: int, learner: int, repeats: bool) -> None:
        conn = self.a_socket(choice, LinkState.OPENED, LinkState.CLOSED)
        if conn is None:
            return
        self.generations += 1
        used = [link for link in self.groups if link.learner_id == learner]
        link = Link(learner, self.generations)
        if repeats and used:
            link = used[choice % len(used)]
        self.greet(conn, link)

    @rule(choice=chosen)
    @precondition(lambda self: LinkState.WAITING in self.sockets.values())
    def hello_of_a_group_that_is_waited_for(self, choice: int) -> None:
        self.open()
        waiting = self.a_socket(choice, LinkState.WAITING)
        assert waiting is not None
        self.greet(max(self.sockets), self.of[waiting])

    @rule(choice=chosen)
    @precondition(lambda self: self.current)
    def stream_of_a_current_group(self, choice: int) -> None:
        self.open()
        self.greet_stream(
            max(self.sockets), list(self.current.values())[choice % len(self.current)], choice % STREAMS
        )

    @rule(learner=st.integers(0, LEARNERS - 1))
    def dial(self, learner: int) -> None:
        """A new generation, perhaps while the one before is still there."""
        self.open()
        self.generations += 1
        self.greet(max(self.sockets), Link(learner, self.generations))

    @rule(learner=st.integers(0, LEARNERS - 1))
    def stream_before_its_hello(self, learner: int) -> None:
        self.open()
        self.generations += 1
        self.greet_stream(max(self.sockets), Link(learner, self.generations), 0)

    def greet(self, conn: int, link: Link) -> None:
        hello = Hello(*link, Dtype.F32, LAYOUT, FINGERPRINT, CONTRACT, None, STREAMS)
        self.run.feed(HelloReceived(conn, hello))
        if self.sockets[conn] is LinkState.CLOSED:
            self.socket(conn, LinkInput.HELLO_ACCEPTED)
        elif link.learner_id >= LEARNERS or link in self.groups:
            self.socket(conn, LinkInput.REFUSED)
        else:
            self.socket(conn, LinkInput.HELLO_ACCEPTED)
            self.enter(conn, link)

    def enter(self, conn: int, link: Link) -> None:
        older = [
            other
            for other, state in self.groups.items()
            if other.learner_id == link.learner_id and state is not LearnerGroupState.GONE
        ]
        for other in older:
            self.group(other, LearnerGroupInput.REPLACED)
        self.of[conn] = link
        self.groups[link] = LEARNER_GROUP.initial
        self.taken[link] = set()
        self.current[link.learner_id] = link
        for waiting, owner in list(self.of.items()):
            if owner == link and self.sockets[waiting] is LinkState.WAITING:
                self.attach(waiting, link)
        if self.training:
            self.group(link, LearnerGroupInput.CUT_QUEUED)
        else:
            self.begin()
        for other in older[:-1]:
            if not self.run.core._run.needs(other):
                self.leave(other, None, LinkInput.GROUP_ENDED)

    @rule(choice=chosen, known=st.booleans(), index=st.integers(0, STREAMS))
    def data_hello(self, choice: int, known: bool, index: int) -> None:
        conn = self.a_socket(choice, LinkState.OPENED, LinkState.CLOSED)
        if conn is None:
            return
        self.generations += 1
        link = Link(choice % LEARNERS, self.generations)
        if known and self.groups:
            link = self.a_group(choice)
        self.greet_stream(conn, link, index)

    def greet_stream(self, conn: int, link: Link, index: int) -> None:
        self.run.feed(DataHelloReceived(conn, DataHello(*link, index)))
        if self.sockets[conn] is LinkState.CLOSED:
            self.socket(conn, LinkInput.STREAM_ATTACHED)
            return
        self.of[conn], self.index[conn] = link, index
        state = self.groups.get(link)
        if state is None:
            self.socket(conn, LinkInput.GROUP_MISSING)
        elif state is LearnerGroupState.GONE:
            self.socket(conn, LinkInput.REFUSED)
        else:
            self.attach(conn, link)

    @rule(choice=chosen, state=st.sampled_from(LinkState))
    def break_a_rule(self, choice: int, state: LinkState) -> None:
        """Bytes that are wrong: they end that socket, and the whole group if it is its control stream."""
        conn = self.a_socket(choice, state)
        if conn is None:
            return
        self.run.feed(Refused(conn, BadMagic()))
        if self.sockets[conn] is LinkState.CONTROL:
            self.leave(self.of[conn], conn, LinkInput.REFUSED)
        else:
            self.socket(conn, LinkInput.REFUSED)

    @rule(choice=chosen)
    def send_nan(self, choice: int) -> None:
        """Values that no learner may send: they end the group, whichever socket brings them."""
        conn = self.a_socket(choice, LinkState.DATA)
        if conn is not None:
            self.run.feed(Refused(conn, NonFinite()))
            self.leave(self.of[conn], conn, LinkInput.REFUSED)

    @rule(choice=chosen, state=st.sampled_from(LinkState))
    def end(self, choice: int, state: LinkState) -> None:
        conn = self.a_socket(choice, state)
        if conn is None:
            return
        self.run.feed(Disconnected(conn))
        if self.sockets[conn] is LinkState.CONTROL:
            self.leave(self.of[conn], conn, LinkInput.ENDED)
        else:
            self.socket(conn, LinkInput.ENDED)

    @rule(choice=chosen)
    @precondition(lambda self: self.groups)
    def drop(self, choice: int) -> None:
        """The shell gives a group up that takes no bytes."""
        link = self.a_group(choice)
        self.run.feed(Dropped(link, "no byte went out"))
        if self.groups[link] is LearnerGroupState.GONE:
            self.group(link, LearnerGroupInput.LEFT)
            for conn, owner in self.of.items():
                if owner == link and self.sockets[conn] is LinkState.CLOSED:
                    self.socket(conn, LinkInput.GROUP_ENDED)
        else:
            self.leave(link, None, LinkInput.GROUP_ENDED)

    @rule(seconds=st.sampled_from((1.0, 4.0, PATIENCE)))
    def wait(self, seconds: float) -> None:
        self.run.wait(seconds)
        for conn, state in self.sockets.items():
            if self.run.now >= self.opened_at[conn] + PATIENCE or state is LinkState.CLOSED:
                self.socket(conn, LinkInput.TIMED_OUT)

    @rule()
    @precondition(lambda self: 0 in self.current and not self.initialized)
    def initialize(self) -> None:
        link = self.current[0]
        conn = next(
            c for c, owner in self.of.items() if owner == link and self.sockets[c] is LinkState.CONTROL
        )
        values = np.ones(NUMEL, np.float32)
        for number in range(LAYOUT.num_fragments):
            self.run.feed(Received(conn, link, InitParams(number, values.tobytes()), values))
        self.initialized = True
        self.begin()

    @rule(choice=chosen)
    @precondition(lambda self: self.run.held)
    def deliver(self, choice: int) -> None:
        """What was sent to a generation has left, or what was under way when it ended."""
        link = self.run.held[choice % len(self.run.held)].link
        self.run.deliver(link)
        self.group(link, LearnerGroupInput.CUT_LEFT)

    # -- where the core stands -------------------------------------------------------------------------------

    def core_socket(self, conn: int) -> LinkState:
        admission, registry = self.run.core._admission, self.run.core._registry
        group = registry.of_conn(conn)
        if group is not None:
            return LinkState.CONTROL if group.conn == conn else LinkState.DATA
        if not admission.pending(conn):
            return LinkState.CLOSED
        return LinkState.WAITING if conn in admission._waits_for else LinkState.OPENED

    @invariant()
    def the_core_stands_where_the_machines_lead(self) -> None:
        for conn, state in self.sockets.items():
            assert self.core_socket(conn) is state
            assert state is LinkState.CLOSED or conn not in self.run.closed
        registry = self.run.core._registry
        for link, expected in self.groups.items():
            group = registry.get(link)
            assert (LearnerGroupState.GONE if group is None else group.state) is expected
            assert registry.was_used(link)
        assert {group.link for group in registry.current_groups()} == set(self.current.values())
        ready = {link for link, state in self.groups.items() if state is LearnerGroupState.READY}
        assert {group.link for group in registry.ready()} == ready
        assert (self.run.core.phase is Phase.TRAINING) == self.training


@pytest.mark.timeout(3600)
def test_sockets_and_generations_go_where_the_machines_lead() -> None:
    explore(
        Connections,
        lambda: [*links.missing(NEVER_HEARD), *groups.missing(WITHOUT_EFFECT)],
        examples=80,
        steps=35,
    )
