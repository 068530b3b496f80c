"""Pushes leave the training loop here, and INITs for a syncer that came back without parameters: a bounded
set of delta buffers, and one thread that encodes and streams them.

The step boundary writes a delta into a buffer and goes on.  When all buffers are in use the pull simply stays
pending.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from yeto_proto import dtypes
from yeto_proto._generated.constants import CHUNK_SLICE, Q4_BLOCK
from yeto_proto._generated.messages import Buffer
from yeto_proto._generated.types import Dtype

from .core.boundary import Answer
from .core.values import F32
from .errors import PartialMessageGenerationLost
from .journal import JournaledRecord, PushJournal
from .outbox import Ticket

if TYPE_CHECKING:
    from .client import SyncerClient

__all__ = ["DeltaBuffers", "Exporter", "encoded_parts"]

PART_VALUES: Final = CHUNK_SLICE // 4 // Q4_BLOCK * Q4_BLOCK  # a whole number of q4 blocks
MIN_BUFFERED: Final = (
    64 * 1024 * 1024
)  # bytes of delta buffers that may exist whatever the size of a fragment


class DeltaBuffers:
    """f32 buffers for deltas, together at most the larger of one whole fragment and 64 MiB."""

    def __init__(self, largest: int) -> None:
        self._limit = max(largest, MIN_BUFFERED // 4)  # values
        self._lock = threading.Lock()
        self._free: dict[int, list[F32]] = {}
        self._allocated = 0  # values

    def take(self, numel: int) -> F32 | None:
        """A buffer of `numel` values, or None while too much is in use."""
        with self._lock:
            free = self._free.get(numel)
            if free:
                return free.pop()
            if self._allocated + numel > self._limit:
                self._allocated -= sum(size * len(kept) for size, kept in self._free.items())
                self._free.clear()
            if self._allocated + numel > self._limit:
                return None
            self._allocated += numel
        return np.empty(numel, np.float32)

    def give(self, buffer: F32) -> None:
        """Give a buffer back; nobody may look at it any more."""
        with self._lock:
            self._free.setdefault(len(buffer), []).append(buffer)


def encoded_parts(dtype: Dtype, values: F32) -> Iterator[Buffer]:
    """The wire bytes of `values` in parts: views of them for f32, fresh bytes for bf16 and q4."""
    for start in range(0, len(values), PART_VALUES):
        yield dtypes.encode(dtype, values[start : start + PART_VALUES])


class Exporter:
    """Encodes and sends answers on a thread of its own, one after the other, each noted in the journal
    first."""

    def __init__(self, client: SyncerClient, buffers: DeltaBuffers, journal: PushJournal) -> None:
        self._client = client
        self._buffers = buffers
        self._journal = journal
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._settled: deque[tuple[Answer, int | None]] = deque()
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="yeto-export", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, answer: Answer, delta: F32) -> None:
        """Send this delta, a buffer of `DeltaBuffers`, which goes back there in the end."""
        # A record that is saved later knows of this answer; those from before have to be told.
        records = self._journal.records
        with self._changed:
            self._jobs.append(lambda: self._send(answer, delta, records))
            self._changed.notify_all()

    def submit_init(self, fragment_id: int, values: F32) -> None:
        """Send these values as INIT, from a buffer of `DeltaBuffers`, which goes back there in the end."""
        with self._changed:
            self._jobs.append(lambda: self._send_init(fragment_id, values))
            self._changed.notify_all()

    def settled(self) -> Iterator[tuple[Answer, int | None]]:
        """The answers whose fate is known by now: the generation that took them whole, or None."""
        while self._settled:
            yield self._settled.popleft()

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._failure is not None:
            raise RuntimeError(f"sending an answer failed: {self._failure}") from self._failure

    def close(self) -> None:
        """End the thread.  The client must be closed before, or a full queue may keep it waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return
                job = self._jobs.popleft()
            try:
                job()
            except (OSError, ValueError, MemoryError) as error:
                self._failure = error
                return

    def _send_init(self, fragment_id: int, values: F32) -> None:
        # Copies, because the queues hold the parts of f32 beyond the life of the buffer's values. A
        # connection that is lost meanwhile is looked at anew at a later boundary.
        parts = map(bytes, encoded_parts(self._client.session.bulk_dtype, values))
        with contextlib.suppress(PartialMessageGenerationLost):
            self._client.send_init_parts(fragment_id, parts)
        self._buffers.give(values)

    def _send(self, answer: Answer, delta: F32, records: Collection[JournaledRecord]) -> None:
        dtype = self._client.dtype
        generation: int | None = None

        def settled(written: bool) -> None:
            if dtype is Dtype.F32:  # the queues held views of the buffer until now
                self._buffers.give(delta)
            self._settled.append((answer, generation if written else None))

        def parts() -> Iterator[Buffer]:
            # Only once the first part is asked for, so that a lost connection marks nothing as pushed.
            self._journal.note(records, answer.pull.fragment_id, answer.base_version)
            yield from encoded_parts(dtype, delta)

        ticket = Ticket(settled)
        try:
            generation = self._client.stream_push(answer, parts(), ticket)
        except PartialMessageGenerationLost:
            pass  # the pull comes again on the next connection
        finally:
            if dtype is not Dtype.F32:
                self._buffers.give(delta)
            if generation is None:
                ticket.lost()
            else:
                ticket.written()
