"""What a process needs before its program is loaded: standard streams, and quiet signals.

An exception out of a signal handler would surface in the middle of an import, where it is a traceback, or an
ImportError of a half-loaded library. So the process just ends: it holds nothing yet.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from importlib import import_module

__all__ = ["leave_at_once", "open_streams", "start"]


def open_streams() -> None:
    """Give each standard stream that is closed a place that takes everything, and let output hold any text.

    A closed one is None for Python, and the next socket gets its number. Names of tensors and files may have
    letters that the locale does not know; those are written as escapes.
    """
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            place = os.open(os.devnull, os.O_RDWR)  # the lowest free number: that of the stream
            setattr(sys, name, os.fdopen(place, "r" if name == "stdin" else "w", closefd=False))
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def start(module: str, *, quietly: bool = False) -> int:
    """Load a program, which has a `main`, when a signal can no longer show up as a traceback; its exit
    code.
    """
    open_streams()
    leave_at_once(quietly=quietly)
    code: int = import_module(module).main()
    return code


def leave_at_once(*, quietly: bool = False) -> None:
    """From now on SIGINT and SIGTERM end the process: with exit 130 or 143 and one line, or `quietly` with
    exit 0.
    """

    def leave(number: int, frame: object) -> None:
        if quietly:
            os._exit(0)
        os.write(2, f"interrupted by {signal.Signals(number).name}\n".encode())
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
