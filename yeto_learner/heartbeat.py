"""A thread that tells the syncer regularly that this learner lives, however long its steps are."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import SyncerClient

__all__ = ["HeartbeatThread"]


class HeartbeatThread:
    """Sends HEARTBEAT every `interval` seconds (0: never).

    With `stall` above 0 it falls silent while `progressed` was not called for that many seconds, so that a
    hung training loop loses its lease.  Until the first call, and after `waiting`, no step is due: the syncer
    or the other learners are waited for, and heartbeats go out all the same.
    """

    def __init__(self, client: SyncerClient, interval: float, stall: float) -> None:
        self._client = client
        self._interval, self._stall = interval, stall
        self._stop = threading.Event()
        self._step = 0
        self._last_progress: float | None = None  # None: no step is due
        self._thread = threading.Thread(target=self._run, name="yeto-heartbeat", daemon=True)

    def start(self, local_step: int) -> None:
        """Begin, at the step that the learner has come to in earlier processes."""
        self._step = local_step
        if self._interval > 0:
            self._thread.start()

    def progressed(self, local_step: int) -> None:
        """The training loop reached this step."""
        self._step = local_step
        self._last_progress = time.monotonic()

    def waiting(self) -> None:
        """No step is due before the next call of `progressed`."""
        self._last_progress = None

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            if not self._stalled():
                self._client.heartbeat(self._step)

    def _stalled(self) -> bool:
        last = self._last_progress
        return self._stall > 0 and last is not None and time.monotonic() - last > self._stall
