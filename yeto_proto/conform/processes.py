"""Processes under test: each in a group of its own, ended by its id with all that it started."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .verdict import BrokenError

__all__ = ["NotStartedError", "Process"]

_TAIL = 4000  # characters of output that are kept for a report


class NotStartedError(Exception):
    """A command that cannot be run, or that never became ready."""


class Process:
    """A running command. Its output is read all the time, so that it never waits for a full pipe."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path, *, talks: bool = False
    ) -> None:
        """Start it; with `talks`, `ask` writes lines to it. Raises NotStartedError."""
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={**os.environ, **env},
                start_new_session=True,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise NotStartedError(f"{command[0]}: {error.strerror}") from None
        self.lines: queue.Queue[str | None] = queue.Queue()
        self._output: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout, True), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, False), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: object, told: bool) -> None:
        for line in stream:  # type: ignore[attr-defined]  # Popen types its pipes as optional
            self._output.append(line)
            if told:
                self.lines.put(line.rstrip("\n"))
        if told:
            self.lines.put(None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """The end of all that it wrote."""
        return "".join(self._output)[-_TAIL:]

    @property
    def code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def wait_line(self, start: str, timeout: float) -> str:
        """The first line of its stdout that starts so. Raises NotStartedError."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise NotStartedError(f"no line {start!r} on its stdout within {timeout:g} s") from None
            if line is None:
                raise NotStartedError(f"it ended before the line {start!r}:\n{self.output}")
            if line.startswith(start):
                return line

    def ask(self, line: str, timeout: float) -> str | None:
        """Write a line, read one; None when the process ended instead. Raises BrokenError after the wait."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(line + "\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):
            return None
        try:
            return self.lines.get(timeout=timeout)
        except queue.Empty:
            raise BrokenError(f"no answer within {timeout:g} s") from None

    def wait(self, timeout: float) -> int | None:
        """Its exit code, or None when it did not end in time."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, name: str) -> None:
        """Send SIGTERM, SIGINT ... to the process itself."""
        self._process.send_signal(signal.Signals[f"SIG{name}"])

    def stop(self) -> None:
        """End it and all that it started."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join(5)
