"""The terminal exchange of one process: who must acknowledge, whose ACK counts, who is let go and when."""

from __future__ import annotations

from tests.simulation.audit import Context, Handlers, Part, require
from yeto_proto._generated.messages import FinalAck, FinalManifest, Shutdown
from yeto_syncer.core.effects import Deliver, Exit, Send
from yeto_syncer.core.events import Delivered, Event, Received
from yeto_syncer.core.jobs import Link


class Finals(Part):
    """An ACK counts from the generation that got the whole cut, it is never lost, and SHUTDOWN comes last."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._frozen: frozenset[int] | None = None
        self._outstanding: dict[Link, set[int]] = {}
        self._eligible: set[Link] = set()
        self._acked: dict[int, Link] = {}
        self._let_go: set[Link] = set()

    def events(self) -> Handlers:
        return {Delivered: self._on_delivered, Received: self._on_received}

    def decided(self) -> Handlers:
        return {Deliver: self._on_deliver, Send: self._on_send, Exit: self._on_exit}

    @property
    def _missing(self) -> list[int]:
        assert self._frozen is not None
        return sorted(self._frozen - self._acked.keys())

    def _on_deliver(self, effect: Deliver) -> None:
        if not effect.final:
            require(self._frozen is None, "an ordinary broadcast during the terminal exchange")
            return
        if self._frozen is None:
            self._freeze()
        assert effect.token is not None
        for link in effect.links:
            owes = link.learner_id in self._context.observers or link.learner_id not in self._acked
            require(owes, f"{link} gets the final cut, and the ACK of its learner was accepted")
            self._outstanding.setdefault(link, set()).add(effect.token)

    def _freeze(self) -> None:
        if self._config.fixed_roster:
            self._frozen = frozenset(range(self._config.learners))
        else:
            self._frozen = frozenset(self._context.current) - self._context.observers

    def _on_delivered(self, event: Delivered) -> None:
        tokens = self._outstanding.get(event.link)
        if tokens is not None:
            tokens.discard(event.token)

    def _on_received(self, event: Received) -> None:
        message, link = event.message, event.link
        if (
            isinstance(message, FinalAck)
            and link in self._eligible
            and link in self._context.live
            and message.final_global_step == self._config.total_steps
        ):
            self._acked.setdefault(link.learner_id, link)

    def _on_send(self, effect: Send) -> None:
        link = effect.link
        if isinstance(effect.message, FinalManifest):
            require(
                self._outstanding.get(link) == set(), f"{link} gets the manifest before the whole cut left"
            )
            self._eligible.add(link)
        elif isinstance(effect.message, Shutdown):
            require(not self._missing, f"SHUTDOWN while learners {self._missing} have not acknowledged")
            require(self._acked.get(link.learner_id) == link, f"SHUTDOWN to {link}, whose ACK does not count")
            require(link not in self._let_go, f"a second SHUTDOWN to {link}")
            self._let_go.add(link)

    def settle(self, event: Event) -> None:
        """Once the last ACK is in, all live generations that sent one are let go."""
        if self._frozen is not None and not self._missing:
            waiting = {link for link in self._acked.values() if link in self._context.live}
            require(
                waiting <= self._let_go or self._context.over,
                f"{sorted(waiting - self._let_go)} are not let go",
            )

    def _on_exit(self, effect: Exit) -> None:
        self._context.over = True
        if "training complete" in effect.message:
            require(self._frozen is not None and not self._missing, "complete without every ACK")
        elif "no final acknowledgement" in effect.message:
            if self._frozen is None:  # a fixed roster of which nobody was there to send the cut to
                self._freeze()
            named = effect.message.split("from learner ")[1].split(" within")[0]
            missing = ", ".join(map(str, self._missing))
            require(named == missing, f"learners {named} are said to be missing, and {missing} are")
