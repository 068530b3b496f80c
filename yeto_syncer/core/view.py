"""What a run looks like at one moment, for the status page and the metrics. It only reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yeto_syncer.core.config import Config
    from yeto_syncer.core.registry import Group, Registry
    from yeto_syncer.core.rounds import Round
    from yeto_syncer.core.run import Run


@dataclass(frozen=True, slots=True)
class LearnerView:
    """The current connection of a learner. `step_s` is the estimate of its time for one inner step; `quiet_s`
    how long nothing came from it. `token` names the delivery that it catches up by."""

    learner_id: int
    generation: int
    state: str
    observer: bool
    streams: int
    step_s: float | None
    quiet_s: float
    token: int | None


@dataclass(frozen=True, slots=True)
class RoundView:
    """A round in flight. Times are seconds since its attempt was launched; None for what has not happened."""

    step: int
    fragment: int
    attempt: int
    state: str
    quorum: int
    answered: tuple[int, ...]
    missing: tuple[int, ...]
    age_s: float
    quorum_s: float | None
    grace_s: float | None
    closed_s: float | None


@dataclass(frozen=True, slots=True)
class RunView:
    """The run. `versions` are those of the fragments, None where one has no parameters; `acks_missing` are
    the learners whose FINAL_ACK is waited for, `observers` the ids that are never asked."""

    phase: str
    step: int
    total_steps: int
    learners: int
    quorum: int
    versions: tuple[int | None, ...]
    connections: tuple[LearnerView, ...]
    rounds: tuple[RoundView, ...]
    acks_missing: tuple[int, ...]
    sync_s: float
    observers: tuple[int, ...]


def view(now: float, config: Config, registry: Registry, run: Run) -> RunView:
    """The run as it stands; `now` is on the clock of `Coordinator.step`."""
    model, scheduler, finalization = run.model, run.scheduler, run.finalization
    return RunView(
        phase=run.phase.value,
        step=0 if model is None else model.global_step,
        total_steps=config.total_steps,
        learners=config.learners,
        quorum=config.quorum,
        versions=() if model is None else model.versions,
        connections=tuple(_learners(now, registry)),
        rounds=() if scheduler is None else tuple(_round(now, each) for each in scheduler.in_flight),
        acks_missing=() if finalization is None else tuple(finalization.missing),
        sync_s=0.0 if scheduler is None else scheduler.sync_s,
        observers=config.observers,
    )


def _learners(now: float, registry: Registry) -> Iterable[LearnerView]:
    groups: list[Group] = sorted(registry.current_groups(), key=lambda group: group.link)
    for group in groups:
        yield LearnerView(
            learner_id=group.link.learner_id,
            generation=group.link.generation,
            state=group.state.value,
            observer=registry.is_observer(group.link.learner_id),
            streams=len(group.data_conns),
            step_s=group.rate.seconds,
            quiet_s=max(now - group.heard_at, 0.0),
            token=group.token,
        )


def _round(now: float, round_: Round) -> RoundView:
    since = round_.launched_at

    def after(moment: float | None) -> float | None:
        return None if moment is None else moment - since

    return RoundView(
        step=round_.global_step,
        fragment=round_.fragment_id,
        attempt=round_.attempt,
        state=round_.state.value,
        quorum=round_.quorum,
        answered=tuple(sorted(learner for learner, slot in round_.slots.items() if slot.responded)),
        missing=tuple(sorted(learner for learner, slot in round_.slots.items() if not slot.responded)),
        age_s=now - since if round_.captured else 0.0,
        quorum_s=after(round_.quorum_at),
        grace_s=round_.grace_s,
        closed_s=after(round_.completed_at),
    )
