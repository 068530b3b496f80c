"""Outer steps in flight: launch, answers, grace, retries, and merges strictly in ascending step order.

Rounds in flight are always the consecutive steps after the global step, at most one per fragment, so distinct
fragments follow from the depth alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from yeto_proto._generated.machines import RoundInput, RoundState
from yeto_proto._generated.messages import PullReq, PushFragment
from yeto_syncer.core import tape
from yeto_syncer.core.checkpoints import Checkpoints
from yeto_syncer.core.closing import Closing
from yeto_syncer.core.commits import Commits
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Send
from yeto_syncer.core.facts import ServerFacts
from yeto_syncer.core.first_launch import FirstLaunch
from yeto_syncer.core.intake import Intake
from yeto_syncer.core.jobs import Link, MergeResult
from yeto_syncer.core.model import Model
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.pace import Pace
from yeto_syncer.core.recovery import Recoveries
from yeto_syncer.core.registry import Group, Registry
from yeto_syncer.core.rounds import Round
from yeto_syncer.core.steprate import slowest

RETRY_DEFERRAL_S = 1.0  # how far the deadline of a round moves while nobody can be captured (D16)


class Scheduler:
    """The rounds of one run, from the first launch to the last commit."""

    def __init__(
        self,
        config: Config,
        facts: ServerFacts,
        registry: Registry,
        model: Model,
        commits: Commits,
        checkpoints: Checkpoints,
        recoveries: Recoveries,
        outbox: Outbox,
    ) -> None:
        self._config = config
        self._registry = registry
        self._model = model
        self._commits = commits
        self._checkpoints = checkpoints
        self._outbox = outbox
        self._depth = min(max(config.pipeline, 1), model.num_fragments)
        self._rounds: dict[int, Round] = {}
        self._intake = Intake(config, facts, registry, model, recoveries, outbox, self._rounds)
        self._closing = Closing(config, self._slowest, lambda: commits.sync_s)
        self._next_step = model.global_step + 1
        self._pace = Pace(config, registry, model.num_fragments)
        self._launched = False
        self._launching = True
        self._first = FirstLaunch(config, registry, outbox)

    @property
    def idle(self) -> bool:
        """True when no round is in flight."""
        return not self._rounds

    @property
    def in_flight(self) -> tuple[Round, ...]:
        """The rounds that are launched and not committed, in the order of their steps; to be read only."""
        return tuple(self._rounds.values())

    @property
    def sync_s(self) -> float:
        """Seconds that the last commit took from its merge to its broadcast, 0 before the first one."""
        return self._commits.sync_s

    # -- events ----------------------------------------------------------------------------------------------

    def push(self, now: float, group: Group, push: PushFragment) -> None:
        """An answer whose bytes and counters are good."""
        self._intake.push(now, group, push)

    def folded(self, step: int, attempt: int) -> None:
        """A fold has ended. Its round may have started anew or be gone: then nobody waits for it."""
        round_ = self._rounds.get(step)
        if round_ is not None and round_.attempt == attempt and round_.captured:
            round_.folding -= 1

    def cut_sent(self, groups: Sequence[Group]) -> None:
        """The initial cut or a catch-up is on its way to these generations."""
        self._first.sent(group.link.learner_id for group in groups)

    def ready(self, now: float, group: Group) -> None:
        """The catch-up of this current generation has left: it takes its old slots over and joins open
        rounds."""
        learner = group.link.learner_id
        if self._registry.is_observer(learner):
            return
        self._first.holds(learner)
        for round_ in self._rounds.values():
            if not round_.open:
                continue
            if not round_.captured:
                self._retry(round_, now, 0)
            elif learner in round_.slots:
                self._rebind(round_, group)
            else:
                self._join(round_, group)

    def gone(self, link: Link) -> None:
        """A generation ended. Its answers stay; a ready successor takes over what it has not answered
        (D15)."""
        self._intake.gone(link)
        successor = self._registry.current(link.learner_id)
        if successor is None or not successor.ready or self._config.fixed_roster:
            return
        for round_ in self._rounds.values():
            if round_.open and link.learner_id in round_.slots:
                self._rebind(round_, successor)

    def needs(self, link: Link) -> bool:
        """True while an open round waits for the answer of this generation."""
        return any(round_.open and round_.waits_for(link) for round_ in self._rounds.values())

    def merged(self, now: float, step: int, attempt: int, result: MergeResult | None) -> None:
        """The merge of the next step ended: it is committed, or its answers were refused and it is tried
        again."""
        refused = self._commits.merged(step, attempt, result)
        if refused is None:
            if self._commits.committed:
                self._intake.merged(self._rounds[step])
                if not self._checkpoints.holding:
                    self.publish(now)
            return
        refused.discard(RoundInput.NOT_FINITE, now + RETRY_DEFERRAL_S)
        self._intake.reopened(refused)
        self._retry(refused, now, 0)  # its answers are on the tape already, as rejections

    def publish(self, now: float) -> None:
        """The committed step is durable where it must be: show it, then the periodic checkpoint."""
        step = self._commits.publish(now).global_step
        del self._rounds[step]
        self._checkpoints.after_commit(step)

    # -- stop ------------------------------------------------------------------------------------------------

    def stop_launching(self) -> None:
        """No new round; those in flight may still close."""
        if self._launching:
            self._launching = False
            self._intake.stop()

    def drop_hopeless(self) -> None:
        """Drop the rounds that nobody can answer any more: no answer yet, and no member's learner
        connected."""
        for round_ in self._rounds.values():
            if round_.open and round_.num_deltas == 0 and not self._answerable(round_):
                self._drop_from(round_.global_step)
                return

    def _answerable(self, round_: Round) -> bool:
        if not round_.slots:  # emptied while nobody could be captured: anybody will do
            return self._registry.connected_participants() > 0
        return any(self._registry.current(learner) is not None for learner in round_.slots)

    def drop_open(self) -> None:
        """Drop every round that still gathers, and with the first of them all later ones: commits are in
        order."""
        for round_ in self._rounds.values():
            if round_.open:
                self._drop_from(round_.global_step)
                return

    def cancel(self) -> None:
        """Close ordinary issuance: every round that is not committed yet is dropped whole."""
        self.stop_launching()
        self._drop_from(self._model.global_step + 1)

    @property
    def draining(self) -> bool:
        """True while the merge of a dropped round still runs."""
        return self._commits.merging

    def _drop_from(self, step: int) -> None:
        for late in [each for each in self._rounds if each >= step]:
            round_ = self._rounds.pop(late)
            round_.take(RoundInput.GIVEN_UP)
            self._outbox.count("rounds_dropped")
            self._outbox.log("warning", "round dropped", step=late, answers=round_.num_deltas)
            self._outbox.tape(tape.round_record("round_dropped", round_, answers=round_.num_deltas))

    # -- time ------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Do whatever is due: close rounds, start the next merge, launch."""
        for round_ in self._rounds.values():
            if round_.open:
                self._judge(round_, now)
        head = self._rounds.get(self._model.global_step + 1)
        if (
            head is not None
            and head.state is RoundState.COMPLETE
            and head.folding == 0
            and not self._commits.busy
        ):
            self._commits.merge(now, head)
        if not self._launched:
            self._first.advance(now)
        self._launch(now)

    def next_deadline(self, now: float) -> float | None:
        """When `advance` has to be called at the latest, if no event comes."""
        earliest: float | None = None
        for round_ in self._rounds.values():
            if not round_.open:
                continue
            due = self._closing.due(round_, now)
            if earliest is None or due < earliest:
                earliest = due
        launch = self._pace.due() if self._may_launch(now) else None
        if not self._launched and launch is None:
            launch = self._first.next_deadline()
            if launch is not None and launch <= now:
                launch = None  # it is over: whoever becomes ready begins
        if launch is not None and (earliest is None or launch < earliest):
            earliest = launch
        return earliest

    def _judge(self, round_: Round, now: float) -> None:
        if round_.captured and not round_.slots:
            # A stale base has released the last member: nothing is left to wait for.
            round_.deadline = min(round_.deadline, now + RETRY_DEFERRAL_S)
        if self._closing.judge(round_, now):
            self._expired(round_, now)
        elif not round_.open:
            self._intake.closed(round_)

    def _expired(self, round_: Round, now: float) -> None:
        """Below K at the deadline: a new attempt with whoever can be captured now (D16)."""
        members = self._registry.ready()
        if self._config.fixed_roster and round_.slots:
            self._remind(round_, members, now)
        elif not self._enough(members):
            round_.deadline = now + RETRY_DEFERRAL_S
        else:
            self._outbox.log(
                "warning",
                "new frozen-membership attempt",
                step=round_.global_step,
                attempt=round_.attempt + 1,
                discarded=round_.num_deltas,
                members=len(members),
            )
            answers = round_.num_deltas
            round_.discard(RoundInput.TIMED_OUT, now)
            self._retry(round_, now, answers)

    def _remind(self, round_: Round, members: tuple[Group, ...], now: float) -> None:
        """A fixed roster never discards: ask again who has not answered."""
        if self._enough(members):
            for group in members:
                slot = round_.slots.get(group.link.learner_id)
                if slot is not None and slot.answer is None:
                    self._pull(round_, group.link)
        round_.deadline = now + self._config.quorum_timeout_s

    # -- launch and capture ----------------------------------------------------------------------------------

    def _may_launch(self, now: float) -> bool:
        """Everything but the time: depth, steps left, members, and the first-cut rule."""
        return (
            self._launching
            and len(self._rounds) < self._depth
            and self._next_step <= self._config.total_steps
            and not self._checkpoints.holding
            and (self._launched or self._first.may(now))
            and self._enough(self._registry.ready())
        )

    def _launch(self, now: float) -> None:
        while self._may_launch(now) and now >= self._pace.due():
            step = self._next_step
            fragment = self._model.fragment_of(step)
            round_ = Round(
                step,
                fragment,
                self._model.version(fragment),
                fixed_roster=self._config.fixed_roster,
                carry_answers=self._config.carry_answers_round,
            )
            self._rounds[step] = round_
            self._next_step = step + 1
            self._launched = True
            members = self._registry.ready()
            self._capture(round_, members, now)
            self._pace.launched(now, members)

    def _enough(self, members: tuple[Group, ...]) -> bool:
        """Can an attempt capture these? One member will do, except that a fixed roster needs its quorum."""
        return len(members) >= (self._config.quorum if self._config.fixed_roster else 1)

    def _capture(self, round_: Round, members: tuple[Group, ...], now: float) -> None:
        self._closing.capture(round_, members, now)
        for group in members:
            self._pull(round_, group.link)
        self._intake.begin(round_)

    def _retry(self, round_: Round, now: float, discarded: int) -> None:
        """Capture anew a round that was emptied; it stays empty while nobody can be captured."""
        members = self._registry.ready()
        if self._enough(members):
            self._outbox.count("attempts_retried")
            self._outbox.tape(tape.round_record("attempt_discarded", round_, answers=discarded))
            self._capture(round_, members, now)

    def _pull(self, round_: Round, link: Link) -> None:
        self._outbox.emit(Send(link, PullReq(round_.fragment_id, round_.global_step, round_.attempt)))

    def _rebind(self, round_: Round, group: Group) -> None:
        """Give an unanswered slot whose generation is gone to the learner's present one, and pull it
        again."""
        link = group.link
        slot = round_.slots[link.learner_id]
        if slot.answer is not None:
            return
        if self._config.fixed_roster:
            self._pull(round_, link)
        elif slot.link != link and not self._registry.is_live(slot.link):
            self._outbox.log("info", "rebound pull", step=round_.global_step, learner=link.learner_id)
            self._outbox.tape(
                tape.member_record("rebound", link, step=round_.global_step, attempt=round_.attempt)
            )
            slot.link = link
            self._pull(round_, link)

    def _join(self, round_: Round, group: Group) -> None:
        """The late-joiner pull (revision 2, 1.1). Not for a round that started from another version than the
        member holds, that has a part of its learner, or whose capacity quorum would move away."""
        held, link = group.caught_up_to, group.link
        if (
            self._config.fixed_roster
            or self._config.quorum_capacity is not None
            or held is None
            or held[round_.fragment_id] != round_.base_version
            or round_.has_part_of(link.learner_id)
        ):
            return
        round_.join(link)
        self._outbox.tape(
            tape.member_record("late_join", link, step=round_.global_step, attempt=round_.attempt)
        )
        self._pull(round_, link)

    def _slowest(self, links: Sequence[Link]) -> float | None:
        groups = (self._registry.get(link) for link in links)
        return slowest(group.rate.seconds for group in groups if group is not None)
