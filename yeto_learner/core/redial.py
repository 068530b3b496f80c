"""How long a client waits before each try to come back, and what it waits for at its start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

__all__ = ["FIRST_DIAL_TIMEOUT", "FIRST_DIAL_WAIT", "MAX_REDIAL_WAIT", "REDIAL_TIMEOUT", "redial_waits"]

FIRST_DIAL_TIMEOUT: Final = 30.0  # seconds for one dial while starting
FIRST_DIAL_WAIT: Final = 2.0  # seconds between failed dials while starting
REDIAL_TIMEOUT: Final = 20.0  # seconds for one dial after an outage
MAX_REDIAL_WAIT: Final = 30.0  # seconds


def redial_waits() -> Iterator[float]:
    """Seconds to wait before the first, second, ... try of one outage: 1, 2, 4, 8, 16, 30, 30, ..."""
    wait = 1.0
    while True:
        yield wait
        wait = min(wait * 2, MAX_REDIAL_WAIT)
