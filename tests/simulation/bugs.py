"""Bugs that somebody could make: each patches the core for as long as its context lasts.

They are planted to see that the simulator finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from yeto_learner.core.boundary import Answer, Boundary
from yeto_learner.core.records import PullRequest
from yeto_proto._generated.machines import ANCHOR, AnchorInput
from yeto_proto.machine import advance
from yeto_syncer.core.carry import LateCarry
from yeto_syncer.core.checkpoints import Checkpoints
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Save, SaveKind
from yeto_syncer.core.finalize import Finalization
from yeto_syncer.core.intake import Intake
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.ledger import Ledger
from yeto_syncer.core.registry import Group, Registry
from yeto_syncer.core.rounds import Round, Slot, _Answered
from yeto_syncer.core.scheduler import Scheduler

Bug = Callable[[], AbstractContextManager[object]]


def _k_follows_departures() -> AbstractContextManager[object]:
    real = Scheduler.gone

    def gone(self: Scheduler, link: Link) -> None:
        real(self, link)
        for round_ in self._rounds.values():
            live = sum(self._registry.is_live(slot.link) for slot in round_.slots.values())
            round_.quorum = max(min(round_.quorum, live), 1)

    return patch.object(Scheduler, "gone", gone)


def _k_follows_joiners() -> AbstractContextManager[object]:
    real = Round.join

    def join(self: Round, link: Link) -> None:
        real(self, link)
        self.quorum += 1

    return patch.object(Round, "join", join)


def _a_duplicate_is_accepted() -> AbstractContextManager[object]:
    return patch.object(_Answered, "__contains__", lambda self, link: False)


def _a_stale_generation_is_accepted() -> AbstractContextManager[object]:
    def slot_of(self: Round, link: Link) -> Slot | None:
        return self.slots.get(link.learner_id)

    return patch.object(Round, "slot_of", slot_of)


def _a_disconnect_erases_an_answer() -> AbstractContextManager[object]:
    real = Scheduler.gone

    def gone(self: Scheduler, link: Link) -> None:
        for round_ in self._rounds.values():
            slot = round_.slots.get(link.learner_id)
            if round_.open and slot is not None and slot.answer is not None and slot.link == link:
                slot.answer, slot.responded = None, False
                round_.num_responders -= 1
        real(self, link)

    return patch.object(Scheduler, "gone", gone)


def _a_disconnect_erases_an_ack() -> AbstractContextManager[object]:
    real = Finalization.gone

    def gone(self: Finalization, link: Link) -> None:
        if self._acked.get(link.learner_id) == link:
            del self._acked[link.learner_id]
        real(self, link)

    return patch.object(Finalization, "gone", gone)


def _a_broadcast_comes_before_its_checkpoint() -> AbstractContextManager[object]:
    real = Checkpoints.save

    def save(self: Checkpoints, kind: SaveKind) -> None:
        if kind is SaveKind.PER_ROUND and self._background is None:
            self._background = kind
            self._outbox.emit(Save(self._take(), kind, background=True))
        else:
            real(self, kind)

    return patch.object(Checkpoints, "save", save)


def _the_ledger_counts_twice() -> AbstractContextManager[object]:
    real = Ledger.charge

    def charge(self: Ledger, learner_id: int, steps: int, tokens: int) -> None:
        real(self, learner_id, steps, tokens)
        if tokens % 5 == 3:
            real(self, learner_id, steps, tokens)

    return patch.object(Ledger, "charge", charge)


def _capture_does_not_wait_for_the_catch_up() -> AbstractContextManager[object]:
    def ready(self: Registry) -> tuple[Group, ...]:
        groups = [group for group in self.current_groups() if not self.is_observer(group.link.learner_id)]
        return tuple(sorted(groups, key=lambda group: group.link))

    return patch.object(Registry, "ready", ready)


def _an_anchor_is_not_spent() -> AbstractContextManager[object]:
    real = Boundary.handed_out

    def handed_out(self: Boundary, answer: Answer) -> None:
        real(self, answer)
        state = self.fragments[answer.pull.fragment_id]
        state.anchor = advance(ANCHOR, state.anchor, AnchorInput.RELEASED)

    return patch.object(Boundary, "handed_out", handed_out)


def _one_anchor_may_be_merged_twice() -> AbstractContextManager[object]:
    return patch.object(Intake, "_held", lambda self, push, link: False)


def _a_rebind_takes_a_live_slot() -> AbstractContextManager[object]:
    real = Scheduler._rebind

    def rebind(self: Scheduler, round_: Round, group: Group) -> None:
        with patch.object(Registry, "is_live", lambda registry, link: False):
            real(self, round_, group)

    return patch.object(Scheduler, "_rebind", rebind)


def _shutdown_comes_with_each_ack() -> AbstractContextManager[object]:
    real = Finalization.ack

    def ack(self: Finalization, link: Link, message: Any) -> None:
        before = set(self._acked)
        real(self, link, message)
        if link.learner_id in self._acked and link.learner_id not in before and self.missing:
            self._shutdown([link])

    return patch.object(Finalization, "ack", ack)


def _a_pull_that_overtakes_the_catch_up_is_answered() -> AbstractContextManager[object]:
    real = Boundary.answer

    def answer(self: Boundary, pull: PullRequest, catching_up: Collection[int] = ()) -> Answer | None:
        return real(self, pull)

    return patch.object(Boundary, "answer", answer)


def _pulls_of_a_lost_link_are_answered() -> AbstractContextManager[object]:
    return patch.object(Boundary, "keep_pulls_of", lambda self, generation: None)


def _a_carried_delta_keeps_its_weight() -> AbstractContextManager[object]:
    real = LateCarry.__init__

    def init(self: LateCarry, config: Config, num_fragments: int) -> None:
        real(self, config, num_fragments)
        self._decay = 1.0

    return patch.object(LateCarry, "__init__", init)


def _a_broken_data_socket_is_heard() -> AbstractContextManager[object]:
    real = Group.__init__

    class Forgetful(set[int]):
        def __contains__(self, conn: object) -> bool:
            return False

    def init(self: Group, link: Link, conn: int, num_streams: int) -> None:
        real(self, link, conn, num_streams)
        self.broken = Forgetful()

    return patch.object(Group, "__init__", init)


def _a_stale_base_keeps_its_slot() -> AbstractContextManager[object]:
    real = Intake.begin

    def begin(self: Intake, round_: Round) -> None:
        self._releases = False
        real(self, round_)

    return patch.object(Intake, "begin", begin)


BUGS: dict[str, tuple[Bug, int]] = {
    "K follows departures": (_k_follows_departures, 0),
    "K follows joiners": (_k_follows_joiners, 0),
    "a duplicate is accepted": (_a_duplicate_is_accepted, 0),
    "a stale generation is accepted": (_a_stale_generation_is_accepted, 40),
    "a disconnect erases an answer": (_a_disconnect_erases_an_answer, 0),
    "a disconnect erases an ACK": (_a_disconnect_erases_an_ack, 0),
    "a broadcast comes before its checkpoint": (_a_broadcast_comes_before_its_checkpoint, 0),
    "the ledger counts twice": (_the_ledger_counts_twice, 0),
    "capture does not wait for the catch-up": (_capture_does_not_wait_for_the_catch_up, 0),
    "an anchor is not spent": (_an_anchor_is_not_spent, 0),
    "one anchor may be merged twice": (_one_anchor_may_be_merged_twice, 50),
    "a rebind takes a live slot": (_a_rebind_takes_a_live_slot, 0),
    "SHUTDOWN comes with each ACK": (_shutdown_comes_with_each_ack, 0),
    "a pull that overtakes the catch-up is answered": (_a_pull_that_overtakes_the_catch_up_is_answered, 40),
    "a carried delta keeps its weight": (_a_carried_delta_keeps_its_weight, 40),
    "a broken data socket is heard": (_a_broken_data_socket_is_heard, 540),
    "pulls of a lost link are answered": (_pulls_of_a_lost_link_are_answered, 150),
    "a stale base keeps its slot": (_a_stale_base_keeps_its_slot, 0),
}
"""Each with the seed from which on it is looked for: rare ones take long from the beginning."""
