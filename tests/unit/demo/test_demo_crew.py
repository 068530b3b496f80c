"""Children are heard, ended by id, and never outlive the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.e2e.processes import alive, wait_until
from yeto_learner.demo import crew as crew_module
from yeto_learner.demo.crew import Child, Crew
from yeto_proto.console.signals import Interrupted, SignalGuard

WAIT_S = 120.0


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module for a child to run: it says `ready` and its process id, then does what its argument names."""
    source = """
        import os, signal, sys
        what = sys.argv[1]
        if what == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", os.getpid(), os.environ.get("YETO_SYNCER_QUORUM"))
        if what == "fail":
            print("error: it broke; here; mend it", file=sys.stderr)
            sys.exit(3)
        if what == "gated":
            os.read(int(sys.argv[2]), 1)
            print("through")
        if what in ("wait", "deaf"):
            while True:
                signal.pause()
    """
    (tmp_path / "demo_child_program.py").write_text(textwrap.dedent(source))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("YETO_SYNCER_QUORUM", "9")
    return "demo_child_program"


def hear(crew: Crew, count: int, lines: list[str]) -> list[Child]:
    """Polls until `count` lines came; returns the children that ended meanwhile."""
    ended: list[Child] = []
    while len(lines) < count:
        ended += crew.poll(WAIT_S)
    return ended


def test_lines_exit_code_log_and_environment(program: str, tmp_path: Path) -> None:
    lines: list[str] = []
    with SignalGuard() as guard:
        crew = Crew(guard, tmp_path)
        with crew.running():
            child = crew.start("worker", program, ["fail"], lines.append)
            ended = hear(crew, 1, lines)
            while not ended:
                ended = crew.poll(WAIT_S)
    assert ended == [child]
    assert child.exit_code == 3
    assert child.last_words() == "error: it broke; here; mend it"
    assert lines[0].split() == ["ready", str(child.process.pid), "None"]


def test_a_gated_child_waits_until_it_is_let_go(program: str, tmp_path: Path) -> None:
    lines: list[str] = []
    with SignalGuard() as guard:
        crew = Crew(guard, tmp_path)
        with crew.running():
            child = crew.start("worker", program, ["gated"], lines.append, gated=True)
            hear(crew, 1, lines)
            assert not crew.poll(0.2) and len(lines) == 1
            child.let_go()
            ended = hear(crew, 2, lines)
            while not ended:
                ended = crew.poll(WAIT_S)
    assert lines[1] == "through" and child.exit_code == 0


@pytest.mark.parametrize(
    ("kind", "signum", "stop"), [("wait", signal.SIGTERM, WAIT_S), ("deaf", signal.SIGKILL, 0.3)]
)
def test_the_end_of_the_block_ends_the_children(
    kind: str, signum: int, stop: float, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "STOP_S", stop)
    lines: list[str] = []
    with SignalGuard() as guard:
        crew = Crew(guard, tmp_path)
        with crew.running():
            child = crew.start("worker", program, [kind], lines.append)
            hear(crew, 1, lines)
    assert child.exit_code == -signum
    assert not psutil.pid_exists(child.process.pid)


def test_a_child_ends_when_its_parent_is_killed(program: str, tmp_path: Path) -> None:
    parent_code = f"""
        from pathlib import Path
        from yeto_learner.demo.crew import Crew
        from yeto_proto.console.signals import SignalGuard
        with SignalGuard() as guard:
            crew = Crew(guard, Path({str(tmp_path)!r}))
            crew.start("worker", {program!r}, ["wait"], lambda line: print(line, flush=True))
            while True:
                crew.poll(10)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent_code)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline().split()[1]))
        parent.send_signal(signal.SIGKILL)
        parent.wait(WAIT_S)
    wait_until(lambda: not alive(child), "the end of the child", WAIT_S)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_raised_at_once_or_at_the_end_of_a_held_block(signum: int, code: int) -> None:
    reached = []
    with SignalGuard() as guard:
        with pytest.raises(Interrupted) as at_once:
            os.kill(os.getpid(), signum)
        with pytest.raises(Interrupted) as later, guard.held(), guard.held():
            os.kill(os.getpid(), signum)
            reached.append(guard.pending)
        assert not guard.pending
    assert reached == [True]
    assert at_once.value.exit_code == later.value.exit_code == code


def test_the_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SignalGuard():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
