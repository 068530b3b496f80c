"""How long a lost learner was away, in the phases in which it comes back, as the event tape tells it.

Only losses during training count, and only of the current generation. A learner that is lost again before it
has answered is still the same outage.
"""

from __future__ import annotations

from dataclasses import dataclass

from yeto_syncer.core.jobs import Link
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.registry import Group
from yeto_syncer.core.tape import member_record, milliseconds


@dataclass(slots=True)
class _Outage:
    """From the loss of `lost` on; the later fields belong to the generation that is back, if one is."""

    lost: Link
    reason: str
    heard_at: float
    lost_at: float
    connections: int = 0
    back: Link | None = None
    joined_at: float = 0.0
    ready_at: float | None = None


class Recoveries:
    """The outages that are not over yet, one at most for each learner."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._open: dict[int, _Outage] = {}

    def lost(self, now: float, group: Group, reason: str) -> None:
        """The current generation of a learner is gone, or was superseded."""
        known = self._open.get(group.link.learner_id)
        if known is None:
            self._open[group.link.learner_id] = _Outage(group.link, reason, group.heard_at, now)
        elif known.back == group.link:
            known.back = None

    def joined(self, now: float, link: Link) -> None:
        """A generation was admitted."""
        outage = self._open.get(link.learner_id)
        if outage is not None:
            outage.connections += 1
            outage.back, outage.joined_at, outage.ready_at = link, now, None

    def ready(self, now: float, link: Link) -> None:
        """The catch-up of this generation has left."""
        outage = self._open.get(link.learner_id)
        if outage is not None and outage.back == link:
            outage.ready_at = now

    def answered(self, now: float, link: Link, step: int) -> None:
        """An answer of this generation was accepted: its learner is back if it was away."""
        outage = self._open.get(link.learner_id)
        if outage is None or outage.back != link:
            return
        del self._open[link.learner_id]
        # A fixed roster takes an answer from whoever sends it, also before its catch-up has left.
        ready_at = now if outage.ready_at is None else outage.ready_at
        self._outbox.tape(
            member_record(
                "recovery",
                link,
                lost_generation=outage.lost.generation,
                reason=outage.reason,
                connections=outage.connections,
                step=step,
                detect_ms=milliseconds(outage.lost_at - outage.heard_at),
                connect_ms=milliseconds(outage.joined_at - outage.lost_at),
                catch_up_ms=milliseconds(ready_at - outage.joined_at),
                answer_ms=milliseconds(now - ready_at),
            )
        )
