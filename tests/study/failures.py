"""When units of a job fail, and the closed forms of what that costs a job that fails as one.

A unit works for a time that is exponential with mean `mean_s`, is away for `restart_s`, and works again.
Chips that break while their unit is away are replaced in the same restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Final

YEAR_S: Final = 365.25 * 24 * 3600.0
STRATA: Final = 16


def mean_between_failures(chips: float, chip_years: float) -> float:
    """Seconds between two failures among this many chips that fail once in `chip_years` each."""
    return chip_years * YEAR_S / chips


def synchronous(mean_s: float, restart_s: float) -> float:
    """The share of time in which a job is at work that stops with any of its chips: 1 / (1 + R / mean)."""
    return 1.0 / (1.0 + restart_s / mean_s)


def checkpointed(mean_s: float, restart_s: float, every_s: float) -> float:
    """The share of time whose work such a job keeps when it goes back to a checkpoint at each failure.

    Of a working time X, exponential with mean 1/a, only whole intervals of length C are kept. Their expected
    number is the sum of P(X > k C) over k >= 1, which is 1 / (exp(a C) - 1). Checkpoints cost nothing here.
    """
    kept = every_s / math.expm1(every_s / mean_s)
    return kept / (mean_s + restart_s)


class Gaps:
    """Working times of all units of a job, exponential with mean `mean_s`.

    They are drawn in blocks of `STRATA`, one from each quantile range, in random order: every one of them is
    exponential, and their sum is much closer to its mean than with independent draws. That takes most of the
    noise out of a short simulation.
    """

    def __init__(self, rng: Random, mean_s: float) -> None:
        self._rng, self._mean = rng, mean_s
        self._draws = self._endless()

    def next(self) -> float:
        """The next working time in seconds, in whole thousandths: no result hangs on the last bit of a
        logarithm."""
        return round(-math.log1p(-next(self._draws)) * self._mean, 3)

    def _endless(self) -> Iterator[float]:
        while True:
            block = [(place + self._rng.random()) / STRATA for place in range(STRATA)]
            self._rng.shuffle(block)
            yield from block
