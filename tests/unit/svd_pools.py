"""Pools of SVD workers for tests, and what their tests share."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import psutil
import pytest

from tests.e2e.processes import wait_until
from yeto_syncer.core.jobs import F32
from yeto_syncer.shell import svd_child, svd_pool
from yeto_syncer.shell.svd_pool import SvdPool, SvdPoolError, Timeouts

WAIT_S = 120.0
SOON = 0.3
"""A deadline that passes while a test waits for it."""

NAME = r"SVD worker 0 \(cpu\)"


class Pools:
    """Starts pools for one test, and closes them at its end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.started: list[SvdPool] = []
        self._patch = patch

    def start(
        self,
        python: str,
        devices: tuple[str, ...] = ("cpu",),
        *,
        capacity: int = 16,
        startup: float = WAIT_S,
        request: float = WAIT_S,
        drain: float = WAIT_S,
        ending: float = WAIT_S,
    ) -> SvdPool:
        """`ending` is the time in which a worker that ends must be gone: it may be long on a busy machine."""
        self._patch.setattr(svd_child, "ENDING_S", ending)
        self._patch.setattr(svd_pool, "ENDING_S", WAIT_S)
        pool = SvdPool.start(python, devices, capacity, Timeouts(startup, request, drain), os.environ)
        self.started.append(pool)
        return pool


def fds() -> set[tuple[str, str]]:
    """The descriptors of this process, and what they are."""
    found = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  # pathlib would keep one open while it looks
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add((number, str(Path("/proc/self/fd", number).readlink())))
    return found


def children() -> set[psutil.Process]:
    """What this process has started."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pools]:
    """Pools of which no child, thread or descriptor is left after the test.

    Only what is new counts: what tests before have left may end meanwhile.
    """
    descriptors, threads, processes = fds(), set(threading.enumerate()), children()
    made = Pools(monkeypatch)
    yield made
    for pool in made.started:
        assert pool.close()
        assert not any(psutil.pid_exists(pid) for pid in pool.pids)
    wait_until(lambda: set(threading.enumerate()) <= threads, "the end of all threads")
    assert fds() <= descriptors
    assert children() <= processes


class Call(threading.Thread):
    """A call of `flatten` on a thread of its own."""

    def __init__(self, pool: SvdPool, *matrices: F32) -> None:
        super().__init__(daemon=True)
        self.matrices = matrices
        self._pool = pool
        self._end: SimpleQueue[SvdPoolError | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        try:
            self._pool.flatten(self.matrices)
        except SvdPoolError as error:
            self._end.put(error)
        else:
            self._end.put(None)

    def ended(self) -> str | None:
        """Wait for its end; the message when it failed."""
        error = self._end.get(timeout=WAIT_S)
        self.join(WAIT_S)
        return None if error is None else str(error)


def matrix(rows: int = 2, cols: int = 3, value: float = 1.0) -> F32:
    return np.full((rows, cols), value, np.float32)


def failure(work: Callable[[], object]) -> str:
    with pytest.raises(SvdPoolError) as raised:
        work()
    return str(raised.value)


GATED = """
    probe()
    with open({log!r}, "ab", buffering=0) as log:
        while True:
            request, payload = read()
            log.write(b"%d " % request.cols)
            with open({gate!r}, "rb") as gate:
                gate.read()
            answer(request, payload)
"""
