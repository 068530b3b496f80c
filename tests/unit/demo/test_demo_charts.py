"""The plots are well-formed SVG whose marks are where the values say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from yeto_learner.demo.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Cell,
    Scale,
    Series,
    grid_chart,
    line_chart,
)


def svg(text: str) -> ElementTree.Element:
    found = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert found
    return ElementTree.fromstring(found.group())


def test_a_line_goes_through_its_values() -> None:
    chart = line_chart([Series("a & b", [0, 5, 10], [0, 2, 4], 1)], "steps", "loss", from_zero=True)
    assert "a &amp; b" in chart
    lines = svg(chart).findall("polyline")
    points = [tuple(map(float, point.split(","))) for point in lines[0].attrib["points"].split()]
    assert points[0] == (LEFT, HEIGHT - BOTTOM)
    # The axis ends four per cent above the largest value.
    assert points[2] == pytest.approx(
        (LEFT + (WIDTH - RIGHT - LEFT) / 1.04, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) / 1.04), abs=0.1
    )
    assert points[1] == pytest.approx(
        tuple((a + b) / 2 for a, b in zip(points[0], points[2], strict=True)), abs=0.1
    )


def test_points_and_constant_values() -> None:
    root = svg(line_chart([Series("flat", [1, 2, 3], [0, 0, 0], 0, points=True)], "x", "y", from_zero=True))
    assert len(root.findall("circle")) == 3
    assert len({circle.attrib["cy"] for circle in root.findall("circle")}) == 1


def test_a_line_is_interrupted_where_it_should_be() -> None:
    root = svg(
        line_chart([Series("twice", [1, 2, 3, 4, 5], [5, 4, 3, 2, 1], 2, dashed=True, breaks=[2])], "x", "y")
    )
    lines = root.findall("polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 3]
    assert {line.attrib["class"] for line in lines} == {"s2 dashed"}


def test_nothing_recorded_is_said_in_words() -> None:
    assert line_chart([Series("empty", [], [], 0)], "x", "y") == "<p>No values were recorded.</p>"
    assert grid_chart([("row", [])], "x") == "<p>No values were recorded.</p>"


def test_a_grid_has_a_titled_square_per_cell() -> None:
    cells = [Cell("answered", "round 1"), Cell("missed", "round 2 <late>")]
    root = svg(grid_chart([("learner 0", cells), ("learner 1", cells)], "round"))
    squares = root.findall("rect")
    assert [square.attrib["class"] for square in squares] == ["answered", "missed"] * 2
    assert [square.findtext("title") for square in squares[:2]] == ["round 1", "round 2 <late>"]
    assert float(squares[0].attrib["x"]) == LEFT


def test_ticks_of_whole_numbers() -> None:
    assert Scale(0, 1.04, 0, 100, whole=True).ticks() == [0, 1]
    assert Scale(0, 31, 0, 100, whole=True).ticks() == [0, 10, 20, 30]


@pytest.mark.parametrize("span", [(0, 1), (0, 7.3), (1.93, 5.7), (0, 1200), (0, 3e-4), (-2, 2)])
def test_ticks_are_round_and_inside(span: tuple[float, float]) -> None:
    ticks = Scale(*span, 0, 100).ticks()
    assert 3 <= len(ticks) <= 8
    assert all(span[0] - 1e-9 <= tick <= span[1] + 1e-9 for tick in ticks)
    assert all(len(f"{tick:.6g}".replace("-", "").replace("0", "").replace(".", "")) <= 8 for tick in ticks)
