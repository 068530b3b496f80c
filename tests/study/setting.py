"""The numbers of the study: its grid, its assumptions, and the published figures that stand beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tests.study.failures import mean_between_failures

STEP_S: Final = 1.0
FRAGMENTS: Final = 24
SYNC_STEPS: Final = 24.0
PIPELINE: Final = 6
CONTROL_S: Final = 0.05
BULK_S: Final = 0.5
MERGE_S: Final = 0.02
PACE_SPREAD: Final = 0.02
CHECKPOINT_S: Final = 60.0
CYCLES: Final = 16  # failures with their restart that a run is long enough for, over all its learners
SHORTEST_S: Final = 600.0
SEED: Final = 1  # of the published figures

CHIP_YEARS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
RESTARTS_S: Final = (10.0, 71.0, 200.0, 600.0)
CHIPS: Final = (10_000, 100_000, 300_000, 1_200_000, 2_400_000)
LEARNERS: Final = (1, 2, 4, 8, 16)

# The point at which secondary sources report 27 % for a synchronous job: with a mean of one year, 1.2 M chips
# fail every 26 s, and 27 % follow from a restart of 71 s.
AT_CHIPS, AT_YEARS, AT_RESTART_S, AT_LEARNERS = 1_200_000, 1.0, 71.0, 8
QUORUMS: Final = (1, 2, 4, 6, 8)
QUORUM_TIMEOUT_S: Final = 60
QUORUM_HORIZON_S: Final = 3000.0

# What secondary sources report of the paper; see the page.
PUBLISHED: Final = (
    ("goodput under simulated failures, 1.2 M chips", "88 %", "27 % (plain data parallel)"),
    ("goodput, 2.4 M chips", "88 %", "40 to 58 % (elastic data parallel; sources differ)"),
    ("bandwidth between sites, steps of 1 s", "1.7 Gbit/s (or 0.84 over 8 sites)", "104 Gbit/s (or 198)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One simulated run. `mean_s` is the mean time between two failures of one learner, in seconds; infinite
    for a run without failures."""

    learners: int
    mean_s: float
    restart_s: float
    quorum: int = 1
    quorum_timeout_s: int = 900
    horizon_s: float = SHORTEST_S


def failing(learners: int, chips: float, chip_years: float, restart_s: float) -> Point:
    """The decoupled run of a grid point: each learner has its share of the chips."""
    mean = mean_between_failures(chips, chip_years) * learners
    seconds = max(SHORTEST_S, CYCLES * (mean + restart_s) / learners)
    return Point(learners=learners, mean_s=mean, restart_s=restart_s, horizon_s=seconds)


def quiet(learners: int) -> Point:
    """The same run without failures."""
    return Point(learners=learners, mean_s=math.inf, restart_s=0.0)


def assumptions() -> list[str]:
    """Everything that the figures rest on, in sentences."""
    return [
        "Every chip fails independently, with an exponential time to failure. The constants of the paper's "
        "failure model are not in the sources at hand, so its mean runs over a grid.",
        "A failure stops a whole unit: a learner in the decoupled run, the whole job in the synchronous one. "
        "The syncer notices it at once, as when a process is killed and its sockets close.",
        "A unit is away for a fixed restart time, in which everything is contained: noticing, replacing the "
        "chip, starting, and loading the state. Chips that fail while their unit is away come back in the "
        "same restart. A learner and the whole job take the same time for it, which favours the synchronous "
        "job: it is the larger one.",
        "A synchronous job has no spare units and does not shrink. It pays nothing for its checkpoints, and "
        f"takes one every {CHECKPOINT_S:g} s where its kept work is told.",
        "The syncer and its host do not fail.",
        f"An inner step takes {STEP_S:g} s; the paces of learners are spread over {PACE_SPREAD:.0%}. "
        f"H = {SYNC_STEPS:g} inner steps and {FRAGMENTS} fragments, as in the paper. `--quorum 1`, "
        f"`--pipeline {PIPELINE}`, `--grace-ms 2000`; everything else is a default.",
        f"A small frame takes {CONTROL_S:g} s and a fragment {BULK_S:g} s in each direction, whatever else "
        f"is on the link; a merge takes {MERGE_S:g} s. That makes the overlap of about 2 steps (tau) of the "
        "paper. A message whose learner dies on the way is lost.",
        "A learner that comes back keeps nothing: it takes all fragments from the syncer's catch-up and "
        "trains from there.",
        "A step counts when it was completed. What it teaches the model is not measured: steps of a few "
        "learners on stale parameters are not worth the same as those of one large synchronous batch.",
    ]
