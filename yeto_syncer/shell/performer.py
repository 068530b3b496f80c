"""Effects of the coordinator, performed one by one.

Sockets belong to `Server`, files to `Storage` and `Tape`; this module knows which effect goes where and
which of them holds back the effects behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from yeto_proto._generated.types import MergeMode
from yeto_proto.pool import BufferPool
from yeto_syncer.core.effects import (
    Accept,
    AppendTape,
    Attach,
    CloseConn,
    CloseLink,
    Count,
    Deliver,
    Drain,
    Effect,
    Exit,
    Fold,
    Log,
    Merge,
    Refuse,
    RemoveMarker,
    Save,
    SaveKind,
    Send,
    SetTimer,
    WriteFinalState,
    WriteMarker,
)
from yeto_syncer.core.events import (
    DrainFailed,
    Event,
    FileFailed,
    Folded,
    Merged,
    MergeFailed,
    Saved,
    SaveFailed,
    Tick,
)
from yeto_syncer.core.jobs import FoldJob, MergeJob, MergeResult
from yeto_syncer.core.merge import Flatten, Map, flatten_each
from yeto_syncer.core.merge import fold as run_fold
from yeto_syncer.core.merge import run as run_merge
from yeto_syncer.shell.counters import Counters
from yeto_syncer.shell.logs import Log as LogWriter
from yeto_syncer.shell.server import Server
from yeto_syncer.shell.storage import Storage
from yeto_syncer.shell.svd_pool import SvdPool, SvdPoolError
from yeto_syncer.shell.tape import Tape
from yeto_syncer.shell.workers import Workers, settled

INLINE_MERGE = 1 << 16
"""Values of all answers of a merge that is done on the event loop: that takes less time than changing
threads. iso is never done there: its time grows faster than the values."""


class Line(Protocol):
    """The engine, as the performer sees it."""

    def post(self, event: Event) -> None: ...

    def resume(self, event: Event | None, failed: bool = False) -> None: ...


class Watcher(Protocol):
    """Who only wants to know."""

    def record(self, record: Mapping[str, Any]) -> None: ...

    def saved(self, kind: SaveKind, step: int, seconds: float) -> None: ...


class Performer:
    """Performs effects. Calling it with one answers whether the effects behind it have to wait."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: Server,
        storage: Storage,
        tape: Tape | None,
        log: LogWriter,
        spread: Map,
        svd: SvdPool | None,
        end: Callable[[Exit], None],
        pool: BufferPool,
        counters: Counters,
        watch: Watcher | None = None,
        spectra: Map = map,
    ) -> None:
        self._loop = loop
        self._server = server
        self._storage = storage
        self._tape = tape
        self._log = log
        self._end = end
        self._line: Line | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._merging = Workers("merge", 1, loop)
        self._spread = spread
        self._svd = svd
        # A decomposition takes long, so the threads that encode broadcasts and decode values do none of them.
        self._flatten: Flatten = svd.flatten if svd is not None else partial(flatten_each, map=spectra)
        self._pool = pool
        self._writing = Workers("checkpoint", 1, loop)
        self._counters = counters
        self._watch = watch
        self._actions: Mapping[type, Callable[[Any], bool | None]] = {
            Accept: lambda e: server.accept(e.conn, e.link, e.session, e.num_streams),
            Attach: lambda e: server.attach(e.conn, e.link, e.stream_idx),
            Refuse: lambda e: server.refuse(e.conn, e.error),
            Send: lambda e: server.send(e.link, e.message),
            Deliver: lambda e: server.deliver(e.links, e.fragments, e.final, e.token),
            CloseLink: lambda e: server.close_link(e.link, e.error),
            CloseConn: lambda e: server.close_connection(e.conn),
            Fold: lambda e: self._fold(e.job),
            Merge: lambda e: self._merge(e.job),
            Drain: lambda e: self._drain(),
            Save: self._save,
            WriteMarker: lambda e: self._write("the final marker", lambda: storage.write_marker(e.step)),
            RemoveMarker: lambda e: self._remove_marker(),
            WriteFinalState: lambda e: self._write(
                "the final state", lambda: storage.write_final_state(e.fragments)
            ),
            AppendTape: self._append,
            Count: self._count,
            Log: lambda e: log.write(e.level, e.message, e.fields),
            SetTimer: self._set_timer,
            Exit: end,
        }

    def connect(self, line: Line) -> None:
        """Say where events go; before the first effect."""
        self._line = line

    def __call__(self, effect: Effect) -> bool:
        return bool(self._actions[type(effect)](effect))

    def _post(self, event: Event) -> None:
        assert self._line is not None
        self._line.post(event)

    def _resume(self, event: Event | None, failed: bool = False) -> None:
        assert self._line is not None
        self._line.resume(event, failed)

    def _fold(self, job: FoldJob) -> None:
        # One thread takes them in their order, and a fragment's folds are all inline or none is.
        def folded(future: Future[None]) -> None:
            error = future.exception()
            if error is None:
                self._post(Folded(job.step, job.attempt))
            else:
                self._post(MergeFailed(job.step, job.attempt, f"{type(error).__name__}: {error}"))

        if job.momentum.size <= INLINE_MERGE:
            folded(settled(lambda: run_fold(job)))
        else:
            self._merging.submit(lambda: run_fold(job, self._spread, self._pool.empty), folded)

    def _merge(self, job: MergeJob) -> None:
        def merged(future: Future[MergeResult | None]) -> None:
            error = future.exception()
            if error is None:
                self._post(Merged(job.step, job.attempt, future.result()))
            elif isinstance(error, SvdPoolError):
                self._post(MergeFailed(job.step, job.attempt, str(error)))
            else:
                self._post(MergeFailed(job.step, job.attempt, f"{type(error).__name__}: {error}"))

        flatten = self._flatten if job.tensors.mode == MergeMode.ISO else None
        if flatten is None and job.params.size * max(len(job.answers), 1) <= INLINE_MERGE:
            merged(settled(lambda: run_merge(job)))
        else:
            self._merging.submit(lambda: run_merge(job, self._spread, flatten, self._pool.empty), merged)

    def _drain(self) -> bool:
        if self._svd is None:
            return False

        def drained(future: Future[None]) -> None:
            error = future.exception()
            if error is None:
                self._resume(None)
            elif isinstance(error, SvdPoolError):
                self._resume(DrainFailed(str(error)), failed=True)
            else:
                raise error

        self._writing.submit(self._svd.drain, drained)
        return True

    def _save(self, effect: Save) -> bool:
        kind, step, background = effect.kind, effect.snapshot.global_step, effect.background
        begun = self._loop.time()

        def saved(future: Future[None]) -> None:
            error = future.exception()
            if error is None:
                event: Event = Saved(kind, step)
                if self._watch is not None:
                    self._watch.saved(kind, step, self._loop.time() - begun)
            elif isinstance(error, OSError | MemoryError):
                event = SaveFailed(kind, step, reason(error))
            else:
                raise error
            if background:
                self._post(event)
            else:
                self._resume(event, failed=error is not None)

        # The state never changes an array but replaces it, so this list is a copy-on-write cut. The writer
        # empties it, and nothing else here keeps what a commit has replaced.
        cut = replace(effect.snapshot, fragments=list(effect.snapshot.fragments))
        self._writing.submit(lambda: self._storage.save(cut, consume=True), saved)
        return not background

    def _write(self, what: str, work: Callable[[], None]) -> bool:
        def written(future: Future[None]) -> None:
            error = future.exception()
            if error is None:
                self._resume(None)
            elif isinstance(error, OSError):
                self._resume(FileFailed(what, reason(error)), failed=True)
            else:
                raise error

        self._writing.submit(work, written)
        return True

    def _remove_marker(self) -> None:
        try:
            self._storage.remove_marker()
        except OSError as error:
            self._post(FileFailed("the final marker", reason(error)))

    def _append(self, effect: AppendTape) -> None:
        if self._watch is not None:
            self._watch.record(effect.record)
        if self._tape is None:
            return
        try:
            self._tape.append(effect.record)
        except OSError as error:
            self._tape = None  # one failure is enough to end the run
            self._post(FileFailed("the event tape", reason(error)))

    def _count(self, effect: Count) -> None:
        self._counters.add(effect.name, effect.labels)

    def _set_timer(self, effect: SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if effect.at is not None:
            self._timer = self._loop.call_at(effect.at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._post(Tick())

    def close(self, timeout: float) -> bool:
        """End the threads; False when one of them is still at work."""
        ended = [workers.close(timeout) for workers in (self._merging, self._writing)]
        if self._tape is not None:
            self._tape.close()
        return all(ended)


def reason(error: BaseException) -> str:
    """An error of the operating system in the words of its users."""
    if isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{place}"
    return str(error) or type(error).__name__
