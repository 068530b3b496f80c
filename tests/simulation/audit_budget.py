"""The learner-budget cutoff of one process, walked along the machine of the specification from outside."""

from __future__ import annotations

from tests.simulation.audit import Context, Handlers, Part, require
from yeto_proto._generated.machines import BUDGET, BudgetInput, BudgetState
from yeto_proto._generated.messages import BudgetDone, FinalManifest, PullReq, Shutdown
from yeto_proto.machine import advance
from yeto_syncer.core.effects import Exit, Fold, Merge, Save, SaveKind, Send
from yeto_syncer.core.events import Event, Received, Saved, SaveFailed


class Budget(Part):
    """The first report closes the gate, the last one saves a checkpoint, a wrong one ends the run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._target = context.config.learner_budget_steps
        self._state = BUDGET.initial
        self._reported: set[int] = set()
        self._expected = set(range(context.config.learners)) - context.observers
        self._exit: Exit | None = None

    def events(self) -> Handlers:
        return {Received: self._on_received, Saved: self._on_saved, SaveFailed: self._on_save_failed}

    def decided(self) -> Handlers:
        gate = self._closed_gate
        return {
            Merge: gate,
            Fold: gate,
            Send: self._on_send,
            Save: self._on_save,
            Exit: self._on_exit,
        }

    def _take(self, happened: BudgetInput) -> None:
        self._context.tally[f"budget: {self._state.value} + {happened.value}"] += 1
        self._state = advance(BUDGET, self._state, happened)

    def _on_received(self, event: Received) -> None:
        message, link = event.message, event.link
        if not isinstance(message, BudgetDone) or link not in self._context.live or self._exit is not None:
            return
        if message.exact_local_steps != self._target or link.learner_id in self._reported:
            wrong = "BudgetDuplicate" if link.learner_id in self._reported else "BudgetMismatch"
            self._context.tally[f"refused {wrong}"] += 1
            self._take(BudgetInput.WRONG_REPORT)
        elif self._context.current.get(link.learner_id) == link:
            self._reported.add(link.learner_id)
            last = self._reported == self._expected
            self._take(BudgetInput.LAST_REPORT if last else BudgetInput.REPORT)

    def _on_saved(self, event: Saved) -> None:
        if event.kind is SaveKind.CUTOFF:
            self._take(BudgetInput.SAVED)

    def _on_save_failed(self, event: SaveFailed) -> None:
        if event.kind is SaveKind.CUTOFF:
            self._take(BudgetInput.SAVE_FAILED)

    def _closed_gate(self, effect: Merge | Fold) -> None:
        require(self._state is BudgetState.TRAINING, f"{type(effect).__name__} behind the budget gate")

    def _on_send(self, effect: Send) -> None:
        if isinstance(effect.message, PullReq):
            require(self._state is BudgetState.TRAINING, "a PULL behind the budget gate")
        wrong = isinstance(effect.message, FinalManifest | Shutdown)
        require(not wrong, "a cutoff process lets nobody go")

    def _on_save(self, effect: Save) -> None:
        if effect.kind is SaveKind.CUTOFF:
            require(self._state is BudgetState.SAVING, "the cutoff is saved before the last report")

    def _on_exit(self, effect: Exit) -> None:
        self._exit = effect
        if self._state is BudgetState.TRAINING and "no learner has reported" in effect.message:
            self._take(BudgetInput.STEPS_OVER)
        elif self._state is BudgetState.CUTOFF and "no progress from learner" in effect.message:
            self._take(BudgetInput.LEASE_OVER)

    def settle(self, event: Event) -> None:
        """A walk that has ended ends the process at once, with the exit code of its state."""
        if self._state in BUDGET.final:
            code = 0 if self._state is BudgetState.ENDED else 1
            require(
                self._exit is not None and self._exit.code == code, f"{self._state.value}, and {self._exit}"
            )
