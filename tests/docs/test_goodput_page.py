"""The page of the goodput study is what its figures give, and what it says of them is true."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.study.__main__ import FIGURES, PAGE, PLOT
from tests.study.grid import at
from tests.study.page import page
from tests.study.plot import plot
from tests.study.setting import (
    AT_CHIPS,
    AT_RESTART_S,
    AT_YEARS,
    CHIP_YEARS,
    CHIPS,
    LEARNERS,
    PUBLISHED,
    RESTARTS_S,
    assumptions,
)


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def test_page_and_plot_are_drawn_from_the_figures(study: dict[str, Any]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(study), "make study ARGS=--render"
    assert PLOT.read_text(encoding="utf-8") == plot(study), "make study ARGS=--render"


def test_every_assumption_and_every_published_figure_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(each in text for each in assumptions())
    assert "Reported by secondary sources" in text
    for row in PUBLISHED:
        assert f"| {' | '.join(row)} |" in text


def test_every_point_of_the_grid_has_its_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\d,]+ \| [\d.]+ years \| \d+ s \|(?: [\d.]+ / [\d.]+ \|){6}$", text, re.M)
    assert len(rows) == len(CHIPS) * len(CHIP_YEARS) * len(RESTARTS_S)


def test_the_plot_loads_nothing(study: dict[str, Any]) -> None:
    drawn = plot(study)
    assert drawn.count("<polyline") == 2 * 2 * (len(LEARNERS) + 1)
    assert not re.search(r"href|url\(|@import|<script|<image", drawn)
    assert re.findall(r"https?://[^\"]+", drawn) == ["http://www.w3.org/2000/svg"]


def test_what_the_page_says_holds(study: dict[str, Any]) -> None:
    point = at(study, AT_CHIPS, AT_YEARS, AT_RESTART_S)
    runs = [point["decoupled"][str(learners)] for learners in LEARNERS]
    steps = [run["steps"] for run in runs]
    assert steps == sorted(steps), "it pays by the number of parts"
    assert steps[-1] > 2 * point["synchronous"]
    assert all(run["kept"] < run["steps"] for run in runs)
    assert abs(steps[0] - point["synchronous"]) < 0.05, "one learner is the synchronous job again"
    eight = point["decoupled"]["8"]
    assert eight["steps"] < 0.8, "the published 88 % do not follow"
    assert eight["kept"] > 2 * point["synchronous_kept"]
    rare = at(study, CHIPS[0], AT_YEARS, AT_RESTART_S)
    assert rare["synchronous"] > 0.97, "nothing to win"
    worst = at(study, CHIPS[-1], CHIP_YEARS[0], AT_RESTART_S)
    assert worst["decoupled"]["1"]["kept"] < 0.5 * worst["decoupled"]["1"]["steps"]
    first, last = study["quorums"][0], study["quorums"][-1]
    assert last["kept"] < first["kept"] - 0.02 and abs(last["steps"] - first["steps"]) < 0.05
