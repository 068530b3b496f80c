"""Mutants of the syncer that say or take something that is not, or not yet, to be said or taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.conform.mutants.patches import wrap
from tests.conform.mutants.syncer import on_effects, run
from yeto_proto._generated.messages import FinalManifest, PullReq, Shutdown
from yeto_syncer.core import effects
from yeto_syncer.core.carry import LateCarry
from yeto_syncer.core.closing import Closing
from yeto_syncer.core.config import Config
from yeto_syncer.core.finalize import Finalization
from yeto_syncer.core.intake import Intake
from yeto_syncer.core.merge import plan
from yeto_syncer.core.run import Run

__all__ = ["MUTANTS", "run"]


def _quorum_one() -> None:
    def make(old: Any) -> Any:
        def capture(self: Any, round_: Any, members: Any, now: float) -> None:
            old(self, round_, members, now)
            round_.quorum = 1

        return capture

    wrap(Closing, "capture", make)


def _broadcasts_swapped() -> None:
    """With rounds in flight side by side the broadcast of step 1 leaves behind that of step 2."""
    held: list[Any] = []

    def change(core: Any, event: Any, found: Sequence[Any]) -> Sequence[Any]:
        changed: list[Any] = []
        for each in found:
            version = each.fragments[0].version if isinstance(each, effects.Deliver) else 0
            if version == 1 and core._config.pipeline > 1:
                held.append(each)
                continue
            changed.append(each)
            if version == 2:
                changed += held
                held.clear()
        return changed

    on_effects(change)()


def _starts_with_one() -> None:
    for name in ("start_learners", "first_cut"):
        setattr(Config, name, property(lambda self: 1))


def _asks_at_once() -> None:
    """Whoever joins while a round gathers is asked before it has the fragments."""

    def change(core: Any, event: Any, found: Sequence[Any]) -> Sequence[Any]:
        changed: list[Any] = []
        scheduler = core._run.scheduler
        for each in found:
            changed.append(each)
            if isinstance(each, effects.Accept) and scheduler is not None:
                for round_ in scheduler.in_flight:
                    pull = PullReq(round_.fragment_id, round_.global_step, round_.attempt)
                    changed.append(effects.Send(each.link, pull))
        return changed

    on_effects(change)()


def _manifest_first() -> None:
    def change(core: Any, event: Any, found: Sequence[Any]) -> Sequence[Any]:
        changed: list[Any] = []
        for each in found:
            if isinstance(each, effects.Deliver) and each.final and each.fragments[0].fragment_id == 0:
                changed += [effects.Send(link, core._run.finalization._manifest) for link in each.links]
            if not (isinstance(each, effects.Send) and isinstance(each.message, FinalManifest)):
                changed.append(each)
        return changed

    on_effects(change)()


def _shutdown_at_first_ack() -> None:
    def make(old: Any) -> Any:
        def ack(self: Any, link: Any, message: Any) -> None:
            old(self, link, message)
            for each in self._registry.current_links():
                self._outbox.emit(effects.Send(each, Shutdown()))

        return ack

    wrap(Finalization, "ack", make)


def _capacity_half() -> None:
    wrap(Closing, "_reached", lambda old: lambda self, round_: round_.capacity_share >= 0.5)


def _carry_dropped() -> None:
    wrap(LateCarry, "own_round", lambda old: lambda self, link, push, version: None)


def _carry_undecayed() -> None:
    def make(old: Any) -> Any:
        def init(self: Any, config: Any, num_fragments: int) -> None:
            old(self, config, num_fragments)
            self._decay = 1.0

        return init

    wrap(LateCarry, "__init__", make)


def _carry_twice() -> None:
    wrap(Intake, "_held", lambda old: lambda self, push, link: False)


def _budget_gate_late() -> None:
    """Rounds go on until the last report."""
    waiting: list[Any] = []

    def make(old: Any) -> Any:
        def budget_done(self: Any, now: float, group: Any) -> None:
            waiting.append(group)
            if len(waiting) == self._config.learners:
                for each in waiting:
                    old(self, now, each)

        return budget_done

    wrap(Run, "budget_done", make)


def _budget_shutdown() -> None:
    def make(old: Any) -> Any:
        def budget_done(self: Any, now: float, group: Any) -> None:
            old(self, now, group)
            self._outbox.emit(effects.Send(group.link, Shutdown()))

        return budget_done

    wrap(Run, "budget_done", make)


def _overflow_taken() -> None:
    wrap(plan.Scratch, "all_finite", lambda old: lambda self, values: True)


MUTANTS: Mapping[str, Callable[[], None]] = {
    "quorum-one": _quorum_one,
    "broadcasts-swapped": _broadcasts_swapped,
    "starts-with-one": _starts_with_one,
    "rebound-at-once": _asks_at_once,
    "joiner-at-once": _asks_at_once,
    "manifest-first": _manifest_first,
    "shutdown-at-first-ack": _shutdown_at_first_ack,
    "capacity-half": _capacity_half,
    "carry-dropped": _carry_dropped,
    "carry-undecayed": _carry_undecayed,
    "carry-twice": _carry_twice,
    "budget-gate-late": _budget_gate_late,
    "budget-shutdown": _budget_shutdown,
    "overflow-taken": _overflow_taken,
}
