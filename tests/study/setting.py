"""The numbers of the study: its grid, its assumptions, and the published figures that stand beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

STEP_S: Final = 1.0
FRAGMENTS: Final = 24
SYNC_STEPS: Final = 24.0
PIPELINE: Final = 6
CONTROL_S: Final = 0.05
BULK_S: Final = 0.5
MERGE_S: Final = 0.02
PACE_SPREAD: Final = 0.02
CHECKPOINT_S: Final = 60.0
LEARNER_SECONDS: Final = 16_000.0
SHORTEST_S: Final = 1_000.0
SEED: Final = 1

CHIP_YEARS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
RESTARTS_S: Final = (10.0, 30.0, 71.0, 200.0, 600.0)
CHIPS: Final = (10_000, 100_000, 300_000, 1_200_000, 2_400_000)
LEARNERS: Final = (1, 2, 4, 8, 16)

# What secondary sources report of the paper; see the page.
PUBLISHED_CHIPS: Final = 1_200_000
PUBLISHED: Final[tuple[dict[str, str], ...]] = (
    {
        "what": "goodput under simulated failures, 1.2 M chips",
        "decoupled": "88 %",
        "synchronous": "27 % (plain data parallel)",
    },
    {
        "what": "goodput, 2.4 M chips",
        "decoupled": "88 %",
        "synchronous": "40 to 58 % (elastic data parallel; sources differ)",
    },
    {
        "what": "bandwidth between sites, 1 s steps",
        "decoupled": "1.7 Gbit/s (another source: 0.84 over 8 sites)",
        "synchronous": "104 Gbit/s (another source: 198)",
    },
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
    seed: int = SEED


def horizon(learners: int) -> float:
    """Seconds that a run with this many learners is observed."""
    return max(SHORTEST_S, LEARNER_SECONDS / learners)


def assumptions() -> list[str]:
    """Everything that the figures rest on, in sentences."""
    return [
        "Every chip fails independently, with an exponential time to failure. The constants of the paper's "
        "failure model are not in the sources at hand, so its mean runs over a grid.",
        "A failure stops a whole unit: a learner in the decoupled run, the whole job in the synchronous one. "
        "It is noticed at once, since the processes' sockets close.",
        "A unit is away for a fixed restart time, in which everything is contained: noticing, replacing the "
        "chip, starting, and loading the state. Chips that fail while their unit is away come back in the same "
        "restart. The restart time is the same for a learner and for the whole job, which favours the "
        "synchronous job: it is the larger one.",
        "A synchronous job has no spare units and does not shrink. It pays nothing for its checkpoints, and "
        f"takes one every {CHECKPOINT_S:g} s where the column says so.",
        "The syncer and its host do not fail.",
        f"An inner step takes {STEP_S:g} s, and learners differ in it by up to "
        f"{PACE_SPREAD:.0%}. H = {SYNC_STEPS:g} inner steps, {FRAGMENTS} fragments, tau = 2 steps: the figures "
        f"of the paper. Quorum 1, `--pipeline {PIPELINE}`, `--grace-ms 2000`; everything else is a default.",
        f"A small frame takes {CONTROL_S:g} s, a fragment {BULK_S:g} s in each direction, whatever else is on "
        f"the link; a merge takes {MERGE_S:g} s. A message whose learner dies on the way is lost.",
        "A learner that comes back keeps nothing: it takes all fragments from the syncer's catch-up and trains "
        "from there.",
        "A step counts when it was completed. What a step teaches the model is not measured: steps of a few "
        "learners on stale parameters are not worth the same as those of one large synchronous batch.",
    ]


def key(point: Point) -> dict[str, Any]:
    """A point without its seed and horizon, for a record."""
    plain = replace(point, seed=SEED)
    return {"learners": plain.learners, "mean_s": plain.mean_s, "restart_s": plain.restart_s}
