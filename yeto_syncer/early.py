"""SIGINT and SIGTERM before the program is there.

An exception out of a signal handler would surface in the middle of an import, where it is a traceback, or an
ImportError of a half-loaded library. So the process just ends: it holds nothing yet.
"""

from __future__ import annotations

import os
import signal


def leave_at_once() -> None:
    """From now on the two signals end the process with exit 0 (D22: before training)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os._exit(0))
