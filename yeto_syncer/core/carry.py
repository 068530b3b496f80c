"""Late carry (`--late-carry`, D34): what comes too late for its round waits for the next one of its fragment.

The queue keeps wire bytes as they came. It holds at most one delta for each slot of the last
`--max-carry-lag` rounds of each fragment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from yeto_syncer.core.config import Config
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.rounds import Accepted, Round

if TYPE_CHECKING:
    from yeto_proto._generated.messages import PushFragment


@dataclass(frozen=True, slots=True)
class Closed:
    """A round that takes no answers any more, under the names of the spec's context `round`.

    `members` are those that have not answered; each leaves when its late delta is here. `base_version` is the
    newest version that a late delta may start from: a member may have got it before it answered.
    """

    global_step: int
    fragment_id: int
    attempt: int
    base_version: int
    members: set[Link]
    answered: frozenset[Link] = frozenset()


@dataclass(frozen=True, slots=True)
class Late:
    """A push that its own round would have taken. `weight` is that of its own round, before any decay."""

    link: Link
    step: int
    attempt: int
    weight: float
    push: PushFragment

    @property
    def fragment_id(self) -> int:
        return self.push.fragment_id


class LateCarry:
    """The rounds that have closed lately, and the deltas that wait for the next round of their fragment."""

    def __init__(self, config: Config, num_fragments: int) -> None:
        self._on = config.late_carry
        self._max_lag = config.max_carry_lag
        self._decay = config.carry_decay
        self._period = num_fragments
        self._closed: dict[int, deque[Closed]] = {}
        self._waiting: dict[int, list[Late]] = {}

    def closed(self, round_: Round) -> None:
        """A round was completed. Older ones of its fragment are forgotten when the next is out of reach."""
        if not self._on:
            return
        known = self._closed.setdefault(round_.fragment_id, deque())
        missing = {slot.link for slot in round_.slots.values() if slot.answer is None}
        known.append(
            Closed(round_.global_step, round_.fragment_id, round_.attempt, round_.base_version, missing)
        )
        while len(known) > self._max_lag:
            known.popleft()

    def reopened(self, round_: Round) -> list[Late]:
        """A completed round is tried again, and its members answer anew: give up what was late for it."""
        if not self._on:
            return []
        self._closed[round_.fragment_id].pop()
        waiting = self._waiting.pop(round_.fragment_id, [])
        kept = [late for late in waiting if late.step != round_.global_step]
        if kept:
            self._waiting[round_.fragment_id] = kept
        return [late for late in waiting if late.step == round_.global_step]

    def own_round(self, link: Link, push: PushFragment, version: int) -> Closed | None:
        """The closed round that misses a delta of this generation, while a later one may still take it.

        `version` is what the fragment has come to meanwhile.
        """
        for each in self._closed.get(push.fragment_id, ()):
            if each.global_step == push.global_step and link in each.members:
                return replace(each, base_version=version)
        return None

    def next_step(self, fragment_id: int) -> int:
        """The step that takes what is late for a fragment: its next one after those that have closed."""
        return self._closed[fragment_id][-1].global_step + self._period

    def put(self, late: Late, closed: Closed) -> None:
        """Keep a late push until `take`."""
        closed.members.discard(late.link)
        self._waiting.setdefault(late.fragment_id, []).append(late)

    def take(self, round_: Round) -> Iterator[Accepted]:
        """What waits for this round, in order of arrival. The round must take each before the next."""
        for late in self._waiting.pop(round_.fragment_id, []):
            lag = (round_.global_step - late.step) // self._period
            push = late.push
            yield Accepted(
                late.link,
                push.base_version,
                push.c_steps,
                push.c_tokens,
                late.weight * self._decay**lag,
                push.delta,
                round_.num_deltas,
                lag,
            )

    def holds(self, link: Link, fragment_id: int, base_version: int) -> bool:
        """True when a delta of this learner's anchor waits here."""
        return any(
            late.link.learner_id == link.learner_id and late.push.base_version == base_version
            for late in self._waiting.get(fragment_id, ())
        )

    def drop(self) -> list[Late]:
        """Give up everything that waits: no round will be launched any more."""
        waiting = [late for waiting in self._waiting.values() for late in waiting]
        self._waiting.clear()
        return waiting
