"""The terminal exchange: the frozen learners get the exact f32 cut, acknowledge it, and are let go.

An ACK counts only from a generation that the whole cut was queued to, and once accepted it is never erased.
"""

from __future__ import annotations

from collections.abc import Iterable

from yeto_proto._generated import rules
from yeto_proto._generated.constants import FINALIZATION_REVISION
from yeto_proto._generated.machines import FINALIZATION, FinalizationInput, FinalizationState
from yeto_proto._generated.messages import FinalAck, FinalManifest, Shutdown
from yeto_proto._generated.types import FrameType
from yeto_proto.machine import advance
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Deliver, Send
from yeto_syncer.core.failure import RunError
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.model import Model, versions
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.registry import Group, Registry
from yeto_syncer.core.tokens import Tokens


class Finalization:
    """One terminal exchange, from the first cut that is sent.

    `global_step` and `eligible` are what the rules of FINAL_ACK look at.
    """

    def __init__(
        self, config: Config, registry: Registry, model: Model, tokens: Tokens, outbox: Outbox, now: float
    ) -> None:
        self._config = config
        self._registry = registry
        self._outbox = outbox
        self._tokens = tokens
        self._cut = model.cut()
        self.global_step = model.global_step
        self._manifest = FinalManifest(
            revision=FINALIZATION_REVISION,
            final_global_step=model.global_step,
            expected_versions=versions(self._cut),
        )
        self.eligible: set[Link] = set()
        self._acked: dict[int, Link] = {}
        self._outstanding: dict[Link, set[int]] = {}
        self._expected = self._freeze()
        if not self._expected:
            raise RunError(
                "no learner is connected to take the final cut; finalization; "
                "start the learners and this command again with --resume"
            )
        self.state = FINALIZATION.initial
        # Sending may take longer than the learners may take to answer, so each fragment that has left moves
        # the deadline until the first round of cuts is out. From then on nothing moves it.
        self.deadline = now + config.final_ack_s
        self._deliver(list(registry.current_links()))
        self._first_round = set(self._outstanding)
        self._after_delivery()

    @property
    def expected(self) -> frozenset[int]:
        """The learner ids whose ACK the run waits for."""
        return self._expected

    @property
    def missing(self) -> list[int]:
        """The learner ids without an accepted ACK."""
        return sorted(learner for learner in self._expected if learner not in self._acked)

    def entered(self, group: Group) -> None:
        """A new generation during the exchange: the cut again for a learner that still owes its ACK."""
        learner = group.link.learner_id
        owes = learner in self._expected and learner not in self._acked
        if owes or self._registry.is_observer(learner):
            self._deliver([group.link])
        else:
            self._outbox.log("warning", "joined after the final cut was frozen", learner=learner)

    def delivered(self, now: float, link: Link, token: int) -> None:
        """One fragment of the cut has left. After the last one the manifest follows and ACKs of `link`
        count."""
        tokens = self._outstanding.get(link)
        if tokens is None or token not in tokens:
            return
        tokens.discard(token)
        if link in self._first_round:
            self.deadline = now + self._config.final_ack_s
        if not tokens:
            del self._outstanding[link]
            self._first_round.discard(link)
            self.eligible.add(link)
            self._outbox.emit(Send(link, self._manifest))
            self._after_delivery()

    def needs(self, link: Link) -> bool:
        """True for the generation whose ACK was accepted, and until then for the newest one that may give
        it: the next ones are still being sent their cut."""
        learner = link.learner_id
        if learner in self._acked:
            return self._acked[learner] == link
        newest = [each for each in self._registry.superseded(learner) if each in self.eligible]
        return newest[-1:] == [link]

    def gone(self, link: Link) -> None:
        """A generation ended. Its accepted ACK stays; without one its learner may come back."""
        self._outstanding.pop(link, None)
        self._first_round.discard(link)
        self._after_delivery()

    def ack(self, link: Link, message: FinalAck) -> None:
        """An ACK of the right revision. Dropped unless it names this cut and comes from an eligible
        generation."""
        error = rules.first_broken(FrameType.FINAL_ACK, "round", message, link=link, cut=self)
        if error is not None:
            self._outbox.reject(error, link, step=message.final_global_step)
            return
        if link.learner_id in self._acked:
            return
        self._acked[link.learner_id] = link
        self._outbox.log("info", "learner finalized", learner=link.learner_id, generation=link.generation)
        if self.state is FinalizationState.CLOSING:
            self._shutdown([link])
        elif not self.missing:
            self._take(FinalizationInput.LAST_ACK)
            self._outbox.log("info", "all learners acknowledged final cut", learners=len(self._expected))
            self._shutdown(self._acked.values())

    def advance(self, now: float) -> None:
        """Look at the time. Raises RunError when the ACKs did not come in time."""
        if self.state is FinalizationState.CLOSING:
            if not any(self._registry.is_observer(link.learner_id) for link in self._outstanding):
                self._take(FinalizationInput.FLUSHED)
            elif now >= self.deadline:
                self._take(FinalizationInput.TIMED_OUT)
        elif now >= self.deadline:
            self._take(FinalizationInput.TIMED_OUT)
            ids = ", ".join(str(learner) for learner in self.missing)
            raise RunError(
                f"no final acknowledgement from learner {ids} within {self._config.final_ack_s:g} s; "
                f"finalization at step {self.global_step}; "
                "the checkpoint is whole: start the learners and this command again with --resume"
            )

    def _freeze(self) -> frozenset[int]:
        if self._config.fixed_roster:
            return frozenset(range(self._config.learners))
        return frozenset(
            group.link.learner_id
            for group in self._registry.current_groups()
            if not self._registry.is_observer(group.link.learner_id)
        )

    def _deliver(self, links: list[Link]) -> None:
        if not links:
            return
        for link in links:
            self._outstanding[link] = set()
        for fragment in self._cut:
            token = self._tokens.next()
            for link in links:
                self._outstanding[link].add(token)
            self._outbox.emit(Deliver(tuple(links), (fragment,), final=True, token=token))

    def _after_delivery(self) -> None:
        if self.state is FinalizationState.DELIVERING and not self._first_round:
            self._take(FinalizationInput.CUTS_LEFT)

    def _take(self, happened: FinalizationInput) -> None:
        self.state = advance(FINALIZATION, self.state, happened)

    def _shutdown(self, links: Iterable[Link]) -> None:
        for link in links:
            if self._registry.is_live(link):
                self._outbox.emit(Send(link, Shutdown()))
