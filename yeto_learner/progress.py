"""A progress bar for what takes more than a second: only on a terminal, only on standard error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

from yeto_proto.byte_bar import byte_bar

__all__ = ["byte_progress"]

DELAY: Final = 1.0  # seconds before the bar appears
REFRESH: Final = 0.2  # seconds


@contextmanager
def byte_progress(
    show: bool, title: str, total: int, done: Callable[[], int], console: Console | None = None
) -> Iterator[None]:
    """Draw how many of `total` bytes `done()` says are there, until the block ends.

    Without a terminal, or with `show` false, nothing happens at all.  `done` is called on another thread, a
    few times a second.
    """
    console = console or Console(stderr=True)
    if not show or not console.is_terminal:
        yield
        return
    over = threading.Event()
    drawer = threading.Thread(
        target=_draw, args=(console, title, total, done, over), name="yeto-progress", daemon=True
    )
    drawer.start()
    try:
        yield
    finally:
        over.set()
        drawer.join()


def _draw(console: Console, title: str, total: int, done: Callable[[], int], over: threading.Event) -> None:
    if over.wait(DELAY):
        return
    with byte_bar(console, auto_refresh=False) as progress:
        task = progress.add_task(title, total=total)
        while not over.wait(REFRESH):
            # Framing costs a little more than the tensors: the count may pass the total.
            progress.update(task, completed=min(done(), total), refresh=True)
