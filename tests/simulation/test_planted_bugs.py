"""The simulator finds what it is there for: each of these bugs, planted into the cores, breaks a promise."""

from __future__ import annotations

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.worlds import failure_of

ENOUGH_SEEDS = 1000  # as many as the suite plays


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    bug, first = BUGS[name]
    with bug():
        seed, failure = next(
            (
                (seed, failure)
                for seed in range(first, first + ENOUGH_SEEDS)
                if (failure := failure_of(seed)) is not None
            ),
            (-1, None),
        )
    assert failure is not None, f"no seed from {first} on finds it"
    assert failure_of(seed) is None, f"seed {seed} fails without the bug too"
