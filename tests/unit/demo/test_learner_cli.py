"""The `yeto-learner` command line: help, version, and one line for each mistake."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from yeto_learner.cli import main
from yeto_learner.demo.settings import Settings
from yeto_proto.layout import build_layout


@pytest.mark.parametrize("command", [[], ["demo"], ["doctor"], ["layout"]])
def test_help_has_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"yeto-learner {' '.join(command)}".strip() in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"yeto-learner \d+\.\d+\.\d+ \(protocol 4\)\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "are required: COMMAND; command line; see yeto-learner --help"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["demo", "--port", "70000"], "--port: must be 0 to 65535, got 70000"),
        (["demo", "--port", "x"], "--port: must be a whole number, got 'x'"),
        (["demo", "--seed", "-1"], "--seed: must be at least 0, got -1"),
        (["demo", "--seed", "x"], "--seed: must be a whole number, got 'x'"),
        (["layout", "model.safetensors", "--fragments", "x"], "--fragments: must be a whole number, got 'x'"),
        (["layout", "model.safetensors", "--fragments", "0"], "--fragments: must be at least 1, got 0"),
        (["doctor"], "are required: HOST:PORT; command line; see yeto-learner doctor --help"),
    ],
)
def test_a_wrong_command_line_is_exit_2_and_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"error: .*; command line; see yeto-learner( [a-z]+)? --help\n", err)
    assert reason in err


def test_torch_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["demo", "--torch"]) == 1
    assert capsys.readouterr().err.startswith("error: torch is not installed; --torch; install yeto[torch]")


def test_a_python_without_its_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert main(["demo", "--output", str(tmp_path / "out")]) == 1
    assert re.fullmatch(
        "error: the demo's text cannot be read: .*; pydoc_data; .*\n", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["host:port"], "is not HOST:PORT"),
        (["h:1", "--layout", "layout.json"], "go together"),
        (["h:1", "--learner-id", "1"], "go together"),
        (["h:1", "--layout", "/nonexistent/layout.json", "--learner-id", "1"], "No such file"),
        (["h:1", "--profile", "xyz"], "--profile must be 32 bytes or 64 hexadecimal digits"),
        (["h:1", "--contract", ""], "must not be an empty string"),
    ],
)
def test_doctor_mistakes(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert reason in err


def test_doctor_names_the_first_thing_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "no-such-host.invalid:29400"]) == 1
    assert capsys.readouterr().out.startswith("DNS      FAIL")
    assert main(["doctor", "127.0.0.1:1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(row["subject"], row["verdict"]) for row in told["findings"]] == [("DNS", "good"), ("TCP", "bad")]


def test_quick_is_shorter_in_everything_that_takes_time() -> None:
    full, quick = Settings(seed=5), Settings(seed=5).quick()
    assert quick.rounds * quick.inner_steps * quick.batch < full.rounds * full.inner_steps * full.batch / 4
    assert quick.kill_at < quick.rounds / 3
    assert full.kill_at < full.rounds / 2
    assert (quick.seed, quick.quorum, quick.learners) == (full.seed, full.quorum, full.learners)


def layout_file(folder: Path) -> str:
    path = folder / "layout.json"
    path.write_text(build_layout({"größe": (3, 4)}, 1).to_json(), encoding="utf-8")
    return str(path)


def test_names_that_the_locale_cannot_show_are_escaped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "yeto_learner", "layout", layout_file(tmp_path)]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"gr\xf6\xdfe" in done.stdout
