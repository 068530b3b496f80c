"""A whole run in virtual time: a syncer and its learners, each a real core, on a seeded network.

Everything random comes from generators that are seeded by the world's seed, and the faults are drawn before
the world begins. So a seed replays its world event by event, also with a part of its faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from random import Random

import numpy as np

from tests.simulation.audit import Audit, Context, Part, Sent, require
from tests.simulation.audit_deltas import Works
from tests.simulation.audit_files import Files
from tests.simulation.audit_finals import Finals
from tests.simulation.audit_links import Links
from tests.simulation.audit_rounds import Rounds
from tests.simulation.clock import Clock
from tests.simulation.faults import Trouble
from tests.simulation.learner_parts import Saved, State
from tests.simulation.learner_process import LearnerProcess
from tests.simulation.mischief import GUILTY, SPOILS, TAINTING
from tests.simulation.plan import FAULTS_END, LATE_STOP, Fault, draw_plan
from tests.simulation.setup import Setup, draw
from tests.simulation.strangers import Stranger
from tests.simulation.syncer_parts import Disk
from tests.simulation.syncer_process import SyncerProcess
from tests.simulation.teller import Teller
from tests.simulation.wire import Line, Network
from yeto_learner.core.records import BcastFragment
from yeto_proto._generated.messages import PushFragment
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Exit

HORIZON = 8_000.0  # virtual seconds within which every run must end
RESTART_S = 4.0  # what a supervisor needs to start a process again


class Cluster:
    """One seed. `play` runs it to its end and raises Broken when a promise is."""

    def __init__(
        self,
        seed: int,
        *,
        setup: Setup | None = None,
        faults: tuple[Fault, ...] | None = None,
        verbose: bool = False,
    ) -> None:
        self.verbose = verbose
        self.seed = seed
        self.setup = draw(Random(f"setup {seed}")) if setup is None else setup
        plan = draw_plan(Random(f"plan {seed}"), self.setup.config)
        self.faults = plan if faults is None else faults
        self.clock = Clock()
        self.network = Network(
            self.clock, Random(f"network {seed}"), self.setup.latency, self.setup.bulk_time
        )
        self.tally: Counter[str] = Counter()
        self.story: list[str] = []
        self.disk = Disk()
        self.works = Works()
        self.syncer: SyncerProcess | None = None
        self.learners: list[LearnerProcess | None] = [None] * self.setup.config.learners
        self.complete = False
        self.starts = 0
        self.sent: dict[int, Sent] = {}
        self._book: dict[tuple[int, int], bytes] = {}
        self._rng = Random(f"cluster {seed}")
        self._work = 0
        self._lives = 0
        self._trouble = Trouble(self)
        self.stray: set[int] = set()
        self._late = [fault for fault in self.faults if fault.late]
        self._final_cut_sent = False
        self._start_syncer()
        for learner in range(self.setup.config.learners):
            self.clock.after(self._rng.uniform(0, 3), partial(self.start_learner, learner))
        for fault in self.faults:
            if not fault.late:
                self.clock.at(fault.at, partial(self._trouble.make, fault))

    # -- playing ---------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Run to the end: complete, and every learner that took the final cut holds it."""
        ended = self.clock.play(lambda: self.complete, HORIZON)
        require(ended, f"the run does not end: {self._standing()}")
        self.clock.play(self._all_let_go, self.clock.now + 120.0)
        self._check_the_end()

    def _standing(self) -> str:
        phase = "no syncer" if self.syncer is None else f"syncer {self.syncer.core.phase.value}"
        states = ", ".join("none" if each is None else each.state.value for each in self.learners)
        return f"{phase}; learners: {states}"

    def _all_let_go(self) -> bool:
        return all(each is None or each.state is not State.ACKED for each in self.learners)

    def _check_the_end(self) -> None:
        snapshot = self.disk.snapshot
        for process in self.learners:
            if process is None or process.state not in (State.ACKED, State.DONE):
                continue
            finals = [process.link.finals[number] for number in range(self.setup.layout.num_fragments)]
            for number, (final, local) in enumerate(zip(finals, process.parameters(), strict=True)):
                held = np.frombuffer(final.data, np.float32)
                require(np.array_equal(held, local), f"learner {process.id} does not hold the final cut")
                if snapshot is not None and self.setup.config.checkpoint_path is not None:
                    same = np.array_equal(local, snapshot.fragments[number].params)
                    require(same, f"learner {process.id} and the checkpoint differ in fragment {number}")

    def note(self, what: str) -> None:
        """A line of the story. With `verbose` it also tells of rounds, answers and broadcasts."""
        self.story.append(f"{self.clock.now:9.2f}  {what}")

    def next_work(self) -> int:
        self._work += 1
        return self._work

    @property
    def calm(self) -> bool:
        return self.clock.now >= FAULTS_END

    # -- the syncer ------------------------------------------------------------------------------------------

    def server(self) -> SyncerProcess | None:
        return self.syncer

    def _start_syncer(self) -> None:
        if self.syncer is not None or self.complete:
            return
        self.starts += 1
        config, disk = self._config(), self.disk
        snapshot = disk.snapshot
        self.note(f"syncer starts {'fresh' if snapshot is None else f'from step {snapshot.global_step}'}")
        self.sent.clear()
        self.works.resume(0 if snapshot is None else snapshot.global_step)
        context = Context(config, self.clock, self.tally, self.sent, observers=frozenset(config.observers))
        rounds = Rounds(context, self.setup.layout.num_fragments, snapshot, self.works)
        files = Files(context, disk, snapshot)
        parts = [Links(context), rounds, files, Finals(context), *self._parts(context)]
        if self.verbose:
            parts.append(Teller(self.note))
        audit = Audit(self.tally, parts, (files.landed,))
        self.syncer = SyncerProcess(
            self.clock, Random(f"syncer {self.seed} {self.starts}"), self.setup, config, disk, audit
        )
        self.syncer.on_exit = self._syncer_ended
        self.syncer.on_final = self._finalizing
        self.syncer.on_late_stop = partial(self._trouble.tell, LATE_STOP)
        # What a version means: as before up to the checkpoint, open behind it.
        step = -1 if snapshot is None else snapshot.global_step
        self._book = {key: digest for key, digest in self._book.items() if key[1] <= step}
        self.syncer.book = self._book
        if snapshot is None and self.starts > 1:
            # Nothing is left of the run: whoever starts it anew also starts learner 0 again, for its INIT,
            # and all learners once the final cut of the lost run was on its way to them.
            for process in self.learners:
                if process is not None and (process.id == 0 or self._final_cut_sent):
                    self.kill_learner(process.id, "is started again for a new beginning")
            self._final_cut_sent = False

    def syncer_died(self) -> None:
        """It was killed, or has ended without completing: it is started again."""
        self.syncer = None
        self.clock.after(RESTART_S * (0.2 + self._rng.random()), self._start_syncer)

    def _syncer_ended(self, effect: Exit) -> None:
        self.note(f"syncer exits with {effect.code}: {effect.message}")
        self.tally[f"exit {effect.code}"] += 1
        if effect.code == 0 and "training complete" in effect.message:
            self.complete = True
            self.syncer = None
            return
        self.syncer_died()

    def _config(self) -> Config:
        """The settings of the next syncer process."""
        return self.setup.config

    def _parts(self, context: Context) -> Sequence[Part]:
        """What else watches it."""
        return ()

    def _finalizing(self) -> None:
        """The first final cut is on its way: the faults of the terminal exchange count from here."""
        self._final_cut_sent = True
        late, self._late = self._late, []
        for fault in late:
            if fault.at == 0.0:
                self._trouble.make(fault)
            else:
                self.clock.after(fault.at, partial(self._trouble.make, fault))

    # -- learners --------------------------------------------------------------------------------------------

    def start_learner(self, learner: int, *, forget: bool = False) -> None:
        """Start a learner process, with its own checkpoint if it has one."""
        before = self.learners[learner]
        if self.complete or (before is not None and before.running):
            return
        self._lives += 1
        saved = None if before is None or forget else before.saved
        self.note(f"learner {learner} starts {'cold' if saved is None else f'at local step {saved.steps}'}")
        rng = Random(f"learner {self.seed} {learner} {self._lives}")
        self.learners[learner] = self._process(rng, learner, saved)

    def _process(self, rng: Random, learner: int, saved: Saved | None) -> LearnerProcess:
        return LearnerProcess(self, rng, self.setup, learner, saved, 0.3 * learner + 0.2)

    def kill_learner(self, learner: int, why: str, *, forget: bool = False) -> None:
        """End a learner process; it is started again."""
        process = self.learners[learner]
        if process is None or not process.running:
            return
        self.note(f"learner {learner} {why}")
        process.leave()
        self.clock.after(RESTART_S, partial(self.start_learner, learner, forget=forget))

    def failed(self, process: LearnerProcess, error: Exception) -> None:
        """A learner has ended by an error: only one that gave cause for it may."""
        self.note(f"learner {process.id} fails: {type(error).__name__}: {error}")
        self.tally[f"learner failed: {type(error).__name__}"] += 1
        innocent = not process.guilty and not isinstance(error, TimeoutError)
        require(not innocent, f"learner {process.id} did nothing wrong and fails: {error}")
        self.clock.after(RESTART_S, partial(self.start_learner, process.id))

    def finished(self, process: LearnerProcess) -> None:
        """A learner was let go. When the run is not complete after all it is needed again."""
        self.note(f"learner {process.id} is done")
        if not self.complete:
            self.clock.after(60.0, partial(self.start_learner, process.id))

    def dialled(self, process: LearnerProcess, line: Line) -> None:
        """A learner has opened a connection: now and then a stray stream is faster than its HELLO."""
        if process.id in self.stray:
            self.stray.discard(process.id)
            self.tally["fault stray stream at the next dial"] += 1
            Stranger(self, self._rng, "a stream beyond the announced").join(line)

    def pushes(
        self, process: LearnerProcess, push: PushFragment, works: tuple[int, ...]
    ) -> list[PushFragment]:
        """A push leaves a learner: perhaps spoilt."""
        spoilt = [push]
        if process.mischief:
            kind = process.mischief.popleft()
            process.guilty |= kind in GUILTY
            process.tainted |= kind in TAINTING
            self.tally[f"fault {kind}"] += 1
            self.note(f"learner {process.id}: {kind}")
            spoilt = SPOILS[kind](push, self.setup.session.dtype, self._rng)
        for each in spoilt:
            self.register(each, process.id, () if process.tainted else works)
            self._tell_push(process, each)
        process.sent.append(push)
        return spoilt

    def _tell_push(self, process: LearnerProcess, push: PushFragment) -> None:
        if self.verbose:
            self.note(
                f"    learner {process.id} pushes {push.fragment_id} for step {push.global_step} attempt "
                f"{push.round_attempt} from version {push.base_version}, {push.c_steps} steps"
            )

    def register(self, push: PushFragment, learner: int, works: tuple[int, ...]) -> None:
        """Remember what a delta holds, by the identity of its bytes."""
        self.sent[id(push.delta)] = Sent(push, learner, works)

    def installed(self, process: LearnerProcess, line: Line, update: BcastFragment) -> None:
        """A learner has installed a broadcast: its bytes are those that everybody gets under this version."""
        if self.verbose:
            self.note(f"    learner {process.id} installs {update.fragment_id} at version {update.version}")
        if process.guilty:
            return  # the first broadcast after a redial is taken whatever it holds, so a forged one may be
        digest = sha256(update.data).digest()
        known = line.server.book.setdefault((update.fragment_id, update.version), digest)
        what = f"version {update.version} of fragment {update.fragment_id}"
        require(known == digest, f"{what} has two contents")
