"""When the first round may be launched: as soon as enough learners hold the initial cut (D17)."""

from __future__ import annotations

from collections.abc import Iterable

from yeto_syncer.core.config import Config
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.registry import Registry

NAMED = 10  # missing learners that a log line names


class FirstLaunch:
    """Who was sent the initial cut, and to whom it has left.

    A learner that is lost on the way is waited for as long as an attempt waits for its quorum (D16); then
    those that are there begin. As long as nobody is missing, a cut may take its time.
    """

    def __init__(self, config: Config, registry: Registry, outbox: Outbox) -> None:
        self._config = config
        self._registry = registry
        self._outbox = outbox
        self._sent: set[int] = set()
        self._holders: set[int] = set()
        self._patience_over: float | None = None

    def sent(self, learners: Iterable[int]) -> None:
        """The cut is on its way to these learners."""
        self._sent.update(each for each in learners if not self._registry.is_observer(each))

    def holds(self, learner_id: int) -> None:
        """The whole cut has left to a learner that can be captured."""
        self._holders.add(learner_id)

    def may(self, now: float) -> bool:
        """Whether the first round may be launched now, if somebody can be captured."""
        if len(self._holders) >= self._config.first_cut:
            return True
        return self._patience_over is not None and now >= self._patience_over and not self._on_the_way()

    def advance(self, now: float) -> None:
        """Notice who was lost, and who is back."""
        needed = self._config.first_cut
        if len(self._holders) >= needed or len(self._sent) < needed:
            self._patience_over = None
            return
        on_the_way = self._on_the_way()
        if len(self._holders) + len(on_the_way) >= needed:
            self._patience_over = None
        elif self._patience_over is None:
            self._patience_over = now + self._config.quorum_timeout_s
            lost = sorted(self._sent - self._holders - on_the_way)
            self._outbox.log(
                "warning",
                "the first round waits for learners that were lost before they had the initial cut",
                learners=",".join(map(str, lost[:NAMED])) + (",..." if len(lost) > NAMED else ""),
                at_most_s=self._config.quorum_timeout_s,
            )

    def next_deadline(self) -> float | None:
        """When the wait for lost learners is over."""
        return self._patience_over

    def _on_the_way(self) -> set[int]:
        current = self._registry.current
        return {each for each in self._sent - self._holders if current(each) is not None}
