"""SIGINT and SIGTERM before the command is there.

An exception out of a signal handler would surface in the middle of an import, where it is a traceback, or an
ImportError of a half-loaded library. So the process just ends: it holds nothing yet.
"""

from __future__ import annotations

import os
import signal


def leave_at_once() -> None:
    """From now on the two signals end the process with exit 130 or 143 and one line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(number: int, frame: object) -> None:
    os.write(2, f"interrupted by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)
