"""The learning-rate schedule of a resumed learner, which is easily forgotten and then starts from step 0."""

from __future__ import annotations

import logging
import warnings

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

__all__ = ["rebuild_schedule"]

log = logging.getLogger(__name__)


def rebuild_schedule(scheduler: object | None, steps: int, *, quiet: bool = False) -> None:
    """Bring a fresh scheduler to where it was after `steps` updates; leave one that was restored alone.

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
    if scheduler.last_epoch > 0:
        if scheduler.last_epoch != steps:
            log.log(
                level,
                "the learning-rate schedule was restored at its step %d, the learner at local step %d; right "
                "only for a schedule that does not step once with each update",
                scheduler.last_epoch,
                steps,
            )
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the optimizer has not stepped yet
        for _ in range(steps):
            scheduler.step()
    rates = ", ".join(f"{rate:g}" for rate in scheduler.get_last_lr())
    log.log(level, "the learning-rate schedule was rebuilt for local step %d: rate %s", steps, rates)
