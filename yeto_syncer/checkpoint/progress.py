"""A progress bar on standard error, for whoever waits at a terminal longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from yeto_proto.files import Progress

if TYPE_CHECKING:
    import rich.progress

PATIENCE_S = 1.0


@contextmanager
def bar(what: str) -> Iterator[Progress | None]:
    """What readers and writers call with (bytes done, bytes in all); None when nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    showing: list[rich.progress.Progress] = []
    started = time.monotonic()

    def told(done: int, size: int) -> None:
        if not showing and time.monotonic() - started >= PATIENCE_S:
            showing.append(_made())
            showing[0].start()
            showing[0].add_task(what, total=size)
        if showing:
            showing[0].update(showing[0].task_ids[0], completed=done)

    try:
        yield told
    finally:
        if showing:
            showing[0].stop()


def _made() -> rich.progress.Progress:
    from rich.console import Console

    from yeto_proto.byte_bar import byte_bar

    return byte_bar(Console(stderr=True))
