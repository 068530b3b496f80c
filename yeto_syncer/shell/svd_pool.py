"""The bounded pool of SVD workers behind `--iso-backend torch-svd`.

One child process and one thread for each device. A matrix is admitted when fewer than `capacity` others are
queued or running, and holds its place until its end. Matrices are started in the order of their submission.
Each has a deadline that counts from there, and all of them are given the same time, so a running one is
always the first to be late, and its thread is the only one that has to watch the clock.

The first failure poisons the pool for good: the worker is killed, then everything that has no answer yet, and
everything that comes later, fails with the same message.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from yeto_syncer.core.jobs import F32
from yeto_syncer.shell.svd_child import Child, Deadline, WorkerError

CLOSED = "the SVD pool is closed"

ENDING_S = 5.0
"""How long `close` waits for a thread whose child has been killed."""


class SvdPoolError(Exception):
    """The pool is poisoned or takes no work any more; one line."""


class BadTimeoutError(Exception):
    """A variable that does not hold a time: its name and its text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name} must be a whole number of seconds above 0, got {text!r}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a worker has to start, a matrix from its submission to its end, and the drain."""

    startup: float = 300.0
    request: float = 3540.0
    drain: float = 3600.0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Timeouts:
        """From YETO_ISO_WORKER_{STARTUP,REQUEST,DRAIN}_TIMEOUT_S where these are set.

        Raises BadTimeoutError.
        """
        given: dict[str, float] = {}
        for name in ("startup", "request", "drain"):
            variable = f"YETO_ISO_WORKER_{name.upper()}_TIMEOUT_S"
            text = environ.get(variable, "")
            if not text:
                continue
            if re.fullmatch(r"0*[1-9][0-9]*", text) is None:
                raise BadTimeoutError(variable, text)
            given[name] = float(text)
        return cls(**given)


@dataclass(slots=True)
class Job:
    """A matrix with a place in the pool."""

    matrix: F32
    deadline: Deadline
    done: bool = False


@dataclass(slots=True)
class Worker:
    """A child and the name that it has in messages."""

    name: str
    child: Child
    thread: threading.Thread = field(init=False)


class SvdPool:
    """Workers that flatten matrices. Every method may be called from any thread."""

    def __init__(self, capacity: int, timeouts: Timeouts) -> None:
        """A pool without workers; `start` makes one with them."""
        self._timeouts = timeouts
        # Guards everything below and tells of each change.
        self._changed = threading.Condition()
        self._capacity = capacity
        self._free = capacity
        self._waiting: deque[object] = deque()
        self._queue: deque[Job] = deque()
        self._workers: list[Worker] = []
        self._ready = 0
        self._calls = 0
        self._draining = False
        self._poison: str | None = None

    @classmethod
    def start(
        cls,
        python: str,
        devices: Sequence[str],
        capacity: int,
        timeouts: Timeouts,
        environ: Mapping[str, str],
    ) -> SvdPool:
        """Start a worker for each device and wait until each has answered its probe.

        Raises SvdPoolError when one cannot; then none is left.
        """
        with contextlib.ExitStack() as undo:
            pool = cls(capacity, timeouts)
            undo.callback(pool.close)
            for number, device in enumerate(devices):
                pool._launch(f"SVD worker {number} ({device})", python, device, environ)
            with pool._changed:
                pool._wait(lambda: pool._ready == len(devices))
            undo.pop_all()
        return pool

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, in the order of their devices."""
        return [worker.child.pid for worker in self._workers]

    @property
    def load(self) -> tuple[int, int, int]:
        """How many matrices are running, queued, and waiting for their admission."""
        with self._changed:
            queued = len(self._queue)
            return self._capacity - self._free - queued, queued, len(self._waiting)

    @property
    def poison(self) -> str | None:
        """The message of the first failure, if there was one."""
        with self._changed:
            return self._poison

    # -- work ------------------------------------------------------------------------------------------------

    def flatten(self, matrices: Sequence[F32]) -> None:
        """Replace contiguous, finite (rows, cols) matrices by their flattened forms; NaN where one is not
        finite.

        Waits for all of them. Raises SvdPoolError when the pool fails meanwhile or takes no work any more;
        then the matrices may hold anything, and must be left alone until the pool is closed.
        """
        with self._changed:
            if self._draining and self._poison is None:
                raise SvdPoolError(CLOSED)
            self._calls += 1
            try:
                jobs = [self._submit(matrix) for matrix in matrices]
                self._wait(lambda: all(job.done for job in jobs))
            finally:
                self._calls -= 1
                self._changed.notify_all()

    def drain(self) -> None:
        """Take no new work from now on, for good, and wait for the end of what was submitted before.

        Raises SvdPoolError when the pool is poisoned or does not come to its end in time.
        """
        deadline = Deadline.after(self._timeouts.drain, "the SVD pool was not drained")
        with self._changed:
            self._draining = True
            self._wait(lambda: self._calls == 0, deadline)

    def close(self) -> bool:
        """Kill all workers and wait until they are gone; True when they are. Pending work fails."""
        self._fail(CLOSED)
        for worker in self._workers:
            worker.thread.join(ENDING_S)
        return not any(worker.thread.is_alive() for worker in self._workers)

    def _submit(self, matrix: F32) -> Job:
        """Wait for the turn and for a free place, then queue the matrix."""
        rows, cols = matrix.shape
        deadline = Deadline.after(self._timeouts.request, f"gave no answer to a matrix of {rows} x {cols}")
        turn = object()
        self._waiting.append(turn)
        try:
            self._wait(lambda: self._free > 0 and self._waiting[0] is turn)
        finally:
            self._waiting.remove(turn)
        self._free -= 1
        job = Job(matrix, deadline)
        self._queue.append(job)
        self._changed.notify_all()
        return job

    def _wait(self, ready: Callable[[], bool], deadline: Deadline | None = None) -> None:
        """Sleep until it is so. Raises SvdPoolError when the pool is poisoned, even if it is so by then."""
        while self._poison is None and not ready():
            left = None if deadline is None else deadline.left()
            if deadline is not None and left is not None and left <= 0:
                self._fail(deadline.passed)
            else:
                self._changed.wait(left)
        if self._poison is not None:
            raise SvdPoolError(self._poison)

    # -- workers ---------------------------------------------------------------------------------------------

    def _launch(self, name: str, python: str, device: str, environ: Mapping[str, str]) -> None:
        deadline = Deadline.after(self._timeouts.startup, "was not ready")
        try:
            child = Child(python, device, environ)
        except OSError as error:
            raise SvdPoolError(f"{name} cannot be started: {python}: {error.strerror}") from None
        worker = Worker(name, child)
        worker.thread = threading.Thread(
            target=self._serve, args=(worker, deadline), name=name.lower(), daemon=True
        )
        with self._changed:
            self._workers.append(worker)
            late = self._poison is not None
        if late:
            child.kill()
        worker.thread.start()

    def _serve(self, worker: Worker, startup: Deadline) -> None:
        """The thread of a worker."""
        message = f"{worker.name}: its thread has ended by a defect"
        try:
            worker.child.probe(startup)
            self._work(worker.child)
            message = CLOSED
        except WorkerError as error:
            message = f"{worker.name}: {error}"
        finally:
            worker.child.end()  # before anybody hears of it
            self._fail(message)
            worker.child.close()

    def _work(self, child: Child) -> None:
        """Take matrices from the queue until the pool is over."""
        with self._changed:
            self._ready += 1
            self._changed.notify_all()
        while (job := self._take()) is not None:
            child.flatten(job.matrix, job.deadline)
            self._finish(job)
            del job  # an idle thread must not keep a fragment alive

    def _take(self) -> Job | None:
        """The next matrix; None when the pool is over."""
        with self._changed:
            while self._poison is None and not self._queue:
                self._changed.wait()
            return None if self._poison is not None else self._queue.popleft()

    def _finish(self, job: Job) -> None:
        with self._changed:
            job.done = True
            self._free += 1
            self._changed.notify_all()

    def _fail(self, message: str) -> None:
        """Poison the pool unless it is, drop the queue, and kill every worker."""
        with self._changed:
            if self._poison is None:
                self._poison = message
            self._free += len(self._queue)
            self._queue.clear()
            workers = list(self._workers)
            self._changed.notify_all()
        for worker in workers:
            worker.child.kill()
