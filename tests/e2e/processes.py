"""Real processes in tests: started as a user would, waited for by what they say, ended by their id.

`Processes` is a context manager (and a fixture, in conftest.py). When it ends, everything it started must
be gone; what is left is killed, and the test fails.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

import psutil

TIMEOUT_S = 90.0
"""How long any single wait of a test may take, on a machine that is busy with other things."""

ENDING_S = 90.0
"""How long what a process leaves behind may take to end, once the process itself has ended."""


@contextmanager
def reserved_port() -> Iterator[int]:
    """A loopback port that the kernel gives to nobody else meanwhile.

    Connections to it are refused until somebody binds it with SO_REUSEADDR, as a syncer does. A port that was
    free a moment ago may be another process's by now, or even the near end of a connection to itself.
    """
    with socket.socket() as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        placeholder.bind(("127.0.0.1", 0))
        yield placeholder.getsockname()[1]


class Output:
    """Lines of one stream of a process, collected by a thread, so that a test can wait for one of them."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._collect, args=(stream,), daemon=True)
        self._thread.start()

    def _collect(self, stream: IO[str]) -> None:
        for line in stream:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        """All lines so far."""
        with self._changed:
            return "\n".join(self.lines)

    def wait_for(self, pattern: str, timeout: float = TIMEOUT_S, count: int = 1) -> re.Match[str]:
        """Wait until `count` lines match; returns the last of these matches. AssertionError when the stream
        ends or the time is over."""
        wanted = re.compile(pattern)
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                found = [match for match in map(wanted.search, self.lines) if match]
                if len(found) >= count:
                    return found[count - 1]
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    why = "the stream ended" if self._ended else f"not within {timeout} s"
                    raise AssertionError(f"no line {pattern!r}: {why}; seen:\n" + "\n".join(self.lines))
                self._changed.wait(left)

    def join(self, timeout: float = TIMEOUT_S) -> None:
        """Wait until the process has closed the stream."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the stream was not closed"


class Running:
    """A started process with its output."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str] | None, cwd: Path | None) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("YETO_")}
        self.process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=cwd,
            env={**inherited, "PYTHONUNBUFFERED": "1", **(environ or {})},
            start_new_session=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.stdout = Output(self.process.stdout)
        self.stderr = Output(self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        """Send a signal to this process."""
        self.process.send_signal(number)

    def wait(self, timeout: float = TIMEOUT_S) -> int:
        """Wait for its end; returns the exit code. Output is complete afterwards."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s; stderr:\n{self.stderr.text}") from None
        self.stdout.join()
        self.stderr.join()
        return code

    def kill(self) -> None:
        """End it the hard way and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.wait()


Started = TypeVar("Started", bound=Running)


class Syncer(Running):
    """A real `yeto-syncer` on a free loopback port; `port` is known once `listening` was waited for."""

    port = 0

    def listening(self, timeout: float = TIMEOUT_S) -> Syncer:
        """Wait until it accepts."""
        self.port = int(self.stdout.wait_for(r"^listening on 127\.0\.0\.1:(\d+)$", timeout).group(1))
        return self

    def finished(self, code: int = 0, timeout: float = TIMEOUT_S) -> str:
        """Wait for its end and check the exit code; returns what it wrote on standard error."""
        seen = self.wait(timeout)
        assert seen == code, f"exit code {seen}, expected {code}; stderr:\n{self.stderr.text}"
        assert "Traceback" not in self.stderr.text, self.stderr.text
        return self.stderr.text


class Processes:
    """Everything that one test starts."""

    def __init__(self) -> None:
        self._started: list[Running] = []

    def run(
        self, *arguments: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Running:
        """Start a program."""
        return self._keep(Running(arguments, environ, cwd))

    def syncer_command(
        self,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        under: Sequence[str] = (),
    ) -> Syncer:
        """Start `yeto-syncer` with exactly these flags and do not wait for it; `under` is a command that
        runs the command behind it, such as one that sets a limit."""
        command = [*under, sys.executable, "-m", "yeto_syncer", *flags]
        return self._keep(Syncer(command, environ, cwd))

    def syncer(
        self, *flags: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Syncer:
        """Start `yeto-syncer` on a free port and wait until it accepts."""
        return self.syncer_command("--port", "0", *flags, environ=environ, cwd=cwd).listening()

    def _keep(self, started: Started) -> Started:
        self._started.append(started)
        return started

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self.end()
        for running in self._started:  # pytest shows it under a failed test
            print(f"--- {running.process.args}: exit code {running.process.returncode}")
            print(running.stderr.text)
        if error is None:
            assert not left, f"left running by the test: {left}"

    def end(self) -> list[str]:
        """Kill what is left of everything that was started, children included; returns what that was."""
        left = []
        for running in self._started:
            family = descendants(running.pid) if running.process.poll() is None else []
            members = session_members(running.pid)
            if not family:  # its children may need a moment to notice that it has gone
                with suppress(AssertionError):
                    wait_until(lambda those=members: not any(map(alive, those)), "their end", ENDING_S)
            for process in family + members:
                if alive(process):
                    left.append(f"{process.pid} of {running.process.args}")
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            if running.process.poll() is None:
                running.process.wait(TIMEOUT_S)
        return left


def descendants(pid: int) -> list[psutil.Process]:
    """The process and all its children."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def session_members(leader: int) -> list[psutil.Process]:
    """Processes of the session that a started process leads: children that have outlived it too."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != leader and os.getsid(process.pid) == leader:
                found.append(process)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def alive(process: psutil.Process) -> bool:
    """Whether it runs, i.e. is neither gone nor waiting to be reaped."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], what: str, timeout: float = TIMEOUT_S) -> None:
    """Poll for something that nobody can announce, such as a file that another process writes."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        pause.wait(0.005)
