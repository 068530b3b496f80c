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
    "connection given up, its last words come late": 4,
    "connections lost in a row": 6,
    "stray stream at the next dial": 4,
    "data stream lost": 4,
    "learner cut off": 3,
    "everybody cut off": 2,
    "slow network": 2,
    "learner stops reading": 5,
    "learner hangs": 3,
    "learner hangs without heartbeats": 2,
    "learner killed": 3,
    "learner killed, its checkpoint lost": 2,
    "syncer killed": 3,
    "syncer told to stop": 12,
    "syncer told to stop twice": 2,
    "checkpoint fails": 3,
    "merge not finite": 4,
    "marker fails": 1,
    **dict.fromkeys(SPOILS, 2.5),
    "NaN in a push": 6,
    "stale base": 9,
    "old push again": 4,
    "uninvited push": 6,
    "uninvited push after a redial": 3,
    "INIT of another learner": 4,
    "uninvited budget report": 2,
    "wrong final step": 2,
    "garbage on control": 2,
    "garbage on a data stream": 3,
    "forged broadcast": 2,
    "forged manifest": 1,
    "forged SHUTDOWN": 2,
    "observer stops reading": 2,
}

LATE_STOP = "syncer told to stop at a late delta"

STRANGERS: Mapping[str, float] = {
    **dict.fromkeys((f"stranger: {kind}" for kind in strangers.KINDS), 1.0),
    "stranger: no profile": 4.0,
    "stranger: a live generation again": 1.5,
    "stranger: a retired generation again": 3.0,
    "stranger: a stream of a retired generation": 5.0,
    "stranger: a stream before its HELLO, which never comes": 2.5,
}

LATE = (
    "connection reset",
    "connection lost, noticed late by the syncer",
    *("learner stops reading",) * 4,
    *("observer stops reading",) * 14,
    "learner killed",
    "learner killed, its checkpoint lost",
    "learner cut off",
    "syncer killed",
    "slow network",
    "wrong final step",
    *("forged manifest",) * 8,
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
    """A handful of faults and of strangers; none in every eighth world."""
    if rng.random() < 1 / 8:
        return ()
    faults = []
    for _ in range(rng.randint(4, 24)):
        late = rng.random() < 0.3
        kind = rng.choice(LATE) if late else _any(WEIGHTS, rng)
        at = _early(rng)
        if late:
            at = 0.0 if kind.startswith("observer") else rng.choice((0.0, rng.uniform(0.0, 8.0)))
        faults.append(Fault(kind, at, rng.randrange(config.learners), rng.getrandbits(32), late))
    if config.late_carry:
        for _ in range(3):  # what is carried has to be given up now and then
            faults.append(Fault(LATE_STOP, rng.uniform(1.0, 60.0), 0, rng.getrandbits(32)))
    for _ in range(rng.randint(0, 7)):
        faults.append(Fault(_any(STRANGERS, rng), _early(rng), 0, rng.getrandbits(32)))
    return tuple(sorted(faults, key=lambda fault: (fault.late, fault.at)))


def _any(weights: Mapping[str, float], rng: Random) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _early(rng: Random) -> float:
    return rng.uniform(1.0, rng.choice((20.0, 90.0, FAULTS_END)))
