"""One outer step that gathers answers: its frozen members, its answers, and which push it takes.

A round decides nothing about time or about the other rounds; the scheduler does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from yeto_proto._generated.machines import ROUND, RoundInput, RoundState
from yeto_proto.machine import advance
from yeto_syncer.core.jobs import Accumulator, Link

if TYPE_CHECKING:
    from yeto_proto._generated.messages import Buffer, PushFragment


@dataclass(slots=True)
class Accepted:
    """A delta that a round merges: the answer in a slot, or one that was too late for its own round.

    `delta` is released as soon as it was merged or folded. `order` counts what the attempt took, from 0;
    `lag` is 0 for the round's own answers, else how many rounds of the fragment the delta is late.
    """

    link: Link
    base_version: int
    c_steps: int
    c_tokens: int
    weight: float
    delta: Buffer
    order: int
    lag: int = 0


@dataclass(slots=True)
class Slot:
    """One captured member: exactly this generation may answer.

    `capacity` is in inner steps a second, or 1 where nobody asks. `responded` is what completes the round:
    the member has answered, or a carried delta of its learner counts as its answer.
    """

    link: Link
    capacity: float = 1.0
    answer: Accepted | None = None
    responded: bool = False


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
    generation answers; otherwise to one generation. With `carry_answers` a carried delta of a member counts
    as its answer. `accumulator` is there when answers are folded on arrival, and `folding` counts the folds
    that have not ended.
    """

    __slots__ = (
        "accumulator",
        "answered",
        "attempt",
        "base_version",
        "captured",
        "carried",
        "carry_answers",
        "completed_at",
        "deadline",
        "fixed_roster",
        "folding",
        "fragment_id",
        "global_step",
        "grace_deadline",
        "grace_s",
        "launched_at",
        "members",
        "num_deltas",
        "num_responders",
        "quorum",
        "quorum_at",
        "slots",
        "soft_deadline",
        "state",
    )

    slots: dict[int, Slot]
    carried: list[Accepted]
    soft_deadline: float | None
    quorum_at: float | None
    grace_s: float | None
    grace_deadline: float | None
    completed_at: float | None
    accumulator: Accumulator | None

    def __init__(
        self,
        global_step: int,
        fragment_id: int,
        base_version: int,
        *,
        fixed_roster: bool,
        carry_answers: bool = False,
    ) -> None:
        self.global_step = global_step
        self.fragment_id = fragment_id
        self.base_version = base_version
        self.fixed_roster = fixed_roster
        self.carry_answers = carry_answers
        self.members = _Members(self)
        self.answered = _Answered(self)
        self.attempt = 0
        self.state = ROUND.initial
        self._clear(0.0)

    def take(self, happened: RoundInput) -> None:
        """Go where the machine of the spec leads; no other way changes the state."""
        self.state = advance(ROUND, self.state, happened)

    def capture(
        self,
        slots: Iterable[Slot],
        quorum: int,
        now: float,
        deadline: float,
        soft_deadline: float | None = None,
    ) -> None:
        """Begin the next attempt with these members; K = min(quorum, members)."""
        self._clear(deadline)
        self.attempt += 1
        self.captured = True
        self.slots = {slot.link.learner_id: slot for slot in slots}
        self.quorum = min(quorum, len(self.slots))
        self.launched_at = now
        self.soft_deadline = soft_deadline

    def discard(self, why: RoundInput, deadline: float) -> None:
        """Give up the attempt with its answers and timers. Without members nothing completes the round."""
        self.take(why)
        self._clear(deadline)

    def _clear(self, deadline: float) -> None:
        self.captured = False  # until members are there, at first or after a discarded attempt
        self.slots = {}
        self.carried = []
        self.num_responders = 0
        self.num_deltas = 0
        self.quorum = 0
        self.launched_at = 0.0
        self.deadline = deadline
        self.soft_deadline = None
        self.quorum_at = None
        self.grace_s = None
        self.grace_deadline = None
        self.completed_at = None
        self.accumulator = None
        self.folding = 0

    @property
    def open(self) -> bool:
        """True while the round takes pushes."""
        return self.state is RoundState.GATHERING or self.state is RoundState.GRACE

    @property
    def all_answered(self) -> bool:
        return self.num_responders > 0 and self.num_responders == len(self.slots)

    @property
    def capacity_share(self) -> float:
        """What the responders have of the members' capacity, 0 without members."""
        slots = self.slots.values()
        # Correctly rounded sums: it does not matter in which order the members answer.
        total = math.fsum(slot.capacity for slot in slots)
        return math.fsum(slot.capacity for slot in slots if slot.responded) / total if total else 0.0

    def slot_of(self, link: object) -> Slot | None:
        """The slot that this generation may answer in, taken or not."""
        if not isinstance(link, Link):
            return None
        slot = self.slots.get(link.learner_id)
        if slot is None or (slot.link != link and not self.fixed_roster):
            return None
        return slot

    def waits_for(self, link: Link) -> bool:
        """True when this generation was captured and has not answered."""
        slot = self.slots.get(link.learner_id)
        return slot is not None and slot.link == link and slot.answer is None

    def has_part_of(self, learner_id: int) -> bool:
        """True when the round holds a slot or a carried delta of this learner."""
        return learner_id in self.slots or any(each.link.learner_id == learner_id for each in self.carried)

    def join(self, link: Link) -> None:
        """One more expected member. K, attempt, base and deadlines stay (late-joiner rule)."""
        self.slots[link.learner_id] = Slot(link)

    def release(self, learner_id: int) -> None:
        """Expect one member less, which has not answered. K shrinks with the members where it has to."""
        slot = self.slots.pop(learner_id)
        self.num_responders -= slot.responded
        self.quorum = max(min(self.quorum, len(self.slots)), 1)

    def accept(self, link: Link, push: PushFragment, weight: float) -> Accepted:
        """Take the push, which `first_broken` found to be in order."""
        slot = self.slots[link.learner_id]
        slot.answer = Accepted(
            link, push.base_version, push.c_steps, push.c_tokens, weight, push.delta, self.num_deltas
        )
        self._respond(slot)
        self.num_deltas += 1
        return slot.answer

    def carry(self, late: Accepted) -> None:
        """Take a delta that was too late for an earlier round of the fragment."""
        self.carried.append(late)
        self.num_deltas += 1
        slot = self.slots.get(late.link.learner_id)
        if self.carry_answers and slot is not None:
            self._respond(slot)

    def _respond(self, slot: Slot) -> None:
        if not slot.responded:
            slot.responded = True
            self.num_responders += 1

    def holds(self, link: Link, base_version: int) -> bool:
        """True when a delta of this learner's anchor is in the attempt, other than by this very connection.

        A carried one counts on every connection (revision 2, 1.3).
        """
        slot = self.slots.get(link.learner_id)
        answer = None if slot is None else slot.answer
        if answer is not None and answer.base_version == base_version and answer.link != link:
            return True
        return any(
            each.link.learner_id == link.learner_id and each.base_version == base_version
            for each in self.carried
        )

    def deltas(self) -> list[Accepted]:
        """What is merged in ascending (id, generation), the order of a merge at the close (D30)."""
        taken = [slot.answer for slot in self.slots.values() if slot.answer is not None]
        taken += self.carried
        taken.sort(key=lambda each: (each.link, each.lag))
        return taken

    def release_deltas(self) -> None:
        """The answers were merged: drop their bytes, keep what the tape tells of them."""
        for slot in self.slots.values():
            if slot.answer is not None:
                slot.answer.delta = b""
        self.accumulator = None
