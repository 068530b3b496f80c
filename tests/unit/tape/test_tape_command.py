"""`yeto-tape`: summary, follow and check over the tapes of scripted runs."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.tape.tapes import consolidated, eventful
from yeto_proto._generated.files import TAPE
from yeto_syncer import tape_commands
from yeto_syncer.tape_cli import main
from yeto_syncer.tape_file import read
from yeto_syncer.tape_summary import summarize

Told = Callable[..., str]


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tape") / "tape.jsonl"
    eventful(path)
    return path


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Run the command and return what it prints on standard output; nothing may stand on standard error."""

    def run(*arguments: str | Path, code: int = 0) -> str:
        assert main([str(each) for each in arguments]) == code
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


def test_summary_as_json(tape: Path, told: Told) -> None:
    summary = json.loads(told("summary", "--json", tape))
    assert (summary["rounds"], summary["last_step"], summary["total_steps"]) == (12, 12, 12)
    assert summary["repeated_rounds"] == 0
    assert summary["rejections"] == {"OutOfRound": 3}
    assert summary["answers"] == {"merged": 36, "lost": 1, "rejected": 3, "asked": 36}
    assert summary["goodput"] == pytest.approx(36 / 40)
    assert summary["answered_share"] == 1.0
    assert summary["staleness"] == {"0": 36}
    assert (summary["attempts_discarded"], summary["rebounds"]) == (1, 1)
    [recovery] = summary["recoveries"]
    assert (recovery["detect_ms"], recovery["connect_ms"]) == (1000, 5000)
    assert summary["recovery_ms_median"] == {"detect": 1000, "connect": 5000, "catch_up": 0, "answer": 2000}
    first, second = summary["processes"]
    assert (first["first_step"], first["resumed"], first["rounds"], first["exit_code"]) == (0, False, 5, 0)
    assert (second["first_step"], second["resumed"], second["rounds"], second["exit_code"]) == (5, True, 7, 0)
    assert second["down_s"] == 10.0 and second["first_commit_s"] == 0.5
    assert summary["learners"]["1"]["joins"] == 3 and summary["learners"]["1"]["losses"] == 2
    assert summary["losses"] == {"disconnected": 4}
    assert (summary["torn_lines"], summary["unknown_records"]) == (0, 0)


def test_rounds_a_second_leave_out_the_time_between_processes(tape: Path) -> None:
    summary = summarize(read(tape))
    spans = [process.last_commit - process.first_commit for process in summary.processes]  # type: ignore[operator]
    assert summary.seconds == pytest.approx(sum(spans)) and summary.seconds < 80.0
    assert summary.rounds_per_s == pytest.approx((4 + 6) / sum(spans))


def test_summary_for_people(tape: Path, told: Told) -> None:
    text = told("summary", tape)
    for part in (
        "12, up to step 12 of 12",
        "90.0%: 36 merged, 3 rejected, 1 lost with their attempt",
        "36 times, 100.0% answered in time",
        "rejected OutOfRound",
        "attempts discarded",
        "started at step 0, 5 rounds",
        "resumed at step 5, 10.0 s after the last record before it, 7 rounds, the first after 0.5 s",
        "lost by disconnected: 4",
        "recoveries (ms)",
    ):
        assert part in text, part
    recovery = next(line for line in text.splitlines() if line.endswith("  disconnected"))
    assert recovery.split() == ["1", "2", "1000", "5000", "0", "2000", "8000", "disconnected"]


def test_missed_rounds_name_their_steps(tape: Path, tmp_path: Path, told: Told) -> None:
    """A learner that is asked and does not answer in the grace window."""
    lines = []
    for record in map(json.loads, tape.read_text().splitlines()):
        if record.get("step") in (7, 8, 9, 11) and "responders" in record:
            record["responders"] = [each for each in record["responders"] if each["id"] != 2]
        lines.append(json.dumps(record))
    path = tmp_path / "missed.jsonl"
    path.write_text("\n".join(lines))
    assert json.loads(told("summary", "--json", path))["learners"]["2"]["missed_steps"] == [7, 8, 9, 11]
    row = next(line for line in told("summary", path).splitlines() if line.startswith("  2 "))
    assert row.split()[:4] == ["2", "12", "8", "4"] and row.endswith("7-9, 11")


def test_rounds_that_were_committed_again_are_counted_apart(tape: Path, tmp_path: Path, told: Told) -> None:
    """As when a killed process resumes from a checkpoint that is older than its tape."""
    lines = tape.read_text().splitlines()
    path = tmp_path / "twice.jsonl"
    path.write_text("\n".join([*lines, *lines[-12:]]))
    summary = json.loads(told("summary", "--json", path))
    assert (summary["rounds"], summary["repeated_rounds"], summary["last_step"]) == (19, 7, 12)


def test_a_tape_of_commits_without_times_has_a_summary(tape: Path, tmp_path: Path, told: Told) -> None:
    """Such as the reference implementation writes."""
    lines = []
    for record in map(json.loads, tape.read_text().splitlines()):
        if "event" not in record:
            del record["time"], record["grace_waited_ms"]
            lines.append(json.dumps(record))
    path = tmp_path / "plain.jsonl"
    path.write_text("\n".join(lines) + "\n")
    summary = json.loads(told("summary", "--json", path))
    assert (summary["rounds"], summary["rounds_per_s"], summary["total_steps"]) == (12, None, None)
    assert "12, up to step 12\n" in told("summary", path)


def test_an_empty_tape_and_a_torn_one_are_told_of(tape: Path, tmp_path: Path, told: Told) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(b"")
    assert "0, up to step 0" in told("summary", path)
    path.write_bytes(tape.read_bytes()[:-20])
    assert "1 torn line passed over" in told("summary", path)


# -- check ---------------------------------------------------------------------------------------------------


CHECK = ("check", "--learners", "3", "--budget", "50", "--from", "4")


def test_a_consolidation_is_accepted(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "tape.jsonl"
    consolidated(path)
    assert told(*CHECK, path) == (
        "consolidation steps 5..7: all 3 learners are in each of them, with 50 local steps\n"
    )
    assert json.loads(told(*CHECK, "--json", path)) == {"ok": True, "steps": [5, 6, 7], "faults": []}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (("--learners", "4"), "step 5: learners 0, 1, 2 were asked, not all of 0..3"),
        (("--learners", "4"), "step 7: no answer of learner 3"),
        (("--learners", "2"), "step 5: answers of learners 0, 1, 2"),
        (("--budget", "51"), "step 6: learner 1 answered with 50 local steps, not with the budget of 51"),
        (
            ("--from", "3"),
            "no process on the tape consolidates from step 3: the last one started at step 4",
        ),
        (("--from", "5"), "step 8: there is no such round"),
        (("--fragments", "2"), "step 7: a round after the last one of the consolidation, 6"),
        (("--fragments", "4"), "step 8: there is no such round"),
    ],
)
def test_another_benchmark_is_not_what_the_tape_shows(
    tmp_path: Path, told: Told, changes: tuple[str, ...], fault: str
) -> None:
    path = tmp_path / "tape.jsonl"
    consolidated(path)
    assert fault in told(*CHECK, *changes, path, code=1).splitlines()


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        ({"c_steps": 49}, "step 6: learner 2 answered with 49 local steps, not with the budget of 50"),
        ({"c_tokens": 9}, "step 6: learner 2 tells 9 tokens, and 502 in an earlier round"),
        ({"base": 1}, "step 6: learner 2 answered from version 1, not from the resumed 3"),
    ],
)
def test_a_wrong_answer_is_found(tmp_path: Path, told: Told, spoil: dict[str, Any], fault: str) -> None:
    path = tmp_path / "tape.jsonl"
    consolidated(path, spoil={2: spoil})
    found = told(*CHECK, path, code=1).splitlines()
    assert found[0] == fault
    assert json.loads(told(*CHECK, "--json", path, code=1))["faults"] == found


def test_rounds_in_a_wrong_order_or_of_one_fragment_are_found(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "tape.jsonl"
    consolidated(path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    commits = [record for record in records if "event" not in record and record["step"] > 4]
    first, second, third = commits
    others = [record for record in records if record not in commits]
    path.write_text("\n".join(json.dumps(each) for each in (*others, second, first, third)))
    assert "the rounds are told in the order 6, 5, 7, not in that of their steps" in told(
        *CHECK, path, code=1
    )
    second["fragment"] = first["fragment"]
    path.write_text("\n".join(json.dumps(each) for each in (*others, first, second, third)))
    assert f"step 6: fragment {first['fragment']} is merged a second time" in told(*CHECK, path, code=1)


def test_a_consolidation_that_was_resumed_in_its_middle_is_one(tmp_path: Path, told: Told) -> None:
    """Rounds behind the checkpoint that the second process resumed from do not count."""
    path = tmp_path / "tape.jsonl"
    consolidated(path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    at = next(i for i, record in enumerate(records) if record.get("step") == 6 and "event" not in record)
    again = next(record for record in records if record.get("event") == "run_started" and record["resumed"])
    resumed = [*records[: at + 1], {**again, "step": 5}, *records[at:]]
    path.write_text("\n".join(map(json.dumps, resumed)))
    assert "consolidation steps 5..7" in told(*CHECK, path)


def test_a_failed_end_is_a_fault(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "tape.jsonl"
    consolidated(path)
    text = path.read_text()
    at = text.rindex('"code":0')
    path.write_text(text[:at] + '"code":1' + text[at + len('"code":0') :])
    assert "the process ended with exit code 1: training complete at step 7" in told(*CHECK, path, code=1)


# -- follow --------------------------------------------------------------------------------------------------


def test_follow_tells_a_line_for_each_record_and_ends_with_the_run(tape: Path, told: Told) -> None:
    lines = told("follow", tape).splitlines()
    records = list(read(tape))
    assert len(lines) == len(records)
    text = "\n".join(lines)
    for part in (
        "started at step 0 of 12: 3 learners, quorum 3, 3 fragments",
        "learner 0 joined, generation 10",
        "step 1 fragment 0: 3 of 3 answered",
        "learner 2: an answer to step 1 was dropped, OutOfRound",
        "learner 1 left, generation 11: disconnected",
        "learner 1 took over its slot in step 2 attempt 1",
        "learner 1 is back with step 2: detect 1000 ms, connect 5000 ms, catch-up 0 ms, answer 2000 ms",
        "step 4 attempt 1 was given up with 1 answers",
        "step 4 fragment 0: 3 of 3 answered, attempt 2",
        "resumed at step 5 of 12",
        "ended with exit code 0: training complete at step 12",
    ):
        assert part in text, part
    assert [json.loads(line) for line in told("follow", "--json", tape).splitlines()] == records


def clock(sleep: Callable[[float], None]) -> SimpleNamespace:
    """The clock of the command alone: other threads may sleep meanwhile."""
    return SimpleNamespace(sleep=sleep, strftime=time.strftime, localtime=time.localtime)


def test_follow_waits_for_the_file_and_for_the_end(
    tape: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tape.jsonl"
    lines = tape.read_bytes().splitlines(keepends=True)
    steps = iter([b"", b"".join(lines[:7]), lines[7][:9], lines[7][9:], b"".join(lines[8:])])

    def grow(_: float) -> None:
        with path.open("ab") as file:
            file.write(next(steps))

    monkeypatch.setattr(tape_commands, "time", clock(grow))
    assert main(["follow", "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.encode() == b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in lines)
    assert err == f"waiting for {path}\n"
    assert next(steps, None) is None


def test_follow_with_keep_goes_on_behind_an_end(
    tape: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = []

    def look(_: float) -> None:
        looks.append(threading.get_ident())
        if len(looks) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(tape_commands, "time", clock(look))
    assert main(["follow", "--keep", str(tape)]) == 130
    assert "ended with exit code 0" in capsys.readouterr().out


@pytest.mark.parametrize("kind", sorted(TAPE.keys() - {"member", "responder", "stamp"}))
def test_every_record_kind_has_a_line(kind: str) -> None:
    """One that is made of the fields of the specification, without an exception."""
    samples: dict[str, Any] = {"integer": 1, "number": 1.5, "text": "x", "true or false": True}
    fields = {name: samples.get(field.type, []) for name, field in TAPE[kind].items() if not field.optional}
    line = tape_commands._line({**fields, **({} if kind == "commit" else {"event": kind})})
    assert line.strip() and "\n" not in line


def test_report_as_json(tape: Path, tmp_path: Path, told: Told) -> None:
    page = tmp_path / "page.html"
    found = json.loads(told("report", tape, "--output", page, "--json"))
    records = len(tape.read_text().splitlines())
    assert found == {"page": str(page), "bytes": page.stat().st_size, "records": records}
    assert told("report", tape, "--output", page) == f"{page}\n"


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["summary", "follow", "check"])
def test_a_file_that_is_no_tape_is_one_line_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    flags = list(CHECK[1:]) if command == "check" else []
    for path, what in ((tmp_path, "Is a directory"), (tmp_path / "no" / "tape", "No such file or directory")):
        assert main([command, *flags, str(path)]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and err.startswith("error: cannot read the tape: ")
        assert what in err and str(path) in err
    other = tmp_path / "log"
    other.write_text("2024-01-01 12:00 listening\n")
    assert main([command, *flags, str(other)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: not an event tape: line 1 is no JSON object; ") and err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["party"],
        ["summary"],
        ["check", "tape"],
        ["check", "--learners", "two", "--budget", "1", "--from", "0", "tape"],
        ["check", "--learners", "-1", "--budget", "1", "--from", "0", "tape"],
        ["check", "--learners", "4294967296", "--budget", "1", "--from", "0", "tape"],
    ],
)
def test_a_wrong_command_line_is_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize("command", ["summary", "report", "follow", "forward", "check"])
def test_the_help_of_each_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert f"examples:\n  yeto-tape {command} " in capsys.readouterr().out


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out and "exit codes:" in out and "summary" in out and "report" in out
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("yeto-tape ")


def test_places_that_cannot_be_written(
    tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link.html"
    link.symlink_to(tape)
    (tmp_path / "file").write_text("")
    before = tape.read_bytes()
    for arguments, what in (
        (["report", "--output", str(link)], "the page would replace the tape"),
        (["report", "--output", str(tmp_path)], "cannot write the page: Is a directory"),
        (["report", "--output", "x" * 300], "cannot write the page: File name too long"),
        (["report", "--output", str(tmp_path / "no" / "page")], "cannot write the page: No such file"),
    ):
        assert main([*arguments, str(tape)]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"error: {what}") and err.count("\n") == 1
        assert err.count("; ") == 2
    assert tape.read_bytes() == before


@pytest.mark.parametrize("content", [b"\xdeYETO\x00\x01", b"no line feed"], ids=["binary", "text"])
def test_follow_refuses_at_once_what_cannot_become_a_tape(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.ckpt"
    path.write_bytes(content)
    assert main(["follow", str(path)]) == 1
    assert "not an event tape" in capsys.readouterr().err
