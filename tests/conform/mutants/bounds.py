"""Mutants of the syncer that wait for ever where something has to happen at last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.conform.mutants.patches import wrap
from tests.conform.mutants.syncer import run
from yeto_syncer.core.admission import Admission
from yeto_syncer.core.budget import Cutoff
from yeto_syncer.core.closing import Closing
from yeto_syncer.core.finalize import Finalization
from yeto_syncer.core.leases import Leases
from yeto_syncer.core.stop import StopRequest

__all__ = ["MUTANTS", "run"]

NEVER: Final = 1e6  # seconds; a timer of the event loop takes no infinity


def _handshake() -> None:
    wrap(Admission, "opened", lambda old: lambda self, now, conn: old(self, now + NEVER, conn))


def _lease() -> None:
    wrap(Leases, "heard", lambda old: lambda self, link, now: None)


def _captured(change: Callable[[Any, float], None]) -> Callable[[], None]:
    """`change(round, now)` moves a deadline of an attempt that begins."""

    def apply() -> None:
        def make(old: Any) -> Any:
            def capture(self: Any, round_: Any, members: Any, now: float) -> None:
                old(self, round_, members, now)
                change(round_, now)

            return capture

        wrap(Closing, "capture", make)

    return apply


def _acks() -> None:
    def make(old: Any) -> Any:
        def advance(self: Any, now: float) -> None:
            self.deadline = now + NEVER
            old(self, now)

        return advance

    wrap(Finalization, "advance", make)


def _stop() -> None:
    def make(old: Any) -> Any:
        def signal(self: Any, now: float) -> bool:
            return bool(old(self, now + NEVER))

        return signal

    wrap(StopRequest, "signal", make)


def _budget() -> None:
    def make(old: Any) -> Any:
        def check(self: Any, now: float, draining: bool) -> None:
            self._leases = dict.fromkeys(self._leases, now + NEVER)
            old(self, now, draining)

        return check

    wrap(Cutoff, "check", make)


MUTANTS: Mapping[str, Callable[[], None]] = {
    "handshake-for-ever": _handshake,
    "lease-for-ever": _lease,
    "attempt-for-ever": _captured(lambda round_, now: setattr(round_, "deadline", now + NEVER)),
    "soft-deadline-never": _captured(lambda round_, now: setattr(round_, "soft_deadline", None)),
    "acks-for-ever": _acks,
    "acks-forgotten": lambda: wrap(Finalization, "ack", lambda old: lambda self, link, message: None),
    "stop-for-ever": _stop,
    "budget-for-ever": _budget,
}
