"""The waits between tries to come back."""

from __future__ import annotations

from itertools import islice

import pytest

from yeto_learner.core.redial import redial_waits


@pytest.mark.rule("learner.redial.waits")
def test_waits_double_up_to_thirty_seconds() -> None:
    assert list(islice(redial_waits(), 8)) == [1, 2, 4, 8, 16, 30, 30, 30]


def test_each_outage_starts_again() -> None:
    first, second = redial_waits(), redial_waits()
    assert [next(first), next(first), next(second)] == [1, 2, 1]
