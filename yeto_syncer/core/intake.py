"""What becomes of a push: the answer of its round, a carry into a later one, or a rejection by name."""

from __future__ import annotations

from collections.abc import Mapping

from yeto_proto._generated import rules
from yeto_proto._generated.errors import Duplicate, OutOfRound, StaleBase
from yeto_proto._generated.messages import PushFragment
from yeto_proto._generated.types import FrameType
from yeto_proto.errors_base import YetoError
from yeto_syncer.core import tape
from yeto_syncer.core.anchors import Anchors
from yeto_syncer.core.carry import Closed, Late, LateCarry
from yeto_syncer.core.config import Config
from yeto_syncer.core.facts import ServerFacts
from yeto_syncer.core.folds import Folds
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.merge import weight as merge_weight
from yeto_syncer.core.model import Model
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.recovery import Recoveries
from yeto_syncer.core.registry import Group, Registry
from yeto_syncer.core.rounds import Round


class Intake:
    """The pushes of one run. `rounds` are those in flight, by step: the scheduler opens and closes them."""

    def __init__(
        self,
        config: Config,
        facts: ServerFacts,
        registry: Registry,
        model: Model,
        recoveries: Recoveries,
        outbox: Outbox,
        rounds: Mapping[int, Round],
    ) -> None:
        self._config = config
        self._facts = facts
        self._registry = registry
        self._model = model
        self._recoveries = recoveries
        self._outbox = outbox
        self._rounds = rounds
        self._folds = Folds(config, model, outbox)
        self._carry = LateCarry(config, model.num_fragments)
        self._anchors = Anchors(model.num_fragments)
        # A fixed roster asks again instead of closing one short.
        self._releases = config.fold == "on-arrival" and not config.fixed_roster
        self._launching = True

    def push(self, now: float, group: Group, push: PushFragment) -> None:
        """An answer whose bytes and counters are good. Dropped unless it fits its round as it stands now."""
        round_ = self._rounds.get(push.global_step)
        if round_ is None or not round_.open:
            self._late(now, group, push)
            return
        link = group.link
        error = self._broken(push, link, round_)
        if error is not None:
            self._reject(error, link, push, round_)
            return
        self._note_staleness(link, push, round_.base_version)
        self._folds.put(round_, round_.accept(link, push, self._weight(push)))
        self._outbox.count("answers_accepted")
        self._recoveries.answered(now, link, push.global_step)
        group.rate.report(now, push.local_step)

    def begin(self, round_: Round) -> None:
        """A new attempt has its members: what was late for its fragment joins it first."""
        self._folds.begin(round_)
        self._join_late(round_)

    def closed(self, round_: Round) -> None:
        """A round takes no more answers of its own."""
        self._carry.closed(round_)

    def reopened(self, round_: Round) -> None:
        """A round that was closed starts again. Its members answer anew, also those who were late for it."""
        self._give_up(self._carry.reopened(round_), "retry")

    def merged(self, round_: Round) -> None:
        """The answers of a round are in the state: their anchors are used up."""
        for each in round_.deltas():
            self._anchors.merged(
                each.link,
                round_.fragment_id,
                each.base_version,
                carried=each.lag > 0,
                live=self._registry.is_live(each.link),
            )

    def gone(self, link: Link) -> None:
        """A connection ended."""
        self._anchors.gone(link)

    def stop(self) -> None:
        """No further round will be launched, so nothing that waits for one can join it."""
        self._launching = False
        self._give_up(self._carry.drop(), "stop")

    # -- late pushes -----------------------------------------------------------------------------------------

    def _late(self, now: float, group: Group, push: PushFragment) -> None:
        """No round gathers this push. With late carry it joins the next one of its fragment, if its own was
        missing it."""
        link = group.link
        closed = self._carry.own_round(link, push, self._model.version(push.fragment_id))
        if closed is None:
            self._reject(OutOfRound(rule="push_fragment.global_step.round"), link, push)
            return
        step = self._carry.next_step(push.fragment_id)
        target = self._rounds.get(step)
        error = self._broken(push, link, closed)
        if error is None:
            error = self._unfit(push, step, target)
        if error is not None:
            self._reject(error, link, push)
            return
        self._note_staleness(link, push, closed.base_version)
        late = Late(link, push.global_step, push.round_attempt, self._weight(push), push)
        self._carry.put(late, closed)
        self._outbox.count("answers_late")
        self._recoveries.answered(now, link, push.global_step)
        self._outbox.log("info", "late delta carried", learner=link.learner_id, step=late.step, into=step)
        self._outbox.tape(self._record("carried", late, into=step))
        group.rate.report(now, push.local_step)
        if target is not None and target.captured:  # an emptied one takes it when it captures again
            self._join_late(target)

    def _join_late(self, round_: Round) -> None:
        for late in self._carry.take(round_):
            round_.carry(late)
            self._folds.put(round_, late)

    def _unfit(self, push: PushFragment, step: int, target: Round | None) -> YetoError | None:
        """Why no round is left that can take a late push, or why the next one would not."""
        gathers = target is not None and target.captured
        if step > self._config.total_steps or not (gathers or self._launching):
            return OutOfRound(rule="syncer.carry.late", detail="no later round of its fragment will gather")
        # The next round starts from what the one before it has made of the fragment.
        base = step - self._model.num_fragments
        if self._config.max_base_lag is not None and base - push.base_version > self._config.max_base_lag:
            return StaleBase(
                rule="push_fragment.base_version.lag",
                seen=push.base_version,
                detail=f"too old for step {step}",
            )
        return None

    def _give_up(self, waiting: list[Late], why: str) -> None:
        for late in waiting:
            self._outbox.count("carries_dropped", reason=why)
            self._outbox.tape(self._record("carry_dropped", late, reason=why))

    def _record(self, event: str, late: Late, **fields: object) -> dict[str, object]:
        return tape.member_record(
            event, late.link, step=late.step, fragment=late.fragment_id, attempt=late.attempt, **fields
        )

    # -- what both kinds share -------------------------------------------------------------------------------

    def _broken(self, push: PushFragment, link: Link, round_: Round | Closed) -> YetoError | None:
        """The first rule that the push breaks in its own round, gathering or closed."""
        error = rules.first_broken(
            FrameType.PUSH_FRAGMENT, "round", push, link=link, round=round_, server=self._facts
        )
        if error is None and self._held(push, link):
            return Duplicate(rule="syncer.carry.once", detail="a delta of this anchor is held already")
        return error

    def _held(self, push: PushFragment, link: Link) -> bool:
        """True when merging this push could count a part of it twice (revision 2, 1.3)."""
        fragment, base = push.fragment_id, push.base_version
        return (
            self._anchors.held(link, fragment, base)
            or self._carry.holds(link, fragment, base)
            or any(each.fragment_id == fragment and each.holds(link, base) for each in self._rounds.values())
        )

    def _reject(self, error: YetoError, link: Link, push: PushFragment, round_: Round | None = None) -> None:
        """Drop it. The slot stays open for a valid answer, except that a stale base releases it under a
        streaming fold, which can close with fewer answers (D10)."""
        fields: dict[str, object] = {}
        if isinstance(error, StaleBase) and round_ is not None and self._releases:
            slot = round_.slot_of(link)
            if slot is not None and slot.answer is None:
                round_.release(link.learner_id)
                fields["released"] = True
        self._outbox.reject(
            error,
            link,
            step=push.global_step,
            fragment=push.fragment_id,
            attempt=push.round_attempt,
            **fields,
        )

    def _note_staleness(self, link: Link, push: PushFragment, base_version: int) -> None:
        if push.base_version < base_version:
            self._outbox.log(
                "info",
                "stale base-relative delta admitted",
                learner=link.learner_id,
                step=push.global_step,
                staleness=base_version - push.base_version,
            )

    def _weight(self, push: PushFragment) -> float:
        if self._config.learner_weight == "equal":
            return 1.0
        return merge_weight(push.c_tokens, push.c_steps)
