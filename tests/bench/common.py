"""What the benchmarks share: rows, real syncer processes, and children that begin at one moment."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import numpy as np

Row = dict[str, Any]

WAIT_S = 300.0
SPAWN = multiprocessing.get_context("spawn")


def row(work: str, value: float, unit: str, raw: float | None, target: float | None, **more: Any) -> Row:
    """One figure beside its raw limit. The ratio is 1 when both are equally fast, whatever the unit; a row
    without a limit is judged by its value."""
    ratio = None
    if raw is not None:
        ratio = raw / value if unit in ("s", "ms", "us") else value / raw
    return {"work": work, "value": value, "unit": unit, "raw": raw, "ratio": ratio, "target": target, **more}


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Reserve:
    """Memory that this machine has for certain, held until the moment at which a measurement begins.

    A virtual machine gets memory from its host on the first touch, at a small part of the speed of anything
    that is measured here, and gives back what lies free for a second. With a reserve both sides of a
    comparison find memory that is there.
    """

    def __init__(self, size: int) -> None:
        self._held: np.ndarray | None = np.empty(size, np.uint8)
        self._held.fill(1)

    def release(self) -> None:
        """Give it to whoever asks for memory next."""
        self._held = None


class Syncer:
    """A real `yeto-syncer`; its log lines with the moment at which each was read."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "yeto_syncer", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines: list[tuple[float, str]] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append((time.monotonic(), line))
                self._changed.notify_all()
        with self._changed:
            self.lines.append((time.monotonic(), "the process has ended"))
            self._changed.notify_all()

    def wait_for(self, pattern: str, count: int = 1) -> float:
        """When the line came that is the `count`-th to match. RuntimeError when it does not come."""
        wanted = re.compile(pattern)
        found: list[float] = []

        def look() -> bool:
            found[:] = [moment for moment, line in self.lines if wanted.search(line)]
            return len(found) >= count or (
                bool(self.lines) and self.lines[-1][1].startswith("the process has")
            )

        with self._changed:
            self._changed.wait_for(look, WAIT_S)
        if len(found) < count:
            raise RuntimeError(f"no {pattern!r} from the syncer:\n" + "".join(line for _, line in self.lines))
        return found[count - 1]

    def cpu_s(self) -> float:
        """Processor seconds used so far."""
        with open(f"/proc/{self.process.pid}/stat") as stat:  # noqa: PTH123
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def peak_mib(self) -> float:
        """The most memory that was resident at one time."""
        with open(f"/proc/{self.process.pid}/status") as status:  # noqa: PTH123
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

    def threads(self) -> int:
        """How many threads it has now."""
        with open(f"/proc/{self.process.pid}/status") as status:  # noqa: PTH123
            return next(int(line.split()[1]) for line in status if line.startswith("Threads"))

    def __enter__(self) -> Syncer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        self._thread.join()


class Child:
    """A process that runs `work(connection, *arguments)` and talks through the connection."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        self.pipe: Connection
        self.pipe, theirs = SPAWN.Pipe()
        self.process: SpawnProcess = SPAWN.Process(target=work, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def hear(self) -> Any:
        """What it says next."""
        if not self.pipe.poll(WAIT_S):
            raise RuntimeError(f"a child of the benchmark said nothing for {WAIT_S:g} s")
        return self.pipe.recv()

    def tell(self, what: Any) -> None:
        """Say something to it."""
        self.pipe.send(what)

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()


@contextlib.contextmanager
def children(*started: tuple[Any, ...]) -> Iterator[Sequence[Child]]:
    """Several of them, ended at the end; each tuple is a function and its arguments."""
    running: list[Child] = []
    try:
        for work, *arguments in started:
            running.append(Child(work, *arguments))
        yield running
    finally:
        for child in running:
            child.end()
