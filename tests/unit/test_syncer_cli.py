"""The command line of `yeto-syncer` as far as it goes without a socket: values, origins, problems, exit
codes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from yeto_syncer import cli
from yeto_syncer.core.config import Config
from yeto_syncer.shell.resolve import BadValueError, resolve, unknown_variables
from yeto_syncer.shell.settings import BY_NAME, PRESETS, SETTINGS, SWITCH

RUN = ("--learners", "2", "--total-steps", "8")
VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "profile_hash.json").read_text())["vectors"]
AVAILABLE = [vector for vector in VECTORS if vector["config"]["policy_sweep_fragments"] is None]


@pytest.fixture(autouse=True)
def restored_signals() -> Iterator[None]:
    """`main` takes over the signals of its process; give them back to pytest."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(*flags: str, environ: dict[str, str] | None = None) -> int:
    """Exit code of the command, also where the parser ends it."""
    try:
        return cli.main(flags, environ or {})
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The error that was printed: one line of three parts and nothing else."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("error: ")
    assert len(err.split("; ")) >= 3, err
    return err


def test_every_field_of_the_configuration_is_a_setting_with_the_same_default() -> None:
    values = {setting.name: setting.default for setting in SETTINGS}
    for field in fields(Config):
        assert field.name in values
    default = Config(learners=2, total_steps=8)
    given = {**values, "learners": 2, "total_steps": 8}
    assert Config(**{field.name: given[field.name] for field in fields(Config)}) == default


def test_settings_are_named_once_and_described() -> None:
    assert len(BY_NAME) == len(SETTINGS)
    for setting in SETTINGS:
        assert setting.help.endswith("."), setting.name
        assert setting.described().startswith(setting.help)


def test_help_names_every_flag_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for setting in SETTINGS:
        assert setting.flag in text
        if not setting.available:
            assert "Not available in this version." in setting.described()
    assert "--preset training " in text and "--log-format human|json " in text, "as they have to be written"
    assert "examples:" in text and "exit codes:" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.endswith("(protocol 4)\n")


@pytest.mark.rule("syncer.exit.codes")
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--learners", "2"),
        ("--total-steps", "8"),
        (*RUN, "--quorum", "x"),
        (*RUN, "--quorum", "-1"),
        (*RUN, "--port", "70000"),
        (*RUN, "--grace-gamma", "much"),
        (*RUN, "--log-format", "xml"),
        (*RUN, "--preset", "winning"),
        (*RUN, "--observers", "1,x"),
        (*RUN, "--no-such-flag"),
        (*RUN, "--quor", "2"),
        (*RUN, "stray"),
        (*RUN, "--quorum"),
    ],
)
def test_a_mistake_in_the_syntax_is_exit_2(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == 2
    assert "see yeto-syncer --help" in one_line(capsys)


@pytest.mark.rule("syncer.exit.codes")
@pytest.mark.rule("syncer.bind.authenticated")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--learners", "0", "--total-steps", "1"), "--learners"),
        ((*RUN, "--quorum", "0"), "--quorum"),
        ((*RUN, "--quorum", "3"), "3 is more than --learners 2"),
        ((*RUN, "--quorum-timeout-s", "0"), "--quorum-timeout-s"),
        ((*RUN, "--mark-final-checkpoint"), "needs --checkpoint-path"),
        ((*RUN, "--resume"), "needs --checkpoint-path"),
        ((*RUN, "--resume-if-exists"), "needs --checkpoint-path"),
        ((*RUN, "--preset", "training"), "needs --checkpoint-path"),
        ((*RUN, "--background-checkpoint"), "needs --checkpoint-path"),
        ((*RUN, "--background-checkpoint", "--checkpoint-path", "x", "--checkpoint-every", "1"), "2 or more"),
        ((*RUN, "--delta-correction", "magic"), "unknown name 'magic'"),
        ((*RUN, "--learner-weight", "magic"), "unknown name 'magic'"),
        ((*RUN, "--iso-backend", "magic"), "unknown name 'magic'"),
        ((*RUN, "--learner-budget-steps", "0"), "1..4294967295"),
        ((*RUN, "--learner-budget-steps", "5"), "needs --checkpoint-path"),
        ((*RUN, "--learner-budget-steps", "5", "--checkpoint-path", "x", "--resume"), "cannot be used with"),
        ((*RUN, "--iso-worker-device", ""), "--iso-worker-device;"),
        ((*RUN, "--iso-worker-devices", "cuda:0,,cuda:1"), "without a name"),
        ((*RUN, "--iso-worker-devices", "cuda:0,cuda:0"), "twice"),
        ((*RUN, "--iso-worker-queue-capacity", "0"), "at least 1"),
        ((*RUN, "--fold", "magic"), "unknown name 'magic'"),
        ((*RUN, "--late-carry"), "needs --fold on-arrival"),
        ((*RUN, "--max-carry-lag", "3"), "needs --late-carry"),
        ((*RUN, "--carry-decay", "0.5"), "needs --late-carry"),
        ((*RUN, "--carry-answers-round"), "needs --late-carry"),
        ((*RUN, "--quorum-capacity", "1.5"), "above 0 and at most 1"),
        ((*RUN, "--soft-deadline-s", "5"), "needs --quorum-capacity"),
        ((*RUN, "--policy-sweep-fragments", "4"), "not available in this version"),
        ((*RUN, "--observers", "0"), "learner 0"),
        ((*RUN, "--observers", "7"), "outside"),
        ((*RUN, "--min-start-learners", "3"), "1..2"),
        ((*RUN, "--grace-gamma", "nan"), "finite"),
        ((*RUN, "--handshake-timeout-s", "0"), "positive"),
        ((*RUN, "--write-timeout-s", "inf"), "positive"),
        ((*RUN, "--merge-threads", "0"), "at least 1"),
        ((*RUN, "--config", "no/such/file.toml"), "no/such/file.toml"),
        ((*RUN, "--host", "0.0.0.0", "--port", "0"), "--allow-unauthenticated"),
        ((*RUN, "--host", "::", "--port", "0"), "--allow-unauthenticated"),
        ((*RUN, "--host", "no.such.host.invalid", "--port", "0"), "--host"),
        ((*RUN, "--host", "a..b", "--port", "0"), "--host"),
        ((*RUN, "--island-hmac-key-file", "no/such/key"), "no/such/key"),
        ((*RUN, "--checkpoint-path", "no/such/folder/x", "--port", "0"), "no folder no/such/folder"),
        ((*RUN, "--final-state", "no/such/folder/x", "--port", "0"), "no folder no/such/folder"),
        ((*RUN, "--event-tape", "no/such/folder/x", "--port", "0"), "event tape"),
        ((*RUN, "--port-file", "no/such/folder/x", "--port", "0"), "no folder no/such/folder"),
    ],
)
def test_a_setting_that_cannot_be_used_is_exit_1(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == 1
    assert words in one_line(capsys)


@pytest.mark.rule("syncer.resume.file")
def test_resume_names_the_file_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.ckpt"
    assert run(*RUN, "--resume", "--checkpoint-path", str(path), "--port", "0") == 1
    assert str(path) in one_line(capsys)


def test_paths_that_are_folders_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--checkpoint-path", "--final-state", "--port-file"):
        assert run(*RUN, flag, str(tmp_path), "--port", "0") == 1
        assert "it is a folder" in one_line(capsys)


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for flag in ("--checkpoint-path", "--final-state", "--port-file"):
        assert run(*RUN, flag, str(pipe), "--port", "0") == 1
        assert "it is a device, a pipe or a socket" in one_line(capsys)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.ckpt"
    path.write_bytes(b"not a checkpoint, but long enough to have a head")
    for flag in ("--resume", "--resume-if-exists"):
        assert run(*RUN, flag, "--checkpoint-path", str(path), "--port", "0") == 1
        assert str(path) in one_line(capsys)


def test_flags_win_over_environment_over_file_over_preset(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = tmp_path / "syncer.toml"
    document.write_text(
        'learners = 4\ntotal-steps = 9\ngrace_ms = 1\nquorum = 1\npreset = "training"\n'
        "checkpoint_on_start = false\nobservers = [2, 3]\ncheckpoint_path = 'a \"b\" \\c'\n"
    )
    environ = {"YETO_SYNCER_QUORUM": "2", "YETO_SYNCER_GRACE_MS": "2", "YETO_SYNCER_PORT": ""}
    assert run("--config", str(document), "--grace-ms", "3", "--print-config", environ=environ) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split(" = ")[0]: line.split(" = ")[1].rsplit("  # ", 1) for line in lines if " = " in line}
    expected = {
        "learners": ("4", f"file {document}"),
        "total_steps": ("9", f"file {document}"),
        "quorum": ("2", "env YETO_SYNCER_QUORUM"),
        "grace_ms": ("3", "flag"),
        "port": ("29400", "default"),
        "observers": ("[2, 3]", f"file {document}"),
        "checkpoint_on_start": ("false", f"file {document}"),
        "background_checkpoint": ("true", "preset training"),
        "resume_if_exists": ("true", "preset training"),
    }
    for name, (value, origin) in expected.items():
        assert (shown[name][0].strip(), shown[name][1]) == (value, origin), name


def test_the_printed_configuration_can_be_read_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = (
        "--checkpoint-path",
        'q"\\x\n\x1b[31m\x00\x7f\x85é',
        "--observers",
        "1",
        "--grace-gamma",
        "1e-7",
        "--mark-final-checkpoint",
    )
    assert run(*RUN, *flags, "--print-config") == 0
    document = tmp_path / "again.toml"
    document.write_text(capsys.readouterr().out)
    assert run("--config", str(document), "--print-config") == 0
    again = capsys.readouterr().out

    def values(text: str) -> list[str]:
        return [line.rsplit(" # ", 1)[0].rstrip() for line in text.splitlines()]

    assert values(again) == values(document.read_text())


@pytest.mark.rule("syncer.preset.training")
def test_a_preset_is_overridden_by_single_flags() -> None:
    given = {"preset": "training", "background_checkpoint": False}
    settings = resolve(given, {}, {})
    for name, value in PRESETS["training"].items():
        assert settings[name] == (value if name != "background_checkpoint" else False)
    assert settings.origins["background_checkpoint"] == "flag"


@pytest.mark.parametrize(
    ("environ", "document", "words"),
    [
        ({"YETO_SYNCER_QUORUM": "two"}, {}, "YETO_SYNCER_QUORUM must be a whole number"),
        ({"YETO_SYNCER_RESUME": "maybe"}, {}, "YETO_SYNCER_RESUME must be 1 or 0"),
        ({}, {"quorum": "2"}, "quorum must be a whole number"),
        ({}, {"quorum": True}, "quorum must be a whole number"),
        ({}, {"quorum": 2**32}, "quorum must be 0..4294967295"),
        ({}, {"grace_gamma": "a"}, "grace_gamma must be a number"),
        ({}, {"resume": 1}, "resume must be true or false"),
        ({}, {"observers": 1}, "observers must be a list"),
        ({}, {"host": ""}, "host must be a text"),
        ({}, {"quorums": 1}, "unknown key 'quorums'"),
    ],
)
def test_bad_values_of_environment_and_file_are_named(
    environ: dict[str, str], document: dict[str, object], words: str
) -> None:
    with pytest.raises(BadValueError, match=words):
        resolve({}, environ, document, "file.toml")


def test_switches_in_the_environment() -> None:
    for text, value in (("1", True), ("true", True), ("0", False), ("off", False)):
        assert resolve({}, {"YETO_SYNCER_RESUME": text}, {})["resume"] is value


def test_variables_that_name_no_setting_are_found() -> None:
    environ = {"YETO_SYNCER_QUORUM": "1", "YETO_SYNCER_QORUM": "1", "OTHER": "1"}
    assert unknown_variables(environ) == ["YETO_SYNCER_QORUM"]


@pytest.mark.parametrize("flag", ["--checkpoint-path", "--final-state", "--port-file"])
@pytest.mark.parametrize("length", [5000, 252])
def test_a_name_that_is_too_long_is_told_before_the_run(
    flag: str, length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """252 characters are few enough for the file, and too many for the name that it is written to first."""
    assert run(*RUN, "--port", "0", flag, str(tmp_path / ("x" * length))) == 1
    assert f"File name too long; {flag}; " in one_line(capsys)


def test_a_file_that_is_no_toml_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "bad.toml"
    document.write_text("learners = = 2")
    assert run("--config", str(document)) == 1
    assert "not a TOML file" in one_line(capsys)


@pytest.mark.parametrize(
    "content",
    [
        b"learners = 1" + b"0" * 5000,  # more digits than Python turns into a number
        b"learners = " + b"[" * 100_000,
        b"learners = " + b"{a=" * 50_000,
        b"\xff",
        b"#" * (1 << 20) + b"\n",
    ],
    ids=["digits", "lists", "tables", "bytes", "long"],
)
def test_a_hostile_settings_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    document = tmp_path / "bad.toml"
    document.write_bytes(content)
    assert run("--config", str(document)) == 1
    told = one_line(capsys)
    assert "not a TOML file" in told and len(told) < 500


def test_a_settings_file_without_an_end_is_not_read_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--config", "/dev/zero") == 1
    assert "longer than 1048576 bytes" in one_line(capsys)


@pytest.mark.rule("syncer.profile.recipe")
@pytest.mark.parametrize("vector", AVAILABLE, ids=lambda vector: vector["name"])
def test_print_profile_gives_the_hash_of_the_recipe(
    vector: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = vector["config"]
    flags: list[str] = []
    for name, value in config.items():
        if name == "checkpoint_path_set":
            flags += ["--checkpoint-path", str(tmp_path / "x")] if value else []
        elif name == "mark_final":
            flags += ["--mark-final-checkpoint"] if value else []
        elif name == "delta_correction":
            flags += ["--delta-correction", "heloco" if value else "none"]
        elif name == "learner_weight":
            flags += ["--learner-weight", "equal" if value else "tokens2-over-steps"]
        elif BY_NAME[name].kind is SWITCH:
            flags += [BY_NAME[name].flag] if value else []
        elif value is not None:
            flags += [BY_NAME[name].flag, str(value)]
    assert run(*flags, "--print-profile") == 0
    printed = capsys.readouterr().out.strip()
    assert printed == vector["profile_hash_hex"]
    assert printed == hashlib.sha256(bytes.fromhex(vector["encoded_hex"])).hexdigest()


@pytest.mark.rule("syncer.signal.first")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["argparse", "yeto_syncer.cli", "numpy", "yeto_syncer.shell.server"])
def test_a_signal_in_the_middle_of_an_import_is_exit_0(module: str, number: int) -> None:
    # A finder that signals when the module is looked for, so that the handler runs inside the import.
    code = f"""
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), {number:d})

from yeto_syncer.__main__ import main
sys.meta_path.insert(0, Finder())
sys.argv = ["yeto-syncer", "--learners", "1", "--total-steps", "1", "--port", "0"]
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
