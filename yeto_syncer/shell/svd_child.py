"""One SVD worker process as the syncer sees it: start, one matrix at a time, checks of every answer, end.

The frames are those of `spec/pipes/iso_worker.yaml`. Every wait has a deadline, so nothing here depends on a
worker that does what it should.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from yeto_proto import dtypes
from yeto_proto._generated.errors import NonFinite
from yeto_proto._generated.iso_worker import (
    HEADER,
    MAGIC,
    REQUEST,
    TEXT_LIMIT,
    VERSION,
    Header,
    Status,
)
from yeto_proto._generated.types import Dtype
from yeto_syncer.core.jobs import F32

ENDING_S = 1.0
"""How long a worker that has closed its output gets to exit by itself, so that its exit code can be told, and
how long a killed one is waited for before others hear of it."""

SHOWN_TEXT = 300
"""Characters of a worker's text that are shown."""


class WorkerError(Exception):
    """The worker cannot be used any more. The text says what happened; it does not name the worker."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the clock of `time.monotonic`, and what to say when it has passed."""

    at: float
    passed: str

    @classmethod
    def after(cls, seconds: float, passed: str) -> Deadline:
        """So many seconds from now. `passed` is what did not happen until then."""
        return cls(time.monotonic() + seconds, f"{passed} within {seconds:g} s")

    def left(self) -> float:
        """Seconds until then; not above 0 when it is over."""
        return self.at - time.monotonic()


class Child:
    """A worker process. One thread uses it; only `kill` may be called from any thread."""

    def __init__(self, python: str, device: str, environ: Mapping[str, str]) -> None:
        """Start it. Raises OSError when there is no such program."""
        command = [python, "-m", "yeto_syncer.svd_worker", "--device", device]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**environ, "PYTHONUNBUFFERED": "1"},
            # A group of its own: what it may have started itself ends with it, and Ctrl-C at a terminal is
            # the syncer's alone.
            process_group=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests = self._process.stdin
        self._replies = self._process.stdout
        os.set_blocking(self._requests.fileno(), False)
        os.set_blocking(self._replies.fileno(), False)
        self._last_id = 0
        self._killing = threading.Lock()
        self._killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def probe(self, deadline: Deadline) -> None:
        """Prove that it works, with its first request. Raises WorkerError."""
        matrix = np.ones((1, 1), np.float32)
        self.flatten(matrix, deadline)
        if matrix.tobytes() != np.ones(1, np.float32).tobytes():
            raise WorkerError(f"answered the probe 1.0 with {matrix[0, 0]!r}")

    def flatten(self, matrix: F32, deadline: Deadline) -> None:
        """Replace a contiguous finite (rows, cols) matrix by its flattened form, or by NaN when that is not
        finite.

        Raises WorkerError, after which the matrix may hold anything.
        """
        rows, cols = matrix.shape
        self._last_id += 1
        request = Header(MAGIC, VERSION, REQUEST, self._last_id, rows, cols, matrix.nbytes)
        data = matrix.data.cast("B")
        self._check_silence()
        sent = self._send(HEADER.pack(*request), deadline) and self._send(data, deadline)
        head = bytearray(HEADER.size)
        self._receive(memoryview(head), deadline)
        reply = Header._make(HEADER.unpack(head))
        if reply._replace(code=0, payload_bytes=0) != request._replace(code=0, payload_bytes=0):
            raise WorkerError(f"answered {shown(request)} with {shown(reply)}")
        if reply.code != Status.OK:
            self._refused(reply, deadline)
            matrix.fill(np.nan)
            return
        if not sent:
            raise WorkerError(f"answered {shown(request)} before it had read all of it")
        if reply.payload_bytes != request.payload_bytes:
            raise WorkerError(
                f"answered {shown(request)} with {reply.payload_bytes} bytes, not {request.payload_bytes}"
            )
        self._receive(data, deadline)
        try:
            dtypes.check_finite(Dtype.F32, matrix)
        except NonFinite:
            raise WorkerError(f"answered {shown(request)} with values that are not finite") from None

    def _refused(self, reply: Header, deadline: Deadline) -> None:
        """Read the text of an answer that is no matrix. A result that overflows is no failure (D33)."""
        if reply.payload_bytes > TEXT_LIMIT:
            raise WorkerError(f"answered with status {reply.code} and a text of {reply.payload_bytes} bytes")
        text = bytearray(reply.payload_bytes)
        self._receive(memoryview(text), deadline)
        if reply.code == Status.NON_FINITE_OUTPUT:
            return
        known = reply.code in Status.__members__.values()
        status = Status(reply.code).name if known else f"status {reply.code}"
        words = " ".join(text.decode(errors="replace").split())[:SHOWN_TEXT]
        raise WorkerError(f"answered {status}: {words}")

    # -- bytes -----------------------------------------------------------------------------------------------

    def _check_silence(self) -> None:
        """Raises WorkerError when it has ended, or speaks without having been asked."""
        if select_one(self._replies.fileno(), select.POLLIN, 0.0):
            if os.read(self._replies.fileno(), 1):
                raise WorkerError("wrote to its standard output without having been asked")
            raise self._ended()

    def _send(self, data: bytes | memoryview, deadline: Deadline) -> bool:
        """Write everything; False when the worker has closed its input. It may still have said why."""
        file = self._requests.fileno()
        view = memoryview(data)
        while view:
            self._wait(file, select.POLLOUT, deadline)
            try:
                view = view[os.write(file, view) :]
            except BlockingIOError:  # there was room for less than the kernel writes at once
                continue
            except BrokenPipeError:
                return False
        return True

    def _receive(self, view: memoryview, deadline: Deadline) -> None:
        """Fill the view. Raises WorkerError when the worker ends before that."""
        file = self._replies.fileno()
        while view:
            self._wait(file, select.POLLIN, deadline)
            count = os.readv(file, [view])
            if not count:
                raise self._ended()
            view = view[count:]

    def _wait(self, file: int, event: int, deadline: Deadline) -> None:
        left = deadline.left()
        if left <= 0 or not select_one(file, event, left):
            raise WorkerError(deadline.passed)

    # -- the end ---------------------------------------------------------------------------------------------

    def _ended(self) -> WorkerError:
        """What to say after the end of its output."""
        try:
            code = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return WorkerError("closed its standard output")
        if code < 0:
            return WorkerError(f"was ended by {signal.Signals(-code).name}")
        return WorkerError(f"exited with {code}")

    def kill(self) -> None:
        """End it at once, with everything that it has started."""
        with self._killing:
            if self._killed:
                return
            self._killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it is gone already
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and wait until it is gone, for a moment: a device driver may hold it up."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)

    def close(self) -> None:
        """Kill it, free its pipes, and wait until it is gone. Only for the thread that uses it."""
        self.kill()
        self._requests.close()
        self._replies.close()
        self._process.wait()


def select_one(file: int, event: int, seconds: float) -> bool:
    """Wait until a descriptor is ready, closed or broken; False after so many seconds."""
    poll = select.poll()
    poll.register(file, event)
    return bool(poll.poll(math.ceil(max(0.0, seconds) * 1000)))


def shown(header: Header) -> str:
    """A frame for people."""
    if header.magic != MAGIC or header.version != VERSION:
        return f"bytes that are no frame ({header.magic.hex()}...)"
    return f"request {header.request_id} ({header.rows} x {header.cols})"
