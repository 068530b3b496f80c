"""What a trace of somebody else must fulfil, and implementations that say that they do not support a case."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from yeto_proto.conform import check, cli, runner, sut, trace
from yeto_proto.conform.verdict import Verdict

CORPUS = {each.id: each for each in trace.load_corpus()}
INLINE = 256


def test_the_corpus_fulfils_it():
    for each in CORPUS.values():
        check.check(each)


def changed(tmp_path, name, frame, change):
    """A file with the case of that name, in which `change` was done to the first frame of that kind."""
    steps = [json.loads(json.dumps(step)) for step in CORPUS[name].steps]
    place = next(at for at, step in enumerate(steps) if step.get("frame") == frame)
    change(steps[place])
    path = tmp_path / "changed.jsonl"
    trace.save(trace.Trace(CORPUS[name].head, tuple(steps)), path)
    return path, place + 2


def field(name, value):
    return lambda step: step["fields"].update({name: value})


@pytest.mark.parametrize(
    ("name", "frame", "change", "says"),
    [
        ("run-two-steps", "HELLO", field("learner_id", 1), "say something else than its bytes"),
        ("run-two-steps", "HELLO", field("num_streams", 1), "say something else than its bytes"),
        ("run-two-steps", "PUSH_FRAGMENT", field("c_tokens", "11"), "say something else than its bytes"),
        ("run-two-steps", "PUSH_FRAGMENT", field("delta", "00"), "of different length or kind"),
        ("run-two-steps", "FINAL_ACK", lambda step: step.update(frame="SHUTDOWN"), "of different length"),
        ("run-two-steps", "HELLO", lambda step: step.update(wire="00"), "shorter than a header"),
        ("run-two-steps", "HELLO", lambda step: step["fields"].pop("learner_id"), "cannot be read: KeyError"),
        ("run-two-steps", "HELLO", field("learner_id", 2**32), "cannot be read"),
        ("run-two-steps", "PULL_REQ", field("global_step", 1), "global_step: must be text"),
        ("run-two-steps", "FINAL_MANIFEST", field("expected_versions", [1, 2]), "versions: must be text"),
        ("run-two-steps", "HELLO", lambda step: step.pop("fields"), "has no fields"),
    ],
)
@pytest.mark.parametrize("command", ["run", "show"])
def test_fields_that_are_not_the_bytes_are_refused(capsys, tmp_path, name, frame, change, says, command):
    path, line = changed(tmp_path, name, frame, change)
    arguments = ["run", "--corpus", str(path)] if command == "run" else ["show", str(path)]
    assert cli.main(arguments) == cli.BAD_ARGUMENTS
    (told,) = capsys.readouterr().err.splitlines()
    assert says in told and f"{path}:{line}" in told


def test_a_folder_of_cases_is_checked_too(capsys, tmp_path):
    changed(tmp_path, "run-two-steps", "HELLO", field("learner_id", 1))
    assert cli.main(["run", "--corpus", str(tmp_path)]) == cli.BAD_ARGUMENTS
    assert "say something else" in capsys.readouterr().err


def test_what_a_recording_left_out_is_no_difference():
    case = CORPUS["round-push-in-chunks"]
    steps = [json.loads(json.dumps(step)) for step in case.steps]
    for step in steps:
        if step.get("frame") == "CHUNK":
            data = bytes.fromhex(step["fields"]["data"])
            gone = {"gen": "hash", "sha256": "00" * 32, "len": len(data)}
            step["fields"]["data"], step["wire"] = gone, [step["wire"].rsplit(" ", 1)[0], gone]
    check.check(trace.Trace(case.head, tuple(steps)))


def test_long_bytes_of_frames_are_references():
    references = 0
    for each in CORPUS.values():
        for step in each.steps:
            if step["do"] == "ask":  # as an adapter reads it, but for what it gets piece by piece
                parts = [piece for _, piece in step["request"].get("pieces", ())]
            else:
                parts = [step.get("wire", ""), *step.get("fields", {}).values()]
            for part in parts:
                for text in part if isinstance(part, list) else [part]:
                    references += isinstance(text, dict) and "gen" in text
                    if isinstance(text, str):
                        # A space stands between fields: each is told by itself.
                        assert max(map(len, text.split(" "))) <= 2 * INLINE, each.id
    assert references > 20


@pytest.mark.parametrize(
    "case", ["run-two-steps", "learner-run-two-steps", "join-silent", "resume-ledger-twice"]
)
def test_a_command_that_ends_with_127_does_not_support_the_case(case):
    role, ours = CORPUS[case].role, sut.read(sut.OURS)
    command = [sys.executable, "-c", "raise SystemExit(127)", *ours.roles[role]["command"][3:]]
    chosen = sut.Sut("unable", Path(), {role: {**ours.roles[role], "command": command}})
    runner.check_start(chosen, role, [CORPUS[case]], runner.Options())
    (result,) = runner.run([CORPUS[case]], chosen, runner.Options(timeout=60.0))
    assert (result.worst, result.counts_as) == (Verdict.SKIP, "skipped"), result.reason
    assert "127" in result.reason
