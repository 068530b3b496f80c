"""The graceful stop: what the first and the second signal mean in each phase (D22)."""

from __future__ import annotations

from yeto_syncer.core.config import Config


class StopRequest:
    """Signals so far. The first one starts the clock of `--shutdown-timeout-s`."""

    __slots__ = ("_patience", "deadline", "signals")

    def __init__(self, config: Config) -> None:
        self._patience = config.shutdown_timeout_s
        self.signals = 0
        self.deadline: float | None = None

    @property
    def requested(self) -> bool:
        return self.signals > 0

    def signal(self, now: float) -> bool:
        """Take a signal; True when it is the second one, which ends the process without a checkpoint."""
        self.signals += 1
        if self.deadline is None:
            self.deadline = now + self._patience
        return self.signals > 1

    def overdue(self, now: float) -> bool:
        """True when the gathering rounds had their time."""
        return self.deadline is not None and now >= self.deadline
