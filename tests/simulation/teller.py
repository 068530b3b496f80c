"""What a syncer process does, in the words of a story."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.audit import Handlers, Part
from yeto_proto._generated.messages import PullReq, PushFragment
from yeto_syncer.core.effects import AppendTape, Count, Save, Send
from yeto_syncer.core.events import Event, Received, Saved
from yeto_syncer.tape_words import tell


class Teller(Part):
    """Tells of pulls, of what became of pushes, of checkpoints, and whatever is on the tape."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._outcomes: list[str] = []

    def events(self) -> Handlers:
        return {Saved: lambda event: self._note(f"    syncer: step {event.step} is durable")}

    def decided(self) -> Handlers:
        return {
            AppendTape: lambda effect: self._note(f"    syncer: {tell(effect.record)}"),
            Save: lambda effect: self._note(f"    syncer: saves step {effect.snapshot.global_step}"),
            Send: self._on_send,
            Count: self._on_count,
        }

    def _on_send(self, effect: Send) -> None:
        message = effect.message
        if isinstance(message, PullReq):
            self._note(
                f"    syncer: pulls {effect.link.learner_id} for step {message.global_step} attempt "
                f"{message.round_attempt}"
            )

    def _on_count(self, effect: Count) -> None:
        if effect.name.startswith("answers"):
            self._outcomes.append(effect.name.replace("_", " "))

    def settle(self, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, PushFragment):
            for outcome in self._outcomes:
                self._note(
                    f"    syncer: learner {event.link.learner_id}, {event.message.global_step}: {outcome}"
                )
        self._outcomes.clear()
