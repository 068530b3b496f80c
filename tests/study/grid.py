"""Plays the whole grid and puts its figures together, as plain JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Final

from tests.study.failures import checkpointed, mean_between_failures, synchronous
from tests.study.setting import (
    AT_CHIPS,
    AT_LEARNERS,
    AT_RESTART_S,
    AT_YEARS,
    CHECKPOINT_S,
    CHIP_YEARS,
    CHIPS,
    LEARNERS,
    QUORUM_HORIZON_S,
    QUORUM_TIMEOUT_S,
    QUORUMS,
    RESTARTS_S,
    Point,
    failing,
    quiet,
)
from tests.study.world import Outcome, play

DIGITS: Final = 4
Progress = Callable[[int, int], None]


def points() -> list[Point]:
    """Every run of the study, each once: many grid points have the same failure rate."""
    grid = [
        failing(learners, chips, years, restart)
        for chips in CHIPS
        for years in CHIP_YEARS
        for restart in RESTARTS_S
        for learners in LEARNERS
    ]
    return list(dict.fromkeys([*map(quiet, LEARNERS), *grid, *map(with_quorum, QUORUMS)]))


def with_quorum(quorum: int) -> Point:
    """A run at the published point that waits for this many answers in each round."""
    return Point(
        learners=AT_LEARNERS,
        mean_s=mean_between_failures(AT_CHIPS, AT_YEARS) * AT_LEARNERS,
        restart_s=AT_RESTART_S,
        quorum=quorum,
        quorum_timeout_s=QUORUM_TIMEOUT_S,
        horizon_s=QUORUM_HORIZON_S,
    )


def study(seed: int, progress: Progress, workers: int | None = None) -> dict[str, Any]:
    """All figures. `progress` is told how many of how many runs are done."""
    wanted = points()
    found: dict[Point, Outcome] = {}
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        for point, outcome in zip(wanted, pool.map(partial(play, seed=seed), wanted), strict=True):
            found[point] = outcome
            progress(len(found), len(wanted))
    return assemble(seed, found)


def assemble(seed: int, found: dict[Point, Outcome]) -> dict[str, Any]:
    """The figures of all runs beside the synchronous job's, in the order of the grid."""
    base = {learners: found[quiet(learners)].merged for learners in LEARNERS}
    return {
        "seed": seed,
        "failure_free_merged": {str(learners): round(base[learners], DIGITS) for learners in LEARNERS},
        "grid": [
            row(chips, years, restart, found, base)
            for chips in CHIPS
            for years in CHIP_YEARS
            for restart in RESTARTS_S
        ],
        "quorums": [
            {"quorum": quorum, **figures(found[with_quorum(quorum)], base[AT_LEARNERS])} for quorum in QUORUMS
        ],
    }


def row(
    chips: int, years: float, restart: float, found: dict[Point, Outcome], base: dict[int, float]
) -> dict[str, Any]:
    """One point of the grid: the job as a whole, and divided among learners."""
    mean = mean_between_failures(chips, years)
    return {
        "chips": chips,
        "chip_years": years,
        "restart_s": restart,
        "job_mean_s": round(mean, DIGITS),
        "synchronous": round(synchronous(mean, restart), DIGITS),
        "synchronous_kept": round(checkpointed(mean, restart, CHECKPOINT_S), DIGITS),
        "decoupled": {
            str(learners): {
                "availability": round(synchronous(mean * learners, restart), DIGITS),
                **figures(found[failing(learners, chips, years, restart)], base[learners]),
            }
            for learners in LEARNERS
        },
    }


def figures(outcome: Outcome, base: float) -> dict[str, Any]:
    """What is told of one run. `kept` are the tokens of the ledger, beside those of the same run without
    failures (`base`, a share of all its steps)."""
    return {
        "steps": round(outcome.steps, DIGITS),
        "kept": round(outcome.merged / base, DIGITS),
        "failures": outcome.failures,
        "answers": round(outcome.answers, 2),
    }


def at(study: dict[str, Any], chips: int, years: float, restart: float) -> dict[str, Any]:
    """A point of the grid. KeyError when it is not there."""
    for each in study["grid"]:
        if (each["chips"], each["chip_years"], each["restart_s"]) == (chips, years, restart):
            return dict(each)
    raise KeyError((chips, years, restart))


def rates(rows: Iterable[dict[str, Any]], restart: float) -> Sequence[dict[str, Any]]:
    """The points with this restart time, one for each failure rate, from the rarest failures on."""
    found = {each["job_mean_s"]: each for each in rows if each["restart_s"] == restart}
    return [found[mean] for mean in sorted(found, reverse=True)]
