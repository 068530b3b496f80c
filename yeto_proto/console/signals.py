"""SIGINT and SIGTERM as an exception that can be held back while something must not be cut in two."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread by SIGINT or SIGTERM."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 for SIGINT, 143 for SIGTERM, as a shell shows it."""
        return 128 + self.signum


class SignalGuard:
    """Context manager for the main thread: turns the two signals into `Interrupted` and restores the
    handlers.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._held = 0
        self._pending: int | None = None

    def __enter__(self) -> SignalGuard:
        for signum in self.SIGNALS:
            self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @property
    def pending(self) -> bool:
        """True when a signal came while they were held back: whoever holds them should hurry."""
        return self._pending is not None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds signals back. One that came meanwhile is raised at the end of the block."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if not self._held and self._pending is not None:
            signum, self._pending = self._pending, None
            raise Interrupted(signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending = signum
        else:
            raise Interrupted(signum)
