"""What all five commands do alike: version, help, one-line errors, unread output, signals, locales."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.checkpoint.samples import LAYOUT, put, snapshot
from tests.unit.tape.tapes import eventful
from yeto_proto.console import output
from yeto_proto.console.parser import positive_seconds, whole

RUN = ("--learners", "2", "--total-steps", "8")
NAME = "naïve ☃ \x1b[31m"
"""A file name that no ASCII locale can write, and no terminal should see as it is."""


@dataclass(frozen=True)
class Command:
    """How a command is started, and arguments with which it prints something; FILES is a folder of files."""

    start: str
    prints: tuple[str, ...]
    unread: int = 0
    signalled: bool = True  # says so when a signal ends it
    late: str = "numpy"  # a module that is loaded behind the command line

    def run(
        self, *arguments: str | Path, before: str = "", environ: dict[str, str] | None = None, **more: object
    ) -> subprocess.CompletedProcess[str]:
        """Run it as its entry point does; `before` is Python that comes first."""
        module, function = self.start.split(":")
        program = f"from {module} import {function} as main\n{before}\nimport sys; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            env={**os.environ, **(environ or {})},
            text=True,
            check=False,
            timeout=100,
            **{"stderr": subprocess.PIPE, **more},  # type: ignore[call-overload]  # any options of run
        )


COMMANDS = {
    "yeto-syncer": Command(
        "yeto_syncer.__main__:main", (*RUN, "--print-config"), signalled=False, late="tomllib"
    ),
    "yeto-learner": Command("yeto_learner.__main__:main", ("layout", "FILES/layout.json"), unread=1),
    "yeto-tape": Command("yeto_syncer.__main__:tape", ("summary", "FILES/tape.jsonl")),
    "yeto-checkpoint": Command("yeto_syncer.__main__:checkpoint", ("inspect", "FILES/state.ckpt")),
    "yeto-conform": Command("yeto_proto.conform.__main__:main", ("list", "pull_req.*")),
}

every = pytest.mark.parametrize("name", COMMANDS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for each command that reads one."""
    folder = tmp_path_factory.mktemp("files")
    put(folder / "state.ckpt", snapshot())
    (folder / "layout.json").write_text(LAYOUT.to_json())
    eventful(folder / "tape.jsonl")
    return folder


def printing(name: str, files: Path) -> list[str]:
    return [each.replace("FILES", str(files)) for each in COMMANDS[name].prints]


def one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """It ended with this code and one error of three parts."""
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("; ") >= 2, done.stderr
    for each in words:
        assert each in done.stderr


@every
def test_version_and_help(name: str) -> None:
    done = COMMANDS[name].run("--version", stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"{name} \d+\.\d+\.\d+ \(protocol 4\)\n", done.stdout)
    done = COMMANDS[name].run("--help", stdout=subprocess.PIPE, environ={"COLUMNS": "20", "NO_COLOR": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "examples:" in done.stdout and "exit codes:" in done.stdout and "\x1b" not in done.stdout


@every
def test_a_mistake_on_the_command_line(name: str) -> None:
    done = COMMANDS[name].run("--no-such-flag\x1b[31m")
    one_line(done, 2, "command line", f"see {name} --help")
    assert "\x1b" not in done.stderr
    done = COMMANDS[name].run("--vers")  # no flag can be shortened
    one_line(done, 2, "command line")


@every
def test_nothing_heavy_is_loaded_before_the_command_line_is_read(name: str) -> None:
    before = """
import atexit, os, sys

def judge():
    found = {"numpy", "construct", "rich"} & set(sys.modules)
    if found:
        os._exit(77)

atexit.register(judge)
"""
    assert COMMANDS[name].run("--help", before=before, stdout=subprocess.DEVNULL).returncode == 0


@every
@pytest.mark.parametrize("what", [pytest.param("help", marks=pytest.mark.full), "output"])
def test_a_reader_that_has_gone_is_no_mistake(name: str, what: str, files: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        arguments = ["--help"] if what == "help" else printing(name, files)
        done = COMMANDS[name].run(*arguments, stdout=write)
    finally:
        os.close(write)
    assert done.stderr == ""
    assert done.returncode == (0 if what == "help" else COMMANDS[name].unread)


@every
@pytest.mark.parametrize("what", [pytest.param("help", marks=pytest.mark.full), "output"])
def test_output_that_is_full_is_one_line(name: str, what: str, files: Path) -> None:
    arguments = ["--help"] if what == "help" else printing(name, files)
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a device
        one_line(COMMANDS[name].run(*arguments, stdout=full), 1, "cannot write: No space left on device")


@every
def test_closed_streams(name: str, files: Path) -> None:
    """As some supervisors start programs: the first file that is opened must not become standard output."""
    shell = f'exec "$@" <&- >&- 2>&-; exit {99}'
    module, function = COMMANDS[name].start.split(":")
    program = f"import sys; from {module} import {function}; sys.exit({function}())"
    command = ["/bin/sh", "-c", shell, "sh", sys.executable, "-c", program, *printing(name, files)]
    assert subprocess.run(command, check=False, timeout=100).returncode == 0


@every
def test_a_locale_without_utf_8_and_no_home(name: str, files: Path, tmp_path: Path) -> None:
    """A name that the locale cannot write stands there in escapes, in output and in errors."""
    arguments = [each.replace("state", NAME) for each in printing(name, files)]
    (files / f"{NAME}.ckpt").write_bytes((files / "state.ckpt").read_bytes())
    bare = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "HOME": "", "TERM": "dumb"}
    done = COMMANDS[name].run(*arguments, environ=bare, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii() and "\x1b" not in done.stdout
    wrong = {
        "yeto-syncer": (*RUN, "--config", tmp_path / NAME),
        "yeto-learner": ("layout", tmp_path / NAME),
        "yeto-tape": ("summary", tmp_path / NAME),
        "yeto-checkpoint": ("hash", tmp_path / NAME),
        "yeto-conform": ("run", "--sut", tmp_path / NAME),
    }
    done = COMMANDS[name].run(*wrong[name], environ=bare)
    one_line(done, 2 if name == "yeto-conform" else 1, "na")
    assert done.stderr.isascii() and "\x1b" not in done.stderr


@every
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
@pytest.mark.parametrize("when", ["early", "late"])
def test_a_signal_in_the_middle_of_an_import_is_no_traceback(
    name: str, when: str, number: signal.Signals, files: Path
) -> None:
    module = "argparse" if when == "early" else COMMANDS[name].late
    # A finder that signals when the module is looked for, so that the handler runs inside the import.
    before = f"""
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), {number:d})

sys.modules.pop("{module}", None)
sys.meta_path.insert(0, Finder())
"""
    done = COMMANDS[name].run(*printing(name, files), before=before, stdout=subprocess.PIPE)
    assert done.stdout == ""
    if COMMANDS[name].signalled:
        assert (done.returncode, done.stderr) == (128 + number, f"interrupted by {number.name}\n")
    else:
        assert (done.returncode, done.stderr) == (0, "")


# -- the parts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("7", 7), ("007", 7), ("10", 10)])
def test_whole_numbers(text: str, value: int) -> None:
    assert whole(0, 10)(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1.0", "1e3", "nan", "1_0", " 5", "٣", "0x1", "+", "-", "9" * 5000, "-1", "11"]
)
def test_what_is_no_such_whole_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        whole(0, 10)(text)
    assert len(str(refused.value)) < 120


def test_a_whole_number_without_an_upper_end() -> None:
    assert whole(1)("99999999999999999999") == 99999999999999999999
    with pytest.raises(argparse.ArgumentTypeError, match="must be at least 1, got 0"):
        whole(1)("0")


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "-inf", "1e400", "x" * 5000])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        positive_seconds(text)
    assert len(str(refused.value)) < 120


def test_seconds() -> None:
    assert positive_seconds("0.25") == 0.25


def test_printable_text_has_no_control_character_and_keeps_letters() -> None:
    assert output.printable("naïve ☃\n\x1b[0m\t\udcff\u202e") == "naïve ☃\\n\\x1b[0m\\t\\udcff\\u202e"


def test_a_complaint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.fail("a\nb", "c", "d", code=5) == 5
    assert capsys.readouterr().err == "error: a\\nb; c; d\n"


def test_the_middle_of_a_very_long_complaint_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    output.fail("cannot read", "x" * 5000, "give another")
    err = capsys.readouterr().err
    assert err.startswith("error: cannot read; xxx") and err.endswith("xxx; give another\n")
    assert " ... " in err and len(err) < 1100
