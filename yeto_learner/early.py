"""What a process needs before the command is loaded: its standard streams, and quiet signals.

An exception out of a signal handler would surface in the middle of an import, where it is a traceback, or an
ImportError of a half-loaded library. So the process just ends: it holds nothing yet.
"""

from __future__ import annotations

import os
import signal
import sys


def open_streams() -> None:
    """Give each standard stream that is closed a place that takes everything.

    Otherwise it is None for Python, and the next socket gets its number.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            place = os.open(os.devnull, os.O_RDWR)  # the lowest free number: that of the stream
            setattr(sys, name, os.fdopen(place, "r" if name == "stdin" else "w", closefd=False))


def leave_at_once() -> None:
    """From now on the two signals end the process with exit 130 or 143 and one line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(number: int, frame: object) -> None:
    os.write(2, f"interrupted by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)
