"""How a command runs and ends, whatever it does: streams, signals, a reader that has gone, a full disk."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from .early import open_streams
from .output import OutputError, flush, full, give_up
from .parser import Parser
from .signals import Interrupted, SignalGuard

__all__ = ["dispatch", "run"]


def dispatch(
    parser: Callable[[], Parser],
    arguments: Sequence[str] | None,
    module: str,
    *,
    unread: Callable[[str], int] = lambda command: 0,
) -> int:
    """Run a command that has subcommands and return its exit code.

    `module` is loaded when the arguments are understood; its `run(options)` does the rest. `unread` gives the
    exit code of a subcommand whose output nobody read.
    """
    command = ""

    def chosen(guard: SignalGuard) -> int:
        nonlocal command
        options = parser().parse_args(arguments)
        command = options.command
        with guard.held():  # an exception in the middle of an import comes out as something else
            loaded = import_module(module)
        code: int = loaded.run(options)
        return code

    return run(chosen, unread=lambda: unread(command))


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
