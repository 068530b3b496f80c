"""When the next round may be launched: H inner steps of the slowest member, spread over the fragments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from yeto_syncer.core.config import Config
from yeto_syncer.core.registry import Group, Registry
from yeto_syncer.core.steprate import round_interval, slowest


class Pace:
    """The time from one launch to the next.

    It is set at the launch and only ever gets shorter: when a member that was slow for a moment, because of a
    pause, is measured anew or is gone, the others do not have to wait for what it was.
    """

    __slots__ = ("_config", "_due", "_launched_at", "_members", "_num_fragments", "_pacer", "_registry")

    def __init__(self, config: Config, registry: Registry, num_fragments: int) -> None:
        self._config = config
        self._registry = registry
        self._num_fragments = num_fragments
        self._members: tuple[Group, ...] = ()
        self._launched_at = -math.inf
        self._due = -math.inf
        # The slowest member and its step time, as long as nothing of it has changed.
        self._pacer: tuple[Group, float] | None = None

    def launched(self, now: float, members: Sequence[Group]) -> None:
        """A round was launched with these members."""
        self._members = tuple(members)
        self._launched_at = now
        self._due = math.inf
        self._measure()

    def due(self) -> float:
        """The earliest time of the next launch."""
        if self._pacer is not None:
            group, step = self._pacer
            if group.rate.seconds != step or not self._registry.is_current(group):
                self._measure()
        return self._due

    def _measure(self) -> None:
        known = [each for each in self._members if self._registry.is_current(each)]
        step = slowest(each.rate.seconds for each in known)
        self._pacer = None
        if step is not None:
            self._pacer = next((each, step) for each in known if each.rate.seconds == step)
        interval = round_interval(
            minimum=self._config.min_round_interval_s,
            sync_interval_steps=self._config.sync_interval_steps,
            step=step,
            num_fragments=self._num_fragments,
        )
        self._due = min(self._due, self._launched_at + interval)
