"""Sut files, exit codes, known failures, and the files of a report."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import psutil
import pytest

from tests.conform.runs import TRACES as CORPUS
from tests.e2e.processes import wait_until
from yeto_proto.conform import cli, matrix, pages, report, sut
from yeto_proto.conform.verdict import Result, Verdict

TRACES = {each.id: each for each in CORPUS}
REFUSES = """
import sys, json
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "ok": False, "error": "BadCounter"}), flush=True)
"""


@pytest.fixture
def refusing(tmp_path):
    """An adapter that refuses everything as BadCounter."""

    def write(more: str = "") -> str:
        path = tmp_path / "sut.yaml"
        script = json.dumps(REFUSES)
        path.write_text(f"name: refuser\ncodec: {{command: ['{sys.executable}', -c, {script}]}}\n{more}")
        return str(path)

    return write


@pytest.mark.parametrize("command", ["run", "list", "show", "record", "mutants"])
def test_the_help_of_each_command_has_examples(capsys, command):
    with pytest.raises(SystemExit) as left:
        cli.main([command, "--help"])
    assert left.value.code == 0
    assert f"examples:\n  yeto-conform {command}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["show"], ["run", "--nonsense"], ["run", "--jobs", "many"]])
def test_a_wrong_command_line_is_one_line_and_exit_2(capsys, arguments):
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == cli.BAD_ARGUMENTS
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and "--help" in err


def test_all_pass(capsys, tmp_path):
    assert cli.main(["run", "--in-process", "--role", "codec", "--output", str(tmp_path), "pull_req.*"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].endswith(" passed, 0 failed, 0 skipped")
    assert "yeto: codec" in printed
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["worst"] for line in lines} == {"pass"}
    suites = ElementTree.parse(tmp_path / "junit.xml").getroot()
    names = {case.get("name") for case in suites.iter("testcase")}
    assert "pull_req.round_attempt.must[pull-attempt-0]" in names
    assert "pull-attempt-0" in (tmp_path / "index.html").read_text()
    page = (tmp_path / "cases" / "codec-pull-attempt-0.html").read_text()
    assert pages.rule_texts()["pull_req.round_attempt.must"].split("(")[0].strip() in page


def test_failures(capsys, refusing, tmp_path):
    out = tmp_path / "out"
    assert cli.main(["run", "--sut", refusing(), "--output", str(out), "pull_req.*"]) == cli.FAILED
    printed = capsys.readouterr().out
    assert "fail codec/pull-smallest" in printed
    assert "loose codec/pull-cut" in printed
    page = (out / "cases" / "codec-pull-smallest.html").read_text()
    assert "BadCounter" in page
    assert "refused what must be accepted" in page
    failures = ElementTree.parse(out / "junit.xml").getroot().iter("failure")
    assert len(list(failures)) >= 2


def test_loose_passes_and_strict_fails(refusing):
    assert cli.main(["run", "--sut", refusing(), "pull-cut"]) == 0
    assert cli.main(["run", "--sut", refusing(), "pull-cut", "--strict"]) == cli.FAILED


def test_a_known_failure_passes_and_a_repaired_one_fails(capsys, refusing):
    known = "known-failures: [{case: pull-*, why: not written yet}]\n"
    assert cli.main(["run", "--sut", refusing(known), "pull-smallest"]) == 0
    assert "0 passed, 0 failed, 1 skipped" in capsys.readouterr().out
    assert cli.main(["run", "--sut", refusing(known), "pull-attempt-0"]) == cli.FAILED
    assert "take it off the list" in capsys.readouterr().out


def test_nothing_selected(capsys):
    assert cli.main(["run", "no-such-case"]) == cli.NOTHING_SELECTED
    assert capsys.readouterr().err.startswith("error: nothing was selected")


def test_the_implementation_does_not_start(capsys, tmp_path):
    path = tmp_path / "sut.yaml"
    path.write_text("name: x\ncodec: {command: [/nowhere/adapter]}\n")
    assert cli.main(["run", "--sut", str(path), "pull-smallest"]) == cli.NOT_STARTED
    path.write_text(f"name: x\nserver: {{command: ['{sys.executable}', -c, 'raise SystemExit(1)']}}\n")
    assert cli.main(["run", "--sut", str(path), "join-silent"]) == cli.NOT_STARTED
    assert "would not start" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a", "the file: must be a mapping"),
        ("name: [", "is not YAML"),
        ("name: " + "[" * 5_000, "is not YAML"),
        ("name: " + "9" * 5000, "is not YAML"),
        ('"\\e[31m": 1', r"\x1b[31m: is not a key here"),
        ("codec: {command: [a]}", "name: is missing"),
        ("name: a", "names no role"),
        ("name: a\ncodec: {}", "codec.command: is missing"),
        ("name: a\ncodec: {command: a}", "codec.command: has another form"),
        ("name: a\nkodec: {command: [a]}", "kodec: is not a key here"),
        ("name: a\ncodec: {command: [a]}\nknown-failures: [{case: a}]", "each has case and why"),
    ],
)
def test_a_bad_sut_file_is_named_in_one_line(capsys, tmp_path, text, says):
    path = tmp_path / "sut.yaml"
    path.write_text(text)
    assert cli.main(["run", "--sut", str(path)]) == cli.BAD_ARGUMENTS
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and f"; {path}; " in line
    assert says in line


def test_bad_arguments(capsys):
    assert cli.main(["run", "--cuts", "crosswise"]) == cli.BAD_ARGUMENTS
    assert cli.main(["show", "no-such-case"]) == cli.BAD_ARGUMENTS
    assert cli.main(["record", "--out", "x.jsonl"]) == cli.BAD_ARGUMENTS
    assert "Traceback" not in capsys.readouterr().err


def test_a_setting_that_the_sut_does_not_know_skips_the_case():
    chosen = sut.read(sut.OURS)
    roles = {"server": {**chosen.roles["server"], "settings": {}}}
    with pytest.raises(sut.SkipError, match="names no setting"):
        sut.Sut("bare", chosen.folder, roles).server({"quorum": 2}, {"port": 1, "work": "."})


def test_the_worse_of_protocol_and_closing_counts():
    result = Result(TRACES["pull-smallest"], closing=Verdict.FAIL)
    assert result.worst is Verdict.FAIL
    assert result.counts_as == "failed"
    assert Result(TRACES["pull-smallest"], verdict=Verdict.BROKEN).counts_as == "failed"
    assert Result(TRACES["pull-smallest"], verdict=Verdict.INFO).counts_as == "skipped"


def test_one_result_for_all_cuts_of_a_case():
    results = [Result(TRACES["run-two-steps"], cut=cut) for cut in ("recorded", "bytes")]
    results[1].verdict = Verdict.FAIL
    (one,) = matrix.merged(results)
    assert one.cut == "bytes"


def test_text_of_a_peer_does_no_harm_in_a_report():
    result = Result(TRACES["pull-smallest"], verdict=Verdict.FAIL, reason="<script>\x00\x1b[31m")
    xml = report.junit([result], "a & b")
    ElementTree.fromstring(xml)
    assert "<script>" not in pages._index([result], "a & b")


def test_sigterm_ends_the_processes_under_test(tmp_path):
    """The runner is ended while a syncer is silent; nothing of it stays.

    The syncer goes on, but ends the connection when the signal has been sent: a step that is being waited for
    comes to its end first.
    """
    pids, path, program = tmp_path / "pids", tmp_path / "sut.yaml", tmp_path / "silent_syncer.py"
    signalled = tmp_path / "signalled"
    program.write_text(
        "import os, socket, sys, time\n"
        "sock = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        "print('listening', flush=True)\n"
        f"while not os.path.exists({str(signalled)!r}):\n"
        "    time.sleep(0.05)\n"
        "sock.accept()[0].close()\n"
        "time.sleep(3600)\n"
    )
    settings = {name: [] for name in TRACES["join-silent"].head["settings"]}
    path.write_text(
        f"name: x\nserver:\n  command: ['{sys.executable}', '{program}', '{{port}}']\n"
        f"  ready: {{line: listening}}\n  settings: {json.dumps(settings)}\n"
    )
    command = [sys.executable, "-m", "yeto_proto.conform.cli", "run", "--sut", str(path), "join-silent"]
    command += ["--timeout", "600", "--jobs", "1", "--cuts", "recorded"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as runner:
        # The first one only shows that it can be started.
        wait_until(lambda: len(_started(pids)) == 2, "the syncer of the case", 600)
        runner.terminate()
        signalled.touch()
        assert runner.wait(600) == 143
    assert len(_started(pids)) == 2
    assert not [pid for pid in _started(pids) if _runs(pid, program.name)]


def _started(pids):
    return [int(pid) for pid in pids.read_text().split()] if pids.exists() else []


def _runs(pid, name):
    try:
        return name in " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return False


def test_what_is_shown_of_a_trace_is_text(capsys, tmp_path):
    path = tmp_path / "trace.jsonl"
    head = {"format": 1, "id": "\x1b[31m", "area": "x\n", "role": "codec", "rules": ["\x07"], "doc": "\x9b1m"}
    path.write_text(json.dumps(head) + "\n")
    assert cli.main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert r"\x1b[31m" in shown


def test_list_and_show(capsys):
    assert cli.main(["list", "--role", "learner", "learner.anchor.*", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["role"] for line in lines} == {"client"}
    assert cli.main(["show", "run-two-steps"]) == 0
    shown = capsys.readouterr().out
    assert "settings learners=1" in shown
    assert "FINAL_MANIFEST final_global_step=2" in shown
    assert "dec070d1 02" in shown


def test_show_as_json(capsys):
    assert cli.main(["show", "run-two-steps", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    found = TRACES["run-two-steps"]
    assert shown["head"] == found.head and len(shown["steps"]) == len(found.steps)
    assert list(shown["rules"]) == list(found.rules) and all(shown["rules"].values())


def test_coverage_as_json(capsys):
    assert cli.main(["list", "--coverage", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {*lines[0]} == {"rule", "accept", "refuse", "why"}
    assert sum(line["accept"] + line["refuse"] for line in lines) >= len(TRACES)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--sut", "NO"],
        ["run", "--corpus", "NO"],
        ["run", "--corpus", "x" * 5000],
        ["list", "--corpus", "FOLDER"],
        ["show", "NO"],
        ["show", "NO.jsonl"],
        ["mutants", "--mutants", "NO"],
        ["mutants", "no-such-mutant"],
        ["record", "--out", "OUT"],
        ["record", "--pcap", "NO", "--out", "OUT"],
        ["record", "--listen", "127.0.0.1:0", "--connect", "127.0.0.1:1", "--out", "FOLDER"],
        ["record", "--listen", "127.0.0.1:0", "--connect", "127.0.0.1:1", "--out", "OUT", "--setting", "x"],
        ["run", "--in-process", "pull-smallest", "--output", "FILE"],
    ],
)
def test_what_cannot_be_used_is_one_line_of_three_parts(arguments, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    places = {"NO": "no", "FOLDER": "", "OUT": "out.jsonl", "FILE": "file", "NO.jsonl": "no.jsonl"}
    given = [str(tmp_path / places[each]) if each in places else each for each in arguments]
    assert cli.main(given) in (cli.BAD_ARGUMENTS, cli.NOTHING_SELECTED)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert err.count("; ") >= 2


@pytest.mark.parametrize(
    "flags",
    [
        ("--jobs", "0"),
        ("--jobs", "100000"),
        ("--jobs", "nan"),
        ("--timeout", "nan"),
        ("--timeout", "inf"),
        ("--timeout", "-1"),
        ("--repeat", "0"),
        ("--all",),
    ],
)
def test_numbers_that_cannot_be_used(flags, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["run", *flags])
    assert left.value.code == cli.BAD_ARGUMENTS
    assert capsys.readouterr().err.count("\n") == 1


def test_a_list_whose_reader_has_gone_is_no_failure():
    command = f"{sys.executable} -m yeto_proto.conform.cli list | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_run_that_skips_everything_is_told(capsys, tmp_path):
    path = tmp_path / "sut.yaml"
    path.write_text("name: absent\ncodec: {command: [/bin/sh, -c, yeto-no-such-adapter]}\n")
    assert cli.main(["run", "--sut", str(path), "ack", "pull-smallest"]) == cli.NOTHING_SELECTED
    out, err = capsys.readouterr()
    assert "0 passed, 0 failed, 2 skipped" in out
    assert err == "error: no case was played; the adapter ended with 127: not supported; see its command\n"
