"""The report is one page that needs nothing else and says what the run showed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.demo.stories import story
from yeto_learner.demo.folder import Folder
from yeto_learner.demo.promises import Promise
from yeto_learner.demo.report import moved_bytes, render
from yeto_learner.demo.settings import Settings
from yeto_learner.demo.story import Story, Trainee
from yeto_proto.layout import build_layout

SETTINGS = replace(Settings(), rounds=12)
LAYOUT = build_layout({name: value.shape for name, value in SETTINGS.model.init(0).items()}, 4)
PROMISES = [Promise("it works & shines", True, "1 < 2"), Promise("it flies", False, "it fell")]


class Links(HTMLParser):
    """Everything that a page would load from elsewhere, and tags that were not closed."""

    VOID = ("meta", "br", "hr", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass  # <circle ... />

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return render(SETTINGS, LAYOUT, story(), PROMISES, Folder(Path("some/where <here>")))


def test_it_is_well_formed_and_self_contained(page: str) -> None:
    links = Links()
    links.feed(page)
    assert links.loads == []
    assert links.open == []
    assert "@import" not in page
    assert "url(" not in page
    assert "$" not in page


def test_it_says_what_was_promised_and_found(page: str) -> None:
    assert "1 of 2 promises kept" in page
    assert "it works &amp; shines" in page
    assert "1 &lt; 2" in page
    assert "where &lt;here&gt;" in page
    for value in ("5.5000", "1.5000", "2.0000", "1.7000"):
        assert value in page
    assert LAYOUT.fingerprint().hex() in page
    assert "11 answers" not in page  # learner 1 missed two of twelve
    assert page.count("12 answers") == 2
    assert "10 answers, 70 local steps, connections: 2" in page


def test_every_plot_is_there(page: str) -> None:
    plots = [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    assert len(plots) == 7
    squares = plots[2].findall("rect")
    assert len(squares) == 36
    kinds = [square.attrib["class"] for square in squares[12:24]]
    assert kinds == ["answered"] * 4 + ["missed", "away"] + ["answered"] * 6


def test_a_run_without_rounds_still_has_a_report() -> None:
    empty = Story(12, [Trainee(f"learner {learner}") for learner in range(3)])
    page = render(SETTINGS, LAYOUT, empty, [], Folder(Path("x")))
    assert page.count("No values were recorded.") == 7


def test_bytes_of_a_round_are_pushes_and_broadcasts() -> None:
    one = story().rounds[4]  # three were asked, two answered
    assert moved_bytes(SETTINGS, LAYOUT, one) == (2 + 3) * 2 * LAYOUT.fragments[one.fragment].numel
    quantized = replace(SETTINGS, dtype="q4")
    assert moved_bytes(quantized, LAYOUT, one) < moved_bytes(SETTINGS, LAYOUT, one)
