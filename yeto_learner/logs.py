"""Makes the learner's log lines visible in programs without logging, and leaves all others alone."""

from __future__ import annotations

import logging
import sys

__all__ = ["show_log_lines"]


class _StderrHandler(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment, which a live display may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


def show_log_lines() -> None:
    """Give the package's logger a stderr handler at INFO, unless its lines are printed somewhere already.

    A root logger without handlers, or with handlers that let only errors through, hides INFO and WARNING
    lines; a learner that waits for a syncer would then look like one that hangs.
    """
    logger = logging.getLogger(__package__)
    if _prints_info(logger):
        return
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
    handler.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _prints_info(logger: logging.Logger) -> bool:
    if not logger.isEnabledFor(logging.INFO):
        return False
    current: logging.Logger | None = logger
    while current is not None:
        for handler in current.handlers:
            if handler.level <= logging.INFO and not isinstance(handler, logging.NullHandler):
                return True
        current = current.parent if current.propagate else None
    return False
