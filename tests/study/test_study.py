"""The goodput study: formulas against chance, runs against formulas, published figures against runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.study.__main__ import FIGURES
from tests.study.failures import STRATA, Gaps, checkpointed, mean_between_failures, synchronous
from tests.study.grid import at, figures, points, with_quorum
from tests.study.setting import AT_LEARNERS, LEARNERS, SEED, Point, failing, quiet
from tests.study.world import play


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def test_a_million_chips_of_one_year_fail_every_26_seconds() -> None:
    mean = mean_between_failures(1_200_000, 1.0)
    assert round(mean) == 26
    assert synchronous(mean, 71.0) == pytest.approx(0.27, abs=0.001)


@pytest.mark.parametrize(
    ("mean", "restart", "every"), [(26.0, 71.0, 60.0), (600.0, 71.0, 60.0), (50.0, 10.0, 5.0)]
)
def test_the_closed_forms_are_the_means_of_many_lives(mean: float, restart: float, every: float) -> None:
    rng = Random(7)
    lives = [rng.expovariate(1.0 / mean) for _ in range(100_000)]
    time = sum(lives) + restart * len(lives)
    assert synchronous(mean, restart) == pytest.approx(sum(lives) / time, rel=0.01)
    kept = sum(math.floor(life / every) * every for life in lives)
    assert checkpointed(mean, restart, every) == pytest.approx(kept / time, rel=0.03)


def test_working_times_are_exponential_and_each_block_is_close_to_its_mean() -> None:
    gaps = Gaps(Random(3), 100.0)
    drawn = [gaps.next() for _ in range(STRATA * 500)]
    for share in (0.1, 0.5, 0.9, 0.99):
        below = sum(gap < -math.log1p(-share) * 100.0 for gap in drawn) / len(drawn)
        assert below == pytest.approx(share, abs=0.01)
    independent = math.sqrt(STRATA) * 100.0
    sums = [sum(drawn[start : start + STRATA]) for start in range(0, len(drawn), STRATA)]
    spread = math.sqrt(sum((each - 100.0 * STRATA) ** 2 for each in sums) / len(sums))
    assert spread < 0.4 * independent


@pytest.mark.parametrize("learners", [1, 4])
def test_learners_that_never_fail_complete_everything(learners: int) -> None:
    outcome = play(quiet(learners), SEED)
    assert outcome.steps == pytest.approx(1.0, abs=0.002)
    assert 0.9 < outcome.merged < 0.95, "all but the steps between an answer and its merge"
    assert (outcome.failures, outcome.answers) == (0, learners)


def test_a_seed_is_a_run() -> None:
    point = failing(2, 2_400_000, 1.0, 10.0)
    assert play(point, 5) == play(point, 5) != play(point, 6)


def test_completed_steps_follow_the_time_that_learners_are_there() -> None:
    """Over more failures than in the study, so with little noise: the coordinator holds nobody up."""
    point = Point(learners=3, mean_s=30.0, restart_s=10.0, horizon_s=1000.0)
    outcome = play(point, SEED)
    assert outcome.failures > 60
    assert outcome.steps == pytest.approx(synchronous(30.0, 10.0), abs=0.025)
    assert 0.3 * outcome.steps < outcome.merged < outcome.steps


def test_quiet_stretches_count_as_if_they_were_played(monkeypatch: pytest.MonkeyPatch) -> None:
    point = Point(learners=2, mean_s=400.0, restart_s=30.0, horizon_s=1500.0)
    short = play(point, SEED)
    monkeypatch.setattr("tests.study.world.SETTLE_S", math.inf)
    whole = play(point, SEED)
    assert short.failures == whole.failures and short.rounds < 0.8 * whole.rounds
    assert short.steps == pytest.approx(whole.steps, abs=0.003)
    assert short.merged == pytest.approx(whole.merged, abs=0.01)


@pytest.mark.parametrize(
    ("chips", "years", "restart", "learners"),
    [
        (2_400_000, 0.25, 10.0, 2),
        (2_400_000, 0.25, 600.0, 4),
        pytest.param(1_200_000, 1.0, 71.0, 8, marks=pytest.mark.full),
    ],
)
def test_a_published_point_is_found_again(
    study: dict[str, Any], chips: int, years: float, restart: float, learners: int
) -> None:
    assert study["seed"] == SEED
    told = dict(at(study, chips, years, restart)["decoupled"][str(learners)])
    del told["availability"]
    base = play(quiet(learners), SEED).merged
    assert figures(play(failing(learners, chips, years, restart), SEED), base) == told


@pytest.mark.full
def test_a_published_quorum_is_found_again(study: dict[str, Any]) -> None:
    point = with_quorum(AT_LEARNERS)
    base = play(quiet(AT_LEARNERS), SEED).merged
    told = dict(study["quorums"][-1])
    assert told.pop("quorum") == AT_LEARNERS
    assert figures(play(point, SEED), base) == told


def test_the_figures_are_those_of_the_whole_grid(study: dict[str, Any]) -> None:
    assert len(study["grid"]) == 5 * 5 * 4
    assert all(list(row["decoupled"]) == [str(each) for each in LEARNERS] for row in study["grid"])
    assert len(points()) == len(set(points()))
    for row in study["grid"]:
        mean = mean_between_failures(row["chips"], row["chip_years"])
        assert row["synchronous"] == round(synchronous(mean, row["restart_s"]), 4)
        for run in row["decoupled"].values():
            assert run["steps"] == pytest.approx(run["availability"], abs=0.12), row


def test_a_round_of_everybody_waits_for_those_that_are_away() -> None:
    point = Point(learners=3, mean_s=100.0, restart_s=50.0, quorum_timeout_s=60, horizon_s=600.0)
    one, everybody = play(point, SEED), play(replace(point, quorum=3), SEED)
    assert everybody.merged / everybody.steps < 0.95 * one.merged / one.steps
    assert everybody.rounds < 0.8 * one.rounds
