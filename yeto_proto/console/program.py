"""How a command runs and ends, whatever it does: streams, signals, a reader that has gone, a full disk."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from .early import open_streams
from .output import OutputError, flush, full, give_up
from .signals import Interrupted, SignalGuard

__all__ = ["run"]


def run(program: Callable[[SignalGuard], int], *, unread: Callable[[], int] = lambda: 0) -> int:
    """Run a command and return its exit code.

    SIGINT and SIGTERM reach `program` as `Interrupted`, which ends it with 130 or 143. Output that is full is
    exit 1. `unread` gives the exit code when whoever read the output has gone (`| head`).
    """
    open_streams()
    try:
        try:
            with SignalGuard() as guard:
                return program(guard)
        finally:
            flush()
    except Interrupted as interrupted:
        with contextlib.suppress(OSError):
            print(f"interrupted by {interrupted}", file=sys.stderr, flush=True)
        return interrupted.exit_code
    except BrokenPipeError:
        give_up()
        return unread()
    except OutputError as error:
        return full(error)
