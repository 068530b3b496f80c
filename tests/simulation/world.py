"""A seeded world around the coordinator: learners that join, die, return, answer late, twice or wrongly.

Everything random comes from one `random.Random`, everything that takes time from one heap: a seed replays its
world event by event. Faults end at a moment; from then on the run has to end by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np

from tests.simulation.driver import NUMEL, Driver, Peer, layout_of
from tests.simulation.invariants import Watcher
from yeto_proto._generated.errors import NonFinite
from yeto_proto._generated.messages import FinalAck, FinalManifest, Heartbeat, PullReq, PushFragment, Shutdown
from yeto_proto.files import Snapshot
from yeto_proto.session import WireLayout
from yeto_syncer.core.config import Config
from yeto_syncer.core.events import Delivered, Dropped, Received, Refused, Stop

FAULTS_END = 300.0  # virtual seconds
HORIZON = 100_000.0


def random_config(rng: Random) -> Config:
    """Any mix of settings that is valid."""
    learners = rng.randint(1, 5)
    quorum = rng.randint(1, learners)
    strict = rng.random() < 0.15
    observers = () if strict or learners < 3 or rng.random() < 0.8 else (learners - 1,)
    quorum = learners if strict else min(quorum, learners - len(observers))
    max_base_lag = 0 if strict else rng.choice((None, None, 0, 1, 4))
    on_arrival = rng.random() < 0.5
    carry = on_arrival and max_base_lag != 0 and rng.random() < 0.7
    capacity = None if strict or rng.random() < 0.75 else rng.choice((0.3, 0.6, 1.0))
    timeout = rng.choice((15, 60, 60))
    path = rng.random() < 0.7
    every = rng.choice((0, 1, 1, 2, 3, 8))
    made = Config(
        learners=learners,
        quorum=quorum,
        total_steps=rng.randint(1, 25),
        grace_ms=0 if strict else rng.choice((0, 100, 2000, 20_000)),
        max_base_lag=max_base_lag,
        pipeline=rng.randint(0, 4),
        min_round_interval_ms=rng.choice((0, 0, 500)),
        sync_interval_steps=rng.choice((0.0, 24.0)),
        quorum_timeout_s=timeout,
        final_ack_timeout_s=rng.choice((None, 40, 150)),
        checkpoint_path="state.ckpt" if path else None,
        checkpoint_every=every,
        mark_final_checkpoint=path and rng.random() < 0.5,
        checkpoint_on_start=path and rng.random() < 0.3,
        background_checkpoint=path and every >= 2 and rng.random() < 0.5,
        min_start_learners=rng.choice((None, 1)),
        observers=observers,
        island_lease_s=rng.choice((0.0, 0.0, 40.0)),
        learner_weight=rng.choice(("equal", "tokens2-over-steps")),
        shutdown_timeout_s=rng.choice((5.0, 100.0)),
        fold="on-arrival" if on_arrival else "at-close",
        late_carry=carry,
        max_carry_lag=rng.randint(1, 4) if carry else 2,
        carry_decay=rng.choice((1.0, 0.5)) if carry else 1.0,
        carry_answers_round=carry and rng.random() < 0.5,
        quorum_capacity=capacity,
        soft_deadline_s=None if capacity is None else rng.choice((None, 0.5 * timeout)),
        event_tape="tape.jsonl",
    )
    assert made.validate() == [], made.validate()
    return made


@dataclass
class Learner:
    """A learner process: one connection that it uses, and perhaps older ones that it has left open."""

    id: int
    peer: Peer | None = None
    old: list[Peer] = field(default_factory=list)
    local_step: int = 0
    pace: float = 4.0  # longest time between two of its steps
    reuses: bool = False  # it answers again and again from the version that it answered from last
    bases: dict[int, int] = field(default_factory=dict)  # that version, by fragment
    initialized: bool = False  # it has sent every INIT on the connection that it uses
    seen: list[PullReq] = field(default_factory=list)


class World:
    """One seed. `run` plays it to its end; `story` tells what happened, for a failure."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.config = random_config(self.rng)
        self.layout: WireLayout = layout_of(self.rng.randint(1, 4))
        self.hostility = self.rng.choice((0.0, 0.2, 0.5))
        self.now = 0.0
        self.story: list[str] = []
        self.counts: dict[str, int] = {}
        self.learners = [
            Learner(number, pace=self.rng.choice((2.0, 4.0, 20.0)), reuses=self.rng.random() < 0.3)
            for number in range(self.config.learners)
        ]
        self.disk: Snapshot | None = None
        self.starts = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._generation = 0
        self._number = 0
        self._in_flight: set[int] = set()
        self._boot()
        for learner in self.learners:
            self._later(self.rng.uniform(0, 5), partial(self._live, learner))
        if self.hostility:
            self._later(self.rng.uniform(5, 60), self._fault)

    @property
    def calm(self) -> bool:
        """True when faults have stopped."""
        return self.now >= FAULTS_END or not self.hostility

    def run(self) -> None:
        """Play until the run has completed. Fails when it has not by the horizon."""
        while not self._complete():
            assert self._heap, "nothing will ever happen again"
            self.now, _, action = heapq.heappop(self._heap)
            assert self.now < HORIZON, f"the run does not end (phase {self.driver.core.phase.value})"
            self.driver.run_until(self.now)
            self._notice()
            action()
            self._notice()

    # -- the syncer ------------------------------------------------------------------------------------------

    def _boot(self) -> None:
        """Start the syncer process, from the last durable checkpoint if there is one."""
        self.starts += 1
        self._note(f"syncer starts from {None if self.disk is None else self.disk.global_step}")
        self.watcher = Watcher(self.config, self.layout.num_fragments, self.disk)
        self.driver = Driver(
            self.config,
            self.disk,
            hold_deliveries=True,
            hold_saves=True,
            hold_merges=True,
            hold_folds=True,
            watch=self.watcher.effect,
        )
        self.driver.spy = self.watcher.event
        self.driver.landed = self.watcher.landed
        self.driver.now = self.now
        self._in_flight.clear()
        for learner in self.learners:
            learner.peer = None
            learner.old.clear()
            learner.seen.clear()

    def _complete(self) -> bool:
        done = self.driver.exit
        return done is not None and done.code == 0 and "complete" in done.message

    def _notice(self) -> None:
        """Give time to whatever the coordinator has just asked for, and a restart to a process that ended."""
        driver = self.driver
        if driver.disk is not None:
            self.disk = driver.disk
        if driver.exit is not None:
            if not self._complete():
                self._note(f"syncer exits: {driver.exit.message}")
                self._tally()
                self._boot()
            else:
                self._tally()
            return
        for event in driver.held:
            if id(event) not in self._in_flight:
                self._in_flight.add(id(event))
                self._later(self._delay(), partial(self._left, driver, event))
        for key, finish in (
            (driver.saving or driver.background, self._end_save),
            (driver.merging, self._end_merge),
            (driver.folding[0] if driver.folding else None, self._end_fold),
        ):
            if key is not None and id(key) not in self._in_flight:
                self._in_flight.add(id(key))
                self._later(self._delay(), partial(finish, driver, key))

    def _left(self, driver: Driver, event: Delivered) -> None:
        if driver is self.driver and event in driver.held:
            driver.held.remove(event)
            self._in_flight.discard(id(event))
            driver.feed(event)

    def _end_save(self, driver: Driver, save: object) -> None:
        if driver is self.driver and save in (driver.saving, driver.background):
            self._in_flight.discard(id(save))
            failed = not self.calm and self.rng.random() < 0.05 * self.hostility
            driver.finish_save("no space left" if failed else None)

    def _end_merge(self, driver: Driver, job: object) -> None:
        if driver is self.driver and driver.merging is job:
            self._in_flight.discard(id(job))
            driver.finish_merge(finite=self.calm or self.rng.random() > 0.1 * self.hostility)

    def _end_fold(self, driver: Driver, job: object) -> None:
        if driver is self.driver and driver.folding and driver.folding[0] is job:
            self._in_flight.discard(id(job))
            driver.finish_fold()

    def _fault(self) -> None:
        """A fault of the syncer process itself, now and then."""
        if self.calm:
            return
        dice = self.rng.random()
        if dice < 0.25:
            self._note("syncer killed")
            self._tally()
            self._boot()
        elif dice < 0.5:
            self._note("stop signal")
            self.driver.feed(Stop(15))
        self._later(self.rng.uniform(5, 120), self._fault)

    # -- learners --------------------------------------------------------------------------------------------

    def _live(self, learner: Learner) -> None:
        """One moment in the life of a learner; it schedules the next one."""
        self._later(self.rng.uniform(0.2, learner.pace), partial(self._live, learner))
        peer = learner.peer
        if peer is None or not peer.open:
            learner.peer = None
            if self.calm or self.rng.random() < 0.5:
                self._connect(learner)
            return
        if not peer.connected:
            return  # the HELLO is on its way
        if self.calm:
            for old in learner.old:
                if old.connected:
                    old.close()
            learner.old.clear()
        elif self.rng.random() < 0.1 * self.hostility:
            self._leave(learner, peer)
            return
        if learner.id == 0 and not learner.initialized:
            self._initialize(learner, peer)
        learner.local_step += self.rng.randint(0, 3)
        peer.send(Heartbeat(learner.id, learner.local_step))
        for old in learner.old:
            if old.connected and self.rng.random() < 0.5:
                self._answer(learner, old)
        if peer.connected:
            self._answer(learner, peer)

    def _connect(self, learner: Learner) -> None:
        self._generation += 1
        peer = Peer(self.driver, learner.id, self._generation, layout=self.layout)
        assert peer.open or self.driver.exit is not None, peer.refused
        learner.peer = peer
        self._note(f"learner {learner.id} connects as {self._generation}")
        learner.initialized = False

    def _initialize(self, learner: Learner, peer: Peer) -> None:
        """Send INIT in any order, and under faults perhaps not all of it."""
        learner.initialized = True
        fragments = list(range(self.layout.num_fragments))
        self.rng.shuffle(fragments)
        for fragment in fragments:
            if self.calm or self.rng.random() > 0.2 * self.hostility:
                peer.init_one(fragment, np.ones(NUMEL, np.float32))
            else:
                learner.initialized = False

    def _leave(self, learner: Learner, peer: Peer) -> None:
        if self.rng.random() < 0.4:
            self._note(f"learner {learner.id} redials beside {peer.link.generation}")
            learner.old.append(peer)
            self._connect(learner)
            return
        learner.peer = None
        dice = self.rng.random()
        if dice < 0.6:
            self._note(f"learner {learner.id} loses {peer.link.generation}")
            peer.close()
        elif dice < 0.8:
            self._note(f"learner {learner.id} stops reading on {peer.link.generation}")
            self.driver.feed(Dropped(peer.link, "no byte went out"))
        else:
            self._note(f"learner {learner.id} sends NaN on {peer.link.generation}")
            self.driver.feed(Refused(peer.conn, NonFinite(frame="PUSH_FRAGMENT")))

    def _answer(self, learner: Learner, peer: Peer) -> None:
        """Answer what is asked: well, or in one of the wrong ways."""
        for pull in peer.pulls():
            learner.seen.append(pull)
            if not self.calm and self.rng.random() < 0.3 * self.hostility:
                continue
            self._push(learner, peer, pull)
        if not self.calm and learner.seen and self.rng.random() < 0.5 * self.hostility:
            old = self.rng.choice(learner.seen)
            self._push(learner, peer, old)
            attempt = max(old.round_attempt + self.rng.randint(-1, 1), 1)
            other = PullReq(old.fragment_id, old.global_step, attempt)
            self._push(learner, peer, other, base=peer.version(old.fragment_id) + self.rng.randint(-3, 3))
        manifest = next(peer.messages(FinalManifest), None)
        if manifest is not None and (self.calm or self.rng.random() > 0.3 * self.hostility):
            step = manifest.final_global_step
            if not self.calm and self.rng.random() < 0.3:
                peer.send(FinalAck(step + 1))
            peer.send(FinalAck(step))
        if next(peer.messages(Shutdown), None) is not None:
            self._note(f"learner {learner.id} is let go")

    def _push(self, learner: Learner, peer: Peer, pull: PullReq, base: int | None = None) -> None:
        if not peer.connected:
            return
        self._number += 1
        learner.local_step += 1
        version = peer.version(pull.fragment_id) if base is None else max(base, 0)
        if learner.reuses and not self.calm and self.rng.random() < 0.7:
            version = learner.bases.get(pull.fragment_id, version)
        learner.bases[pull.fragment_id] = version
        push = PushFragment(
            learner.id,
            pull.fragment_id,
            pull.global_step,
            max(pull.round_attempt, 1),
            version,
            learner.local_step,
            self.rng.randint(1, 9),
            # Without a weight an answer is not folded, and then nothing shows that it was merged.
            self.rng.randint(0 if self.config.fold == "at-close" else 1, 99),
            np.array([self._number, 1.0], np.float32).tobytes(),
        )
        peer.driver.feed(Received(peer.conn, peer.link, push))

    # -- small things ----------------------------------------------------------------------------------------

    def _delay(self) -> float:
        return self.rng.choice((0.0, 0.01, 0.3, 0.3, 3.0, 12.0))

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now + delay, self._order, action))

    def _note(self, what: str) -> None:
        self.story.append(f"{self.now:9.2f} {what}")

    def _tally(self) -> None:
        for name, count in self.watcher.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
