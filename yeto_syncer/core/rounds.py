"""One outer step that gathers answers: its frozen members, its answers, and which push it takes.

A round decides nothing about time or about the other rounds; the scheduler does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from yeto_proto._generated.machines import ROUND, RoundInput, RoundState
from yeto_proto.machine import advance
from yeto_syncer.core.jobs import Link

if TYPE_CHECKING:
    from yeto_proto._generated.messages import Buffer, PushFragment


@dataclass(slots=True)
class Accepted:
    """The answer that holds a slot. `delta` is released as soon as it was merged."""

    link: Link
    base_version: int
    c_steps: int
    c_tokens: int
    weight: float
    delta: Buffer


@dataclass(slots=True)
class Slot:
    """One captured member: exactly this generation may answer."""

    link: Link
    answer: Accepted | None = None


class _Members:
    """The captured generations, as the rules of the spec name them: `link in round.members`."""

    __slots__ = ("_round",)

    def __init__(self, owner: Round) -> None:
        self._round = owner

    def __contains__(self, link: object) -> bool:
        slot = self._round.slot_of(link)
        return slot is not None


class _Answered:
    """The generations whose slot is taken: `link in round.answered`."""

    __slots__ = ("_round",)

    def __init__(self, owner: Round) -> None:
        self._round = owner

    def __contains__(self, link: object) -> bool:
        slot = self._round.slot_of(link)
        return slot is not None and slot.answer is not None


class Round:
    """The attempt of one outer step that is under way.

    `quorum` is K, frozen at the capture. With a fixed roster a slot belongs to the learner, whichever
    generation answers; otherwise to one generation.
    """

    __slots__ = (
        "answered",
        "attempt",
        "base_version",
        "completed_at",
        "deadline",
        "fixed_roster",
        "fragment_id",
        "global_step",
        "grace_deadline",
        "grace_s",
        "launched_at",
        "members",
        "num_answers",
        "quorum",
        "quorum_at",
        "slots",
        "state",
    )

    def __init__(self, global_step: int, fragment_id: int, base_version: int, *, fixed_roster: bool) -> None:
        self.global_step = global_step
        self.fragment_id = fragment_id
        self.base_version = base_version
        self.fixed_roster = fixed_roster
        self.members = _Members(self)
        self.answered = _Answered(self)
        self.attempt = 0
        self.state = ROUND.initial
        self.slots: dict[int, Slot] = {}
        self.num_answers = 0
        self.quorum = 0
        self.launched_at = 0.0
        self.deadline = 0.0
        self.quorum_at: float | None = None
        self.grace_s: float | None = None
        self.grace_deadline: float | None = None
        self.completed_at: float | None = None

    def take(self, happened: RoundInput) -> None:
        """Go where the machine of the spec leads; no other way changes the state."""
        self.state = advance(ROUND, self.state, happened)

    def capture(self, links: Iterable[Link], quorum: int, now: float, deadline: float) -> None:
        """Begin the next attempt with these members; K = min(quorum, members)."""
        self._clear(deadline)
        self.attempt += 1
        self.slots = {link.learner_id: Slot(link) for link in links}
        self.quorum = min(quorum, len(self.slots))
        self.launched_at = now

    def discard(self, why: RoundInput, deadline: float) -> None:
        """Give up the attempt with its answers and timers. Without members nothing completes the round."""
        self.take(why)
        self._clear(deadline)

    def _clear(self, deadline: float) -> None:
        self.slots = {}
        self.num_answers = 0
        self.quorum = 0
        self.launched_at = 0.0
        self.deadline = deadline
        self.quorum_at = None
        self.grace_s = None
        self.grace_deadline = None
        self.completed_at = None

    @property
    def open(self) -> bool:
        """True while the round takes pushes."""
        return self.state is RoundState.GATHERING or self.state is RoundState.GRACE

    @property
    def all_answered(self) -> bool:
        return self.num_answers > 0 and self.num_answers == len(self.slots)

    def slot_of(self, link: object) -> Slot | None:
        """The slot that this generation may answer in, taken or not."""
        if not isinstance(link, Link):
            return None
        slot = self.slots.get(link.learner_id)
        if slot is None or (slot.link != link and not self.fixed_roster):
            return None
        return slot

    def join(self, link: Link) -> None:
        """One more expected member. K, attempt, base and deadlines stay (late-joiner rule)."""
        self.slots[link.learner_id] = Slot(link)

    def accept(self, link: Link, push: PushFragment, weight: float) -> None:
        """Take the push, which `first_broken` found to be in order."""
        self.slots[link.learner_id].answer = Accepted(
            link, push.base_version, push.c_steps, push.c_tokens, weight, push.delta
        )
        self.num_answers += 1

    def answers(self) -> list[Accepted]:
        """The accepted answers in ascending (id, generation): the order of the merge (D30)."""
        taken = [slot.answer for slot in self.slots.values() if slot.answer is not None]
        taken.sort(key=lambda answer: answer.link)
        return taken

    def release_deltas(self) -> None:
        """The answers were merged: drop their bytes, keep what the tape tells of them."""
        for slot in self.slots.values():
            if slot.answer is not None:
                slot.answer.delta = b""
