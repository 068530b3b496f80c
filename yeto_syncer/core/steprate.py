"""How long one inner step of a learner takes, and what the coordinator derives from it: grace and
throttle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from yeto_proto._generated.constants import GRACE_EMA


class StepRate:
    """Seconds per inner step of one connection generation, as an exponential moving average.

    Blank after a reconnect: another process may run at another speed.
    """

    __slots__ = ("_last_step", "_last_time", "seconds")

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._last_time = 0.0
        self._last_step: int | None = None

    def report(self, now: float, step: int) -> None:
        """Take the local step of an accepted push or of a heartbeat.

        A repeat or an older step changes nothing at all (D18): if it moved the reference point, the next
        sample would be too short.
        """
        last = self._last_step
        if last is not None:
            if step <= last:
                return
            sample = (now - self._last_time) / (step - last)
            old = self.seconds
            self.seconds = sample if old is None else GRACE_EMA * sample + (1.0 - GRACE_EMA) * old
        self._last_time = now
        self._last_step = step


def slowest(rates: Iterable[float | None]) -> float | None:
    """xi_step: the slowest known member, or None when no member has an estimate."""
    return max((rate for rate in rates if rate is not None), default=None)


def grace_window(
    *, cap: float, gamma: float, tau: float, step: float | None, quorum: float, sync: float
) -> float:
    """Seconds that a round stays open after its quorum.

    `step` is xi_step, `quorum` the time since the attempt was launched, `sync` the previous commit's time.
    The full cap without a step estimate.
    """
    if step is None:
        return cap
    return min(cap, max(0.0, gamma * (tau * step - quorum - sync)))


def round_interval(
    *, minimum: float, sync_interval_steps: float, step: float | None, num_fragments: int
) -> float:
    """Seconds from one launch to the next: H inner steps of the slowest member spread over P fragments."""
    if step is None or sync_interval_steps <= 0:
        return minimum
    return max(minimum, sync_interval_steps * step / num_fragments)


def capacities(rates: Sequence[float | None]) -> list[float]:
    """The capacity of each member in inner steps a second: 1 / its step time (D36).

    A member without an estimate gets the mean of the known ones; without any estimate all are equal. A step
    time of 0, which a coarse clock can give, is no estimate.
    """
    known = [1.0 / rate for rate in rates if rate]
    usual = math.fsum(known) / len(known) if known else 1.0
    return [1.0 / rate if rate else usual for rate in rates]
