"""The learning-rate schedule of a resumed learner, which is easily forgotten and then starts from step 0."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

import torch
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR

__all__ = ["rebuild_schedule"]

log = logging.getLogger(__name__)


def rebuild_schedule(scheduler: object | None, steps: int, *, quiet: bool = False) -> None:
    """Bring a fresh scheduler to where it was after `steps` updates; leave one that was restored alone.

    It does not matter whether the optimizer's state was loaded too, before or after the scheduler was made.
    Learning rate, weight decay and whatever else the scheduler sets in the parameter groups are then those of
    the resumed step.  A scheduler that cannot be stepped by itself, or none, gets a warning.  quiet: for all
    ranks of a learner but one.
    """
    if steps == 0:
        return
    level = logging.DEBUG if quiet else logging.WARNING
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        log.log(
            level,
            "resumed at local step %d %s: if the training loop has a learning-rate schedule, load its saved "
            "state, or give the learner scheduler=; else the schedule starts again from step 0",
            steps,
            "without a scheduler"
            if scheduler is None
            else f"and {type(scheduler).__name__} cannot be rebuilt",
        )
        return
    at = _position(scheduler)
    if at > 0:
        if at != steps:
            log.log(
                level,
                "the learning-rate schedule was restored at its step %d, the learner at local step %d; right "
                "only for a schedule that does not step once with each update",
                at,
                steps,
            )
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the optimizer has not stepped yet
        _to_the_start(scheduler)
        for _ in range(steps):
            scheduler.step()
    rates = ", ".join(f"{rate:g}" for rate in scheduler.get_last_lr())
    log.log(level, "the learning-rate schedule was rebuilt for local step %d: rate %s", steps, rates)


def _parts(scheduler: LRScheduler) -> list[LRScheduler]:
    """What does the counting: a chain counts nothing itself."""
    return list(scheduler._schedulers) if isinstance(scheduler, ChainedScheduler) else [scheduler]


def _position(scheduler: LRScheduler) -> int:
    """The steps that it has made."""
    return int(_parts(scheduler)[0].last_epoch)


def _to_the_start(scheduler: LRScheduler) -> None:
    """Set the rates of step 0: a loaded optimizer state has those of the step at which it was saved, and many
    schedulers go on from there instead of from their base rates.
    """
    parts = _parts(scheduler)
    if any(isinstance(each, ChainedScheduler | SequentialLR) for each in parts):
        # A sequence sets the base rates itself when it is made, and remembers what it began with.
        _set_rates(scheduler.optimizer, scheduler.get_last_lr())
        return
    _set_rates(scheduler.optimizer, parts[0].base_lrs)
    for each in parts:
        each.last_epoch = -1
        each._initial_step()


def _set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float | torch.Tensor]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
