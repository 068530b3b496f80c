"""What the records of a tape add up to on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tape.tapes import eventful
from yeto_syncer.board import (
    CURVE_LEARNERS,
    CURVE_POINTS,
    RECENT_EVENTS,
    RECENT_ROUNDS,
    Board,
    state,
    warnings,
)
from yeto_syncer.status_page import SLOT, page
from yeto_syncer.tape_cli import main
from yeto_syncer.tape_file import read


def board_of(records: list[dict[str, Any]]) -> Board:
    board = Board()
    for record in records:
        board.add(record)
    return board


def commit(
    step: int, *, missed: tuple[int, ...] = (), at: float | None = None, fragments: int = 2
) -> dict[str, Any]:
    """A commit of two learners, of which some may have missed it."""
    members = [{"id": number, "generation": 1} for number in range(2)]
    answers = [
        {"id": number, "generation": 1, "base_version": 0, "staleness": 1, "c_steps": 10, "c_tokens": 5}
        | {"weight": 1.0, "contribution": 0.5}
        for number in range(2)
        if number not in missed
    ]
    record = {
        "step": step,
        "fragment": (step - 1) % fragments,
        "attempt": 1,
        "quorum": 1,
        "gnorm": 0.5,
        "ms": 100,
        "quorum_ms": 50,
        "grace_waited_ms": 10,
        "sync_ms": 20,
        "expected_members": members,
        "responders": answers,
    }
    return record if at is None else record | {"time": at}


@pytest.fixture
def eventful_board(tmp_path: Path) -> Board:
    path = tmp_path / "tape.jsonl"
    eventful(path)
    return board_of(list(read(path)))


def test_an_eventful_run(eventful_board: Board) -> None:
    told = state(eventful_board)
    assert (told["step"], told["total_steps"], told["processes"]) == (12, 12, 2)
    assert told["ended"]["code"] == 0 and told["warnings"] == []
    assert sorted(told["fragments"])[-1] == 12
    assert [row["id"] for row in told["learners"]] == [0, 1, 2]
    assert told["learners"][1]["joins"] == 3  # before and after its loss, and at the second process
    assert sum(row["share"] for row in told["learners"]) == pytest.approx(12)
    assert told["rounds"][-1]["step"] == 12 and told["rounds"][3]["attempt"] == 2
    kinds = [event["kind"] for event in told["events"]]
    assert kinds.count("run_started") == 2 and "recovery" in kinds and "commit" not in kinds
    json.dumps(told, allow_nan=False)


def test_rates() -> None:
    board = board_of([commit(step, at=10.0 + step) for step in range(1, 9)])
    assert board.rate() == pytest.approx(1.0)
    assert board.rate(until=25.0) == pytest.approx(7 / 14)
    assert board.learners[0].rate == pytest.approx(5.0)  # ten steps between two answers for one fragment, 2 s
    assert board_of([commit(1)]).rate() is None


def test_everything_is_bounded() -> None:
    records: list[dict[str, Any]] = [commit(step, at=float(step)) for step in range(1, 4 * CURVE_POINTS)]
    records += [{"event": "learner_joined", "id": 0, "generation": n, "step": 0} for n in range(500)]
    board = board_of(records)
    assert len(board.rounds) == RECENT_ROUNDS and len(board.events) == RECENT_EVENTS
    assert len(board.curves) < 2 * CURVE_POINTS
    steps = [point["step"] for point in board.curves]
    assert steps == sorted(steps) and steps[-1] > 4 * CURVE_POINTS - 10


def test_the_curves_of_a_large_fleet_hold_what_is_drawn() -> None:
    """The state is made anew for each look, on the loop that also serves the rounds."""
    member = commit(1)["responders"][0]
    answers = [member | {"id": number} for number in range(256)]
    members = [{"id": number, "generation": 1} for number in range(256)]
    board = board_of(
        [
            commit(step, at=float(step)) | {"responders": answers, "expected_members": members}
            for step in range(1, 2 * CURVE_POINTS)
        ]
    )
    told = state(board)
    assert all([*point["staleness"]] == [*range(CURVE_LEARNERS)] for point in told["curves"])
    [colours] = re.findall(r"const COLOURS = \[(.*)\];", page())
    assert len(colours.split(",")) == CURVE_LEARNERS
    assert len(json.dumps(told)) < 1 << 19


def test_observers_may_be_away() -> None:
    came = [{"event": "learner_joined", "id": 3, "generation": n, "step": 0} for n in range(6)]
    board = board_of([*came, {"event": "learner_left", "id": 3, "generation": 5, "reason": "disconnected"}])
    assert len(warnings(board)) == 2
    assert warnings(board, observers=(3,)) == []


def test_who_misses_round_after_round_is_told() -> None:
    board = board_of([commit(step, missed=(1,)) for step in range(1, 7)])
    assert any(text.startswith("Learner 1 has missed its last 6 rounds") for text in warnings(board))
    board.add(commit(7))
    assert not any("missed" in text for text in warnings(board))


def test_who_is_away_is_told_until_it_is_back() -> None:
    board = board_of(
        [
            {"event": "learner_joined", "id": 3, "generation": 7, "step": 0},
            {"event": "learner_left", "id": 3, "generation": 7, "reason": "disconnected"},
        ]
    )
    assert warnings(board) == ["Learner 3 is away (disconnected); the rounds go on without it."]
    board.add({"event": "learner_joined", "id": 3, "generation": 8, "step": 0})
    assert warnings(board) == []
    board.add({"event": "learner_left", "id": 3, "generation": 7, "reason": "superseded"})
    assert warnings(board) == []  # the end of an older connection
    for generation in range(9, 12):
        board.add({"event": "learner_joined", "id": 3, "generation": generation, "step": 0})
    assert any("has connected 5 times" in text for text in warnings(board))


def test_dropped_answers_are_told_but_for_late_ones() -> None:
    late = {"event": "rejected", "reason": "OutOfRound", "id": 0, "generation": 1}
    assert warnings(board_of([late])) == []
    stale = late | {"reason": "StaleBase"}
    assert warnings(board_of([late, stale, stale])) == ["Answers were dropped: 2 StaleBase."]


def test_a_failed_run_is_told() -> None:
    ended = {"event": "run_ended", "step": 3, "code": 1, "message": "disk full"}
    assert warnings(board_of([ended])) == ["The run ended with exit code 1: disk full"]


def test_the_page_has_one_slot_and_no_way_out_of_it() -> None:
    assert page().count(SLOT) == 1
    text = page({"message": "</script><!--"})
    assert SLOT not in text and "</script><!--" not in text
    assert text.count("</script>") == page().count("</script>")


def test_the_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tape = tmp_path / "tape.jsonl"
    eventful(tape)
    assert main(["report", str(tape)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'tape.html'}\n"
    assert "http" not in (tmp_path / "tape.html").read_text().replace("http://www.w3.org/2000/svg", "")


def test_the_report_does_not_replace_its_tape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tape = tmp_path / "tape.html"
    eventful(tape)
    before = tape.read_bytes()
    assert main(["report", str(tape)]) == 1
    assert capsys.readouterr().err.startswith("error: the page would replace the tape; ")
    assert tape.read_bytes() == before


def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tape = tmp_path / "tape.jsonl"
    eventful(tape)
    assert main(["report", str(tape), "--output", str(tmp_path / "no" / "page.html")]) == 1
    assert capsys.readouterr().err.startswith("error: cannot write the page: No such file or directory; ")
