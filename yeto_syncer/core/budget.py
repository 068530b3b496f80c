"""The learner-budget cutoff: the first BUDGET_DONE stops ordinary rounds, the last one ends the process.

Benchmark only. The checkpoint that it leaves is unmarked recovery state; a second process consolidates from
it.
"""

from __future__ import annotations

from yeto_proto._generated.machines import BUDGET, BudgetInput
from yeto_proto.machine import advance
from yeto_syncer.core.config import Config
from yeto_syncer.core.failure import RunError
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.outbox import Outbox


class Cutoff:
    """The time from the first report on. Every learner that has not reported has to show progress."""

    def __init__(self, config: Config, outbox: Outbox, now: float, *, initialized: bool) -> None:
        self._config = config
        self._outbox = outbox
        self._initialized = initialized
        self._reported: set[int] = set()
        self._patience = float(config.quorum_timeout_s)
        #: What was being computed at the first report must have ended by then.
        self.drain_deadline = now + self._patience
        expected = set(range(config.learners)) - set(config.observers)
        self._leases = dict.fromkeys(sorted(expected), self.drain_deadline)
        self._expected = len(expected)
        self.state = BUDGET.initial

    def take(self, happened: BudgetInput) -> None:
        """Go where the machine of the spec leads. SAVING begins with the last report that was missing."""
        self.state = advance(BUDGET, self.state, happened)

    def reported(self, learner_id: int) -> bool:
        return learner_id in self._reported

    def report(self, link: Link) -> None:
        """The one report of a learner, with the right count and from its current generation."""
        self._reported.add(link.learner_id)
        self._leases.pop(link.learner_id, None)
        self.take(BudgetInput.REPORT if self._leases else BudgetInput.LAST_REPORT)
        self._outbox.log(
            "info",
            "learner budget reported",
            learner=link.learner_id,
            received=f"{len(self._reported)}/{self._expected}",
        )

    def progress(self, now: float, learner_id: int, local_step: int | None) -> None:
        """A HELLO (no step), or a heartbeat or push whose step is within the budget, renews the lease."""
        target = self._config.learner_budget_steps
        if learner_id not in self._leases or not self._initialized:
            return
        if local_step is None or target is None or local_step <= target:
            self._leases[learner_id] = now + self._patience

    def next_deadline(self, draining: bool) -> float | None:
        """When `check` has to be called at the latest."""
        earliest = min(self._leases.values(), default=None)
        if draining and (earliest is None or self.drain_deadline < earliest):
            return self.drain_deadline
        return earliest

    def check(self, now: float, draining: bool) -> None:
        """Raises RunError when a lease is over or the merge that was running does not end."""
        if draining and now >= self.drain_deadline:
            raise RunError(
                f"the merge that was running did not end within {self._patience:g} s; learner-budget cutoff; "
                "no checkpoint was written: restart from the last one"
            )
        stalled = [str(learner) for learner, until in self._leases.items() if now >= until]
        if stalled:
            self.take(BudgetInput.LEASE_OVER)
            raise RunError(
                f"no progress from learner {', '.join(stalled)} for {self._patience:g} s, "
                f"{len(self._reported)}/{self._expected} budget reports received; learner-budget cutoff; "
                "look at those learners and start the benchmark again"
            )
