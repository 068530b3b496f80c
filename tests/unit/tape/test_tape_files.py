"""Reading tapes: records are as the specification says, torn lines are passed over, other files refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tape.tapes import consolidated, eventful, write
from yeto_syncer.tape_file import NotATapeError, Reader, faults, kind_of, read, tail


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tape") / "tape.jsonl"
    eventful(path)
    return path


def test_every_record_is_as_the_specification_says(tape: Path, tmp_path: Path) -> None:
    budget = tmp_path / "budget.jsonl"
    consolidated(budget)
    records = [*read(tape), *read(budget)]
    assert [fault for record in records for fault in faults(record)] == []
    assert {kind_of(record) for record in records} >= {
        *("commit", "run_started", "run_ended", "learner_joined", "learner_left", "rejected"),
        *("rebound", "attempt_discarded", "recovery"),
    }


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"event": "party"}, "party: there is no such record"),
        ({"event": "member"}, "member: there is no such record"),
        ({"step": "3"}, "run_started.step: '3' is no integer"),
        ({"step": True}, "run_started.step: True is no integer"),
        ({"resumed": 0}, "run_started.resumed: 0 is no true or false"),
        ({"extra": 1}, "run_started.extra: is not in the specification"),
        ({"quorum": None}, "run_started.quorum: None is no integer"),
        ({"time": "now"}, "run_started.time: 'now' is no number"),
    ],
)
def test_faults_of_a_record_are_told(tape: Path, change: dict[str, Any], fault: str) -> None:
    started = next(iter(read(tape)))
    assert faults({**started, **change}) == [fault]


def test_faults_inside_lists_and_missing_keys_are_told(tape: Path) -> None:
    commit = next(record for record in read(tape) if kind_of(record) == "commit")
    broken = json.loads(json.dumps(commit))
    del broken["gnorm"]
    broken["responders"][1]["weight"] = None
    broken["expected_members"] = [7]
    broken["sync/layout_hash"] = "00"
    broken["quorum_ms"] = 1.5
    broken["expected"] = 3
    assert faults(broken) == [
        "commit.gnorm: is missing",
        "commit.expected: 3 is no list",
        "commit.expected_members[0]: 7 is no object",
        "commit.quorum_ms: 1.5 is no integer or null",
        "commit.responders[1].weight: None is no number",
        "commit.sync/layout_hash: '00' is no hex32",
    ]
    assert "commit.time: is not in the specification" in faults(commit, stamped=False)


def test_torn_lines_and_unknown_records_are_passed_over(tape: Path, tmp_path: Path) -> None:
    lines = tape.read_bytes().splitlines(keepends=True)
    torn = tmp_path / "torn.jsonl"
    half = lines[6][:25]
    later = b'{"event":"from_the_future","time":1}\n'
    torn.write_bytes(b"".join([*lines[:6], half, b"\n", *lines[7:9], later, b"\n", lines[9][:-40]]))
    reader = Reader("torn.jsonl")
    records = list(read(torn, reader))
    assert records == [json.loads(line) for line in (*lines[:6], *lines[7:9])]
    assert (reader.torn, reader.unknown, reader.seen) == (2, 1, 8)


def test_a_torn_first_line_is_no_reason_to_refuse_the_tape(tape: Path, tmp_path: Path) -> None:
    lines = tape.read_bytes().splitlines(keepends=True)
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(lines[0][:30] + b"\n" + lines[1])
    assert [kind_of(record) for record in read(torn)] == ["learner_joined"]


def test_an_empty_file_is_a_tape_without_records(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(b"")
    assert list(read(path)) == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"hello\n", "line 1 is no JSON object"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "line 1 is no JSON object"),
        (b"[1, 2]\n", "line 1 is no JSON object"),
        (b"3\n", "line 1 is no JSON object"),
        (b'{"level":"info","message":"listening"}\n', "line 1 is no commit record: it has no `step`"),
        (b'{"event":3}\n', "line 1 has an `event` that is no text"),
        (b'{"event":"rejected","reason":"Duplicate"}\n', "line 1 is no rejected record: it has no `id`"),
        (
            b'{"event":"learner_joined","id":"a","generation":1,"step":0}\n',
            "line 1 is wrong: `id`: 'a' is no integer",
        ),
        (b'{"event":"learner_joined","id":1,"generation":NaN,"step":0}\n', "`generation`: nan is no integer"),
        (
            b'{"event":"learner_joined","id":1,"generation":1,"step":18446744073709551616}\n',
            "`step`: 18446744073709551616 is no integer",
        ),
        (
            b'{"event":"learner_joined","id":1,"generation":1,"step":0,"time":Infinity}\n',
            "`time`: inf is no number",
        ),
        (
            b'{"event":"learner_joined","id":1,"generation":1,"step":0,"time":1%s}\n' % (b"0" * 400),
            "`time`: 1" + "0" * 79 + "... is no number",
        ),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(NotATapeError) as caught:
        list(read(path))
    assert why in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["fragment", "fragments"])
@pytest.mark.parametrize("number", [-1, 2_000_000, 2**63])
def test_a_number_of_fragments_that_no_layout_has_is_refused(
    tape: Path, tmp_path: Path, key: str, number: int
) -> None:
    """A reader that believed it would make a list of that length."""
    record = next(dict(one) for one in read(tape) if key in one)
    path = tmp_path / "tape"
    path.write_text(json.dumps({**record, key: number}) + "\n")
    with pytest.raises(NotATapeError, match=f"`{key}`: {number} is no number of a fragment"):
        list(read(path))


@pytest.mark.parametrize("line", [b"{" + b'"a":{' * 100_000, b'{"a":' + b"[" * 100_000])
def test_a_line_nested_without_end_is_passed_over_like_a_torn_one(
    tape: Path, tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "tape"
    path.write_bytes(tape.read_bytes() + line + b"\n")
    reader = Reader(str(path))
    assert list(read(path, reader)) == list(read(tape))
    assert reader.torn == 1


def test_a_commit_of_another_writer_may_have_fewer_keys_and_more(tape: Path, tmp_path: Path) -> None:
    """The reference implementation writes no `grace_waited_ms`, and for sweeps more."""
    commit = dict(next(record for record in read(tape) if kind_of(record) == "commit"))
    for key in ("grace_waited_ms", "time", "sync/quorum"):
        del commit[key]
    commit["policy_round"] = 3
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps(commit) + "\n")
    assert list(read(path)) == [commit]


def test_a_growing_tape_is_read_on_from_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    first = {"event": "learner_joined", "id": 1, "generation": 2, "step": 3}
    path.write_text(json.dumps(first) + "\n" + '{"event":"learner_')
    records = tail(path, Reader("tape.jsonl"))
    assert next(records) == first
    assert next(records) is None and next(records) is None, "a line is waited for until it is whole"
    with path.open("a") as file:
        file.write('left","id":1,"generation":2,"reason":"disconnected"}\n')
    assert kind_of(next(records) or {}) == "learner_left"
    assert next(records) is None
    path.write_text("")
    write(path, [(0.0, first)])
    assert (next(records) or {})["id"] == 1, "a tape that was begun again is read from its start"
