"""A fixed set of daemon threads that run pure functions and hand their results back to the event loop.

The standard `ThreadPoolExecutor` joins its threads when the interpreter ends, so one long merge would hold up
an exit that a second signal has asked for. These threads are daemons, and the process never waits for them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def settled(work: Callable[[], T]) -> Future[T]:
    """Run `work` here and now; the future holds what it returned or raised."""
    future: Future[T] = Future()
    _fulfil(future, work)
    return future


def _fulfil(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # raised again by future.result()
        future.set_exception(error)


class Loop(Protocol):
    """The one thing that a pool needs of an event loop."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object: ...


class Workers:
    """`count` daemon threads named after `name`. Work is taken in the order in which it came."""

    def __init__(self, name: str, count: int, loop: Loop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        """Run `work` on a thread, then `done(future)` on the event loop. `future.result()` gives the value or
        raises what the work raised."""

        def run() -> None:
            future = settled(work)
            try:
                self._loop.call_soon_threadsafe(done, future)
            except RuntimeError:
                return  # the loop is closed: the process is ending and nobody waits for this

        self._queue.put(run)

    def map(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """Like the builtin, with the calls spread over the threads; the caller must not be one of them."""
        futures: list[Future[R]] = []
        for item in items:
            future: Future[R] = Future()
            futures.append(future)
            self._queue.put(partial(_fulfil, future, partial(function, item)))
        return (future.result() for future in futures)

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            work()
            del work  # an idle thread must not keep the last result (a whole fragment) alive

    def close(self, timeout: float) -> bool:
        """Ask the threads to end; True when all of them did within `timeout` seconds each."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)
