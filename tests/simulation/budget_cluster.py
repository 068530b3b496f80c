"""Learner-budget benchmarks in virtual time: trials that are void, then one that is consolidated."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation.audit import Context, Part, require
from tests.simulation.audit_budget import Budget
from tests.simulation.budget_learner import BudgetLearner
from tests.simulation.cluster import Cluster
from tests.simulation.learner_process import LearnerProcess
from tests.simulation.plan import Fault
from tests.simulation.setup import Setup, draw
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Exit
from yeto_syncer.tape_check import check

TRIALS = (
    "a wrong report first",
    "a wrong report later",
    "a second report",
    "a second report while saving",
    "a learner falls silent",
    "the checkpoint fails",
    "the steps are used up",
)
"""What may make a benchmark void."""

HARDEST = "a second report while saving"  # it comes too early or too late as often as not


def draw_budget(seed: int) -> Setup:
    """The settings of a benchmark: everybody takes part, and nobody is slow."""
    rng = Random(f"budget {seed}")
    setup = draw(rng)
    learners = rng.choice((1, 2, 3, 3, 4))
    config = Config(
        learners=learners,
        total_steps=1_000_000,
        quorum=rng.randint(1, learners),
        pipeline=rng.randint(1, 3),
        grace_ms=rng.choice((0, 2000)),
        sync_interval_steps=0.0,
        quorum_timeout_s=15,
        checkpoint_path="state.ckpt",
        checkpoint_every=rng.choice((0, 1, 2)),
        learner_budget_steps=rng.randint(3, 8),
        fold=rng.choice(("at-close", "at-close", "on-arrival")),
        event_tape="tape.jsonl",
    )
    assert config.validate() == []
    habits = tuple(
        replace(each, pace=rng.choice((0.7, 1.0)), min_steps=1, saves_every=0, heartbeat=5.0)
        for each in (setup.habits * learners)[:learners]
    )
    return replace(
        setup,
        config=config,
        habits=habits,
        session=replace(setup.session, profile=None),
        latency=min(setup.latency, 0.05),
        slow_disk=rng.choice((0.5, 6.0)),
    )


class BudgetCluster(Cluster):
    """One benchmark: void trials as the plan says, then a good one and its consolidation."""

    def __init__(self, seed: int, *, faults: tuple[Fault, ...] | None = None, **rest: Any) -> None:
        rng = Random(f"trials {seed}")
        plan = faults
        if plan is None:
            plan = tuple(
                Fault(rng.choice((*TRIALS, HARDEST)), 0.0, 0, rng.getrandbits(32), late=True)
                for _ in range(rng.randint(4, 7))
            )
        self._trials = list(plan)
        self._trial: Fault | None = None
        self._next_trial()
        self._cutoff: int | None = None
        super().__init__(seed, setup=draw_budget(seed), faults=plan, **rest)
        self._late.clear()  # they are trials, not faults of the terminal exchange

    @property
    def _budget(self) -> int:
        assert self.setup.config.learner_budget_steps is not None
        return self.setup.config.learner_budget_steps

    def _next_trial(self) -> None:
        """What the processes that start from here on, syncer and learners, are a part of."""
        self._trial = self._trials.pop(0) if self._trials else None

    def _config(self) -> Config:
        config = self.setup.config
        if self._cutoff is not None:
            fragments = self.setup.layout.num_fragments
            return replace(
                config,
                learner_budget_steps=None,
                total_steps=self._cutoff + fragments,
                quorum=config.learners,
                resume=True,
                mark_final_checkpoint=True,
            )
        if self._trial is not None:
            self.note(f"trial: {self._trial.kind}")
            self.tally[f"fault {self._trial.kind}"] += 1
            if self._trial.kind == "the steps are used up":
                return replace(config, total_steps=1)
        return config

    def _start_syncer(self) -> None:
        super()._start_syncer()
        if self.syncer is not None and self._trial is not None:
            self.syncer.fail_cutoff = self._trial.kind == "the checkpoint fails"

    def _parts(self, context: Context) -> list[Part]:
        return [] if self._cutoff is not None else [Budget(context)]

    def _process(self, rng: Random, learner: int, saved: Any) -> LearnerProcess:
        trial = None if self._trial is None else self._trial.kind
        chosen = 0 if self._trial is None else self._trial.dice % self.setup.config.learners
        reports: tuple[int, ...] = (self._budget,)
        silent = False
        if trial == "a wrong report first" or (trial == "a wrong report later" and learner == chosen):
            reports = (self._budget + 1,)
        elif trial == "a second report" and learner == chosen:
            reports = (self._budget, self._budget)
        elif trial == "a second report while saving":
            reports = (self._budget,) * 40
        elif trial == "a learner falls silent" and learner == chosen:
            silent = True
        process = BudgetLearner(
            self, rng, self.setup, learner, None, 0.3 * learner + 0.2, budget=self._budget, reports=reports
        )
        if silent and self.setup.config.learners > 1:
            process.hung_until = process.mute_until = self.clock.now + 10_000.0
        return process

    def _syncer_ended(self, effect: Exit) -> None:
        if "cutoff complete" in effect.message:
            assert self.disk.snapshot is not None
            self._cutoff = self.disk.snapshot.global_step
            self._trial = None
            require(self.disk.marker is None, "a cutoff left a marker")
        elif effect.code == 1 and self._cutoff is None:
            # The benchmark is void: everything begins anew, with learners that know nothing.
            self.disk.snapshot = None
            self._next_trial()
            for process in self.learners:
                if process is not None:
                    self.kill_learner(process.id, "begins anew", forget=True)
        super()._syncer_ended(effect)

    def _check_the_end(self) -> None:
        super()._check_the_end()
        assert self._cutoff is not None
        found = check(
            self.disk.tape, learners=self.setup.config.learners, budget=self._budget, start=self._cutoff
        )
        require(not found.faults, f"yeto-tape check: {found.faults}")
