"""The processes of a demo: started, read from, and ended by id."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from yeto_learner.demo import tether
from yeto_proto.console.signals import SignalGuard

STOP_S = 3.0
"""How long a process may take to end after SIGTERM."""


@dataclass
class Child:
    """A running process. `on_line` gets each line of its standard output; `log` holds its standard error. It
    may wait at the other end of `gate`.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    on_line: Callable[[str], None]
    gate: socket.socket | None = None
    exit_code: int | None = None
    expected_to_die: bool = False
    _rest: bytes = field(default=b"", repr=False)

    def kill(self) -> None:
        """SIGKILL, by process id."""
        self.process.kill()

    def let_go(self) -> None:
        """Open the gate."""
        assert self.gate is not None
        self.gate.close()

    def last_words(self) -> str:
        """The last line that it logged that is not empty, for messages."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it logged nothing"

    def take(self, data: bytes) -> None:
        """Splits `data` into lines and hands them on."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.on_line(line.decode("utf-8", "replace"))


class Crew:
    """Starts children and waits for their output. Use `with crew.running():` so that none outlives the
    block.
    """

    def __init__(self, guard: SignalGuard, logs: Path) -> None:
        self._guard = guard
        self._logs = logs
        self._selector = selectors.DefaultSelector()
        self._alive: list[Child] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.stop()

    def start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        on_line: Callable[[str], None],
        *,
        gated: bool = False,
    ) -> Child:
        """Runs `python -m module arguments...` tied to this process; its log is `NAME.log`. A `gated` one
        gets the number of a file as one more argument, and can wait there for `Child.let_go`.

        Raises OSError when the log cannot be written or the process cannot be started.
        """
        log = self._logs / f"{name}.log"
        with self._guard.held(), log.open("wb") as errors, contextlib.ExitStack() as stack:
            gate = None
            inherited: tuple[int, ...] = ()
            if gated:
                ours, theirs = socket.socketpair()
                stack.enter_context(theirs)
                gate, inherited = ours, (theirs.fileno(),)
                arguments = [*arguments, str(theirs.fileno())]
            process = subprocess.Popen(
                # -P: neither this folder nor the current one may shadow an installed module.
                [sys.executable, "-P", tether.__file__, module, *arguments],
                stdin=subprocess.PIPE,  # never written to: see tether.py
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(),
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the others in order
            )
            child = Child(name, process, log, on_line, gate)
            self._alive.append(child)
            assert process.stdout is not None
            self._selector.register(process.stdout, selectors.EVENT_READ, child)
        return child

    def poll(self, timeout: float) -> list[Child]:
        """Waits at most `timeout` seconds for output, hands it on, and returns the children that ended."""
        ended = []
        for key, _ in self._selector.select(timeout):
            child: Child = key.data
            data = os.read(key.fd, 1 << 16)
            if data:
                child.take(data)
            else:
                self._selector.unregister(key.fileobj)
                child.exit_code = child.process.wait()
                self._close(child)
                ended.append(child)
        return ended

    def stop(self) -> None:
        """Ends whatever still runs: SIGTERM, then SIGKILL after three seconds or at the next signal."""
        with self._guard.held():
            for child in self._alive:
                child.process.terminate()
            deadline = time.monotonic() + STOP_S
            for child in list(self._alive):
                while (
                    child.process.poll() is None and time.monotonic() < deadline and not self._guard.pending
                ):
                    try:
                        child.process.wait(0.05)
                    except subprocess.TimeoutExpired:
                        continue
                child.process.kill()
                child.exit_code = child.process.wait()
                self._close(child)
            self._selector.close()

    def _close(self, child: Child) -> None:
        self._alive.remove(child)
        for pipe in (child.process.stdin, child.process.stdout, child.gate):
            if pipe is not None:
                pipe.close()


def _environment() -> dict[str, str]:
    """This process's environment, without settings that are meant for other syncers and learners."""
    result = {name: value for name, value in os.environ.items() if not name.startswith("YETO_")}
    result["PYTHONUNBUFFERED"] = "1"
    return result
