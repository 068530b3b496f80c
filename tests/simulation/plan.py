"""The faults of a world, drawn before it begins, so that a story can be told again with fewer of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tests.simulation import strangers
from tests.simulation.mischief import SPOILS
from yeto_syncer.core.config import Config

FAULTS_END = 240.0  # virtual seconds; a fault of the terminal phase may come later

# How often each kind is drawn, relative to the others. What needs a certain moment to bite stands higher.
WEIGHTS: Mapping[str, float] = {
    "connection reset": 3,
    "connection lost, noticed late by the syncer": 4,
    "connection lost, noticed late by the learner": 2,
    "data stream lost": 2,
    "learner cut off": 3,
    "everybody cut off": 1,
    "slow network": 2,
    "learner stops reading": 4,
    "learner hangs": 3,
    "learner hangs without heartbeats": 2,
    "learner killed": 3,
    "learner killed, its checkpoint lost": 2,
    "syncer killed": 3,
    "syncer told to stop": 4,
    "syncer told to stop twice": 1,
    "checkpoint fails": 3,
    "marker fails": 1,
    **dict.fromkeys(SPOILS, 2.0),
    "overflowing push": 3,
    "old push again": 3,
    "uninvited push": 6,
    "INIT of another learner": 2,
    "uninvited budget report": 2,
    "wrong final step": 2,
    "garbage on control": 2,
    "garbage on a data stream": 3,
    "forged broadcast": 2,
    "forged manifest": 1,
    "forged SHUTDOWN": 2,
    **{f"stranger: {kind}": 1.3 for kind in strangers.KINDS},
}

LATE = (
    "connection reset",
    "connection lost, noticed late by the syncer",
    "learner stops reading",
    "learner killed",
    "learner killed, its checkpoint lost",
    "learner cut off",
    "syncer killed",
    "slow network",
    "wrong final step",
    "forged manifest",
    "forged broadcast",
    "checkpoint fails",
    "marker fails",
    "syncer told to stop",
)
"""What is worth doing to the terminal exchange."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What, when and to whom. `late`: `at` counts from the first final cut. `dice` decides the rest."""

    kind: str
    at: float
    learner: int
    dice: int
    late: bool = False

    def __str__(self) -> str:
        when = f"{self.at:.1f} s into the terminal exchange" if self.late else f"at {self.at:.1f} s"
        return f"{self.kind} (learner {self.learner}) {when}"


def draw_plan(rng: Random, config: Config) -> tuple[Fault, ...]:
    """Up to sixteen faults; none in every sixth world."""
    count = 0 if rng.random() < 1 / 6 else rng.randint(1, 16)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    faults = []
    for _ in range(count):
        late = rng.random() < 0.25
        kind = rng.choice(LATE) if late else rng.choices(kinds, weights)[0]
        at = rng.uniform(0.0, 8.0) if late else rng.uniform(1.0, rng.choice((20.0, 90.0, FAULTS_END)))
        faults.append(Fault(kind, at, rng.randrange(config.learners), rng.getrandbits(32), late))
    return tuple(sorted(faults, key=lambda fault: (fault.late, fault.at)))
