"""Step-rate estimate, grace window and throttle as plain functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from yeto_syncer.core.steprate import StepRate, grace_window, round_interval, slowest

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "grace.json").read_text(encoding="utf-8"))[
    "vectors"
]


@pytest.mark.parametrize("vector", VECTORS)
def test_grace_vectors(vector: dict[str, Any]) -> None:
    values = dict(vector)
    expected = values.pop("expected")
    assert grace_window(**values) == pytest.approx(expected, abs=1e-12)


def test_the_first_sample_is_taken_as_it_is_and_later_ones_are_averaged() -> None:
    rate = StepRate()
    rate.report(10.0, 100)
    assert rate.seconds is None
    rate.report(14.0, 102)
    assert rate.seconds == 2.0
    rate.report(18.0, 103)
    assert rate.seconds == 0.5 * 4.0 + 0.5 * 2.0


@pytest.mark.rule("syncer.heartbeat.repeated")
def test_a_repeated_step_does_not_shorten_the_next_sample() -> None:
    rate = StepRate()
    rate.report(0.0, 5)
    rate.report(8.0, 5)
    rate.report(10.0, 6)
    assert rate.seconds == 10.0


def test_a_step_that_went_back_changes_nothing() -> None:
    rate = StepRate()
    rate.report(0.0, 5)
    rate.report(1.0, 3)
    rate.report(2.0, 6)
    assert rate.seconds == 2.0


def test_slowest_takes_the_known_ones_only() -> None:
    assert slowest([None, 2.0, 3.0]) == 3.0
    assert slowest([None]) is None
    assert slowest([]) is None


def test_round_interval() -> None:
    assert round_interval(minimum=0.5, sync_interval_steps=24, step=None, num_fragments=4) == 0.5
    assert round_interval(minimum=0.5, sync_interval_steps=24, step=2.0, num_fragments=4) == 12.0
    assert round_interval(minimum=20.0, sync_interval_steps=24, step=2.0, num_fragments=4) == 20.0
    assert round_interval(minimum=0.5, sync_interval_steps=0, step=2.0, num_fragments=4) == 0.5
