"""A learner of a budget benchmark: it reports after its last step and answers each fragment once more."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.simulation.learner_parts import State
from tests.simulation.learner_process import LearnerProcess
from tests.simulation.wire import Line
from yeto_learner.core.records import BcastFragment, PullRequest
from yeto_proto import dtypes
from yeto_proto._generated.messages import BudgetDone, PushFragment


class BudgetLearner(LearnerProcess):
    """`reports` are the counts that it reports, one after the other; a right one is the budget itself."""

    def __init__(self, *arguments: Any, budget: int, reports: tuple[int, ...]) -> None:
        self.reports = reports
        self._budget = budget
        self._reported_epoch: int | None = None
        self._bases: dict[int, BcastFragment] = {}
        self._due: list[PullRequest] = []
        self._answered: set[int] = set()
        super().__init__(*arguments)

    def _is_over(self) -> bool:
        if self.boundary.steps < self._budget:
            return super()._is_over()
        self.state = State.REPORTED
        self._report()
        return True

    def _report(self) -> None:
        line = self.line
        if line is None or self._reported_epoch is not None:
            return
        self._reported_epoch = self.link.epoch
        self.link.forget_at_disconnect()
        for number, steps in enumerate(self.reports):
            self._clock.after(0.1 * number, partial(self._send_report, line, steps))

    def _send_report(self, line: Line, steps: int) -> None:
        if line is self.line:
            line.send(BudgetDone(steps))

    def _after_news(self) -> None:
        if self.state is State.REPORTED:
            self._report()
            if self._reported_epoch is not None and self.link.epoch > self._reported_epoch + 1:
                self.state = State.FROZEN
        if self.state is State.FROZEN:
            self._consolidate()
        else:
            super()._after_news()

    def _consolidate(self) -> None:
        """Answer what is asked for from parameters that no longer change, each fragment once."""
        for update in self.link.take_updates():
            if update.fragment_id not in self._answered:
                self._bases[update.fragment_id] = update
        self._due += self.link.take_pulls()
        for pull in [pull for pull in self._due if pull.fragment_id in self._bases]:
            self._due.remove(pull)
            self._answer_frozen(pull, self._bases.pop(pull.fragment_id))
        if self.link.manifest is not None and len(self._answered) == self.values.num_fragments:
            self._await_final_cut()

    def _answer_frozen(self, pull: PullRequest, base: BcastFragment) -> None:
        assert self.line is not None
        self._answered.add(pull.fragment_id)
        push = PushFragment(
            self.id,
            pull.fragment_id,
            pull.global_step,
            pull.round_attempt,
            base.version,
            self._budget,
            self._budget,
            self.boundary.tokens,
            bytes(dtypes.encode(self._session.dtype, self.values.delta_from(base))),
        )
        for each in self._host.pushes(self, push, ()):
            self.line.send(each, bulk=True)
