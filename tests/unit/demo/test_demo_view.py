"""What is shown: a panel with everything in it, or plain lines without a single control character."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.unit.demo.stories import story
from yeto_learner.demo.promises import Promise
from yeto_learner.demo.settings import Settings
from yeto_learner.demo.view import LiveView, PlainView, QuietView, make_view

PROMISES = [Promise("it works", True, "as seen"), Promise("it flies", False, "it fell")]


def test_the_panel_shows_rounds_fragments_learners_and_notes() -> None:
    told = story()
    told.phase = "training"
    told.notes.append((3.25, "learner 1 killed after round 4"))
    console = Console(file=io.StringIO(), force_terminal=True, width=110, color_system=None)
    view = LiveView(told, Settings(), console)
    with view.showing():
        view.update()
    view.summary(PROMISES, ["a line"])
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in (
        "training",
        "12/12",
        "0: v9",
        "3: v12",
        "learner 2",
        "1.500",
        "learner 1 killed after round 4",
    ):
        assert part in text
    # Learner 1: answered four, was too late for one, was away for one, answered the rest.
    assert "●●●●○·●●●●●●" in text
    assert "✔ it works" in text
    assert "✘ it flies" in text


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView(story(40))
    with view.showing():
        view.phase("training")
        view.update()
        view.update()
    view.summary(PROMISES, ["a line"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("s  ", 1)[-1].split("  answered")[0] for line in lines[:3]] == [
        "training",
        "round 20/40  fragment 3",
        "round 40/40  fragment 3",
    ]
    assert lines[3:] == ["a line", "ok   it works: as seen", "FAIL it flies: it fell"]


def test_without_a_terminal_the_view_is_plain_and_with_json_it_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert isinstance(make_view(story(), Settings(), quiet=False), PlainView)
    silent = make_view(story(), Settings(), quiet=True)
    assert isinstance(silent, QuietView)
    with silent.showing():
        silent.phase("training")
        silent.note("something")
        silent.update()
    silent.summary(PROMISES, ["a line"])
    assert capsys.readouterr() == ("", "")
