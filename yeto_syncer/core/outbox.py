"""Where the parts of the coordinator put their effects: one list, in the order in which they must happen."""

from __future__ import annotations

from collections.abc import Mapping

from yeto_proto._generated.errors import OutOfRound
from yeto_proto.errors_base import YetoError
from yeto_syncer.core.effects import AppendTape, Count, Effect, Level, Log
from yeto_syncer.core.jobs import Link


class Outbox:
    """The effects of the step at hand, and the few shapes of effect that every part uses."""

    __slots__ = ("effects", "taping")

    def __init__(self, taping: bool) -> None:
        self.effects: list[Effect] = []
        self.taping = taping

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def take(self) -> list[Effect]:
        """The effects so far; the outbox starts anew."""
        effects, self.effects = self.effects, []
        return effects

    def log(self, level: Level, message: str, **fields: object) -> None:
        self.effects.append(Log(level, message, fields))

    def count(self, name: str, **labels: str) -> None:
        self.effects.append(Count(name, labels))

    def tape(self, record: Mapping[str, object]) -> None:
        """Append a record, if there is an event tape."""
        if self.taping:
            self.effects.append(AppendTape(record))

    def reject(self, error: YetoError, link: Link, **fields: object) -> None:
        """A message was dropped without an answer: count it, log it, put it on the tape (D10)."""
        reason = type(error).__name__
        self.count("rejected", reason=reason)
        # With a quorum below the number of learners every round has answers that come too late: no news.
        level: Level = "debug" if isinstance(error, OutOfRound) else "warning"
        self.log(level, f"dropped: {error}", learner=link.learner_id, generation=link.generation, **fields)
        self.tape(
            {
                "event": "rejected",
                "reason": reason,
                "id": link.learner_id,
                "generation": link.generation,
                **fields,
            }
        )
