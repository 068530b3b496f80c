"""Members, answers, merges, commits and the ledger of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.audit import Context, Handlers, Part, require
from tests.simulation.audit_deltas import Anchors, Taken, Works
from yeto_proto._generated.messages import PullReq, PushFragment
from yeto_proto.files.model import Snapshot
from yeto_syncer.core.effects import AppendTape, Count, Deliver, Fold, Merge, Save, Send
from yeto_syncer.core.events import Event, Merged, Received
from yeto_syncer.core.jobs import F32, Answer, FoldJob, Link, MergeJob
from yeto_syncer.core.merge import weight


@dataclass
class Attempt:
    """What is known of the attempt of one step that is under way."""

    number: int
    base: int
    k: int
    slots: dict[int, Link]
    accepted: dict[int, Taken] = field(default_factory=dict)
    carried: list[Taken] = field(default_factory=list)
    folded: list[int] = field(default_factory=list)  # ids of deltas
    into: object = None
    shrunk: bool = False  # a stale base has released a slot
    emptied: bool = False  # its answers were refused

    @property
    def taken(self) -> list[Taken]:
        return [*self.accepted.values(), *self.carried]


class Rounds(Part):
    """Steps commit in order, each with exactly the answers that were accepted for it, each of them once."""

    def __init__(self, context: Context, num_fragments: int, resumed: Snapshot | None, works: Works) -> None:
        self._context = context
        self._config = context.config
        self._fragments = num_fragments
        self._works = works
        self._anchors = Anchors()
        self.committed = 0 if resumed is None else resumed.global_step
        self.versions = dict.fromkeys(range(num_fragments), 0)
        self._params: dict[int, F32] = {}
        self._momentum: dict[int, F32] = {}
        self._ledger: Counter[tuple[int, str]] = Counter()
        if resumed is not None:
            for number, state in enumerate(resumed.fragments):
                self.versions[number] = state.version
                self._params[number], self._momentum[number] = state.params, state.momentum
            for learner, entry in resumed.ledger.items():
                self._charge(learner, entry.merges, entry.steps, entry.tokens)
        self._taped = self.committed
        self._attempts: dict[int, Attempt] = {}
        self._closed: Attempt | None = None  # that of the step that was committed last
        self._merged: set[int] = set()
        self._answered: set[tuple[int, int, int]] = set()  # anchors of which a push was accepted
        self._waiting: dict[int, list[Taken]] = {}  # late deltas, by the fragment that they wait for
        self._job: MergeJob | None = None
        # Within one step of the coordinator:
        self._push: tuple[Link, PushFragment] | None = None
        self._outcomes: list[str] = []
        self._released = False  # the slot of the push, as the tape tells
        self._pulls: list[tuple[Link, PullReq]] = []
        self._folds: list[FoldJob] = []
        self._started: MergeJob | None = None
        self._into = 0  # the step that takes the late delta, as the tape tells

    def events(self) -> Handlers:
        return {Received: self._on_received, Merged: self._on_merged}

    def decided(self) -> Handlers:
        return {
            Count: self._on_count,
            Send: self._on_send,
            Fold: lambda effect: self._folds.append(effect.job),
            Merge: self._on_merge,
            Deliver: self._on_deliver,
            Save: self._on_save,
            AppendTape: self._on_tape,
        }

    def _settle_push(self) -> None:
        if self._push is not None:
            (link, push), self._push = self._push, None
            self._judge(link, push)

    def _settle_pulls(self) -> None:
        pulls, self._pulls = self._pulls, []
        for link, pull in pulls:
            self._pulled(link, pull, [each for each, other in pulls if other == pull])

    def settle(self, event: Event) -> None:
        self._settle_push()
        self._settle_pulls()
        if self._folds:
            folds, self._folds = self._folds, []
            for job in folds:
                self._fold(job)
        if self._started is not None:
            job, self._started = self._started, None
            self._check_job(job)
        self._outcomes.clear()
        self._released = False

    # -- members ---------------------------------------------------------------------------------------------

    def _on_send(self, effect: Send) -> None:
        if isinstance(effect.message, PullReq):
            self._pulls.append((effect.link, effect.message))

    def _pulled(self, link: Link, pull: PullReq, together: list[Link]) -> None:
        context, step = self._context, pull.global_step
        require(self.committed < step <= self._config.total_steps, f"{pull} is not for a step that is due")
        require(pull.fragment_id == (step - 1) % self._fragments, f"{pull} names another fragment")
        require(link.learner_id not in context.observers, f"{link} is an observer and was pulled")
        require(link in context.ready, f"{link} was pulled before its catch-up had left")
        attempt = self._attempts.get(step)
        if attempt is None or attempt.number < pull.round_attempt:
            before = 0 if attempt is None else attempt.number
            require(pull.round_attempt == before + 1, f"{pull} follows attempt {before}")
            self._capture(pull, together)
            return
        require(attempt.number == pull.round_attempt, f"{pull} repeats an attempt that is over")
        held = attempt.slots.get(link.learner_id)
        if held is None:
            require(context.current.get(link.learner_id) == link, f"{link} joined and is not current")
            attempt.slots[link.learner_id] = link
        elif held != link and not self._config.fixed_roster:
            require(held not in context.live, f"{link} took the slot of {held}, which is live")
            require(link.learner_id not in attempt.accepted, f"{link} took a slot that was answered")
            attempt.slots[link.learner_id] = link

    def _capture(self, pull: PullReq, together: list[Link]) -> None:
        context = self._context
        current = {each for each in context.current.values() if each.learner_id not in context.observers}
        everyone = current & context.ready
        require(set(together) == everyone, f"{pull} captured {together}, and ready are {sorted(everyone)}")
        self._attempts[pull.global_step] = Attempt(
            pull.round_attempt,
            self.versions[pull.fragment_id],
            min(self._config.quorum, len(together)),
            {each.learner_id: each for each in together},
            carried=self._waiting.pop(pull.fragment_id, []),
        )

    # -- answers ---------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> None:
        context = self._context
        served = event.link in context.live and event.conn not in context.closed and not context.over
        if isinstance(event.message, PushFragment) and served:
            self._push = event.link, event.message

    def _on_count(self, effect: Count) -> None:
        if effect.name in ("answers_accepted", "answers_late"):
            self._outcomes.append(effect.name)
        elif effect.name == "rejected":
            self._outcomes.append(effect.labels["reason"])
        elif effect.name in ("learners_left", "data_streams_closed"):
            self._outcomes.append("closed")

    def _judge(self, link: Link, push: PushFragment) -> None:
        """One push has one outcome, and only a fitting one is accepted."""
        require(self._outcomes, f"the push of {link} for step {push.global_step} had no outcome")
        outcome = self._outcomes[0]
        if outcome == "answers_late":
            require(self._config.late_carry, "a late delta was kept without --late-carry")
            self._late(link, push)
        elif outcome == "answers_accepted":
            self._accept(link, push)
        elif outcome == "StaleBase" and self._config.fold == "on-arrival" and not self._config.fixed_roster:
            self._release(link, push)
        elif outcome in ("OutOfRound", "UnexpectedMember", "Duplicate", "FutureBase"):
            require(not self._was_due(link, push), f"a valid answer of {link} was dropped: {outcome}")

    def _accept(self, link: Link, push: PushFragment) -> None:
        step = push.global_step
        attempt = self._attempts.get(step)
        if attempt is None or attempt.number != push.round_attempt or attempt.emptied:
            require(False, f"{link} answered no attempt of step {step}")
            return
        slot = attempt.slots.get(link.learner_id)
        require(slot is not None, f"{link} has no slot in step {step} and was accepted")
        require(slot == link or self._config.fixed_roster, f"{link} answered in the slot of {slot}")
        require(link.learner_id not in attempt.accepted, f"{link} was accepted twice in step {step}")
        require(push.base_version <= attempt.base, f"{link} was accepted from a future base")
        limit = self._config.max_base_lag
        stale = limit is not None and attempt.base - push.base_version > limit
        require(not stale, f"{link} was accepted from a stale base")
        attempt.accepted[link.learner_id] = self._taken(link, push)

    def _taken(self, link: Link, push: PushFragment) -> Taken:
        self._answered.add((link.learner_id, push.fragment_id, push.base_version))
        return Taken(self._context.of(push), link)

    def _was_due(self, link: Link, push: PushFragment) -> bool:
        """Its round surely gathers, misses the answer of this very generation, and this one fits."""
        attempt = self._attempts.get(push.global_step)
        return (
            attempt is not None
            and attempt.number == push.round_attempt
            and not attempt.emptied
            and not attempt.shrunk
            and self._config.quorum_capacity is None
            and len(attempt.taken) < attempt.k
            and attempt.slots.get(link.learner_id) == link
            and link.learner_id not in attempt.accepted
            and push.base_version == attempt.base
            and (link.learner_id, push.fragment_id, push.base_version) not in self._answered
        )

    def _release(self, link: Link, push: PushFragment) -> None:
        """A stale base gives its slot up, so that the round can close without it (revision 2, 1.5).

        A round that has closed needs that no more. When it closes after its quorum only the coordinator
        knows, which grants the grace, so there the tape is believed.
        """
        attempt = self._attempts.get(push.global_step)
        if attempt is None or attempt.number != push.round_attempt or attempt.emptied:
            require(not self._released, f"{link} gave up a slot in no attempt of step {push.global_step}")
            return
        held = attempt.slots.get(link.learner_id) == link and link.learner_id not in attempt.accepted
        require(held or not self._released, f"{link} gave up a slot that it has not, or has answered in")
        if self._released:
            del attempt.slots[link.learner_id]
            attempt.shrunk = True
            attempt.k = max(min(attempt.k, len(attempt.slots)), 1)
        elif held:
            enough = attempt.k if self._config.quorum_capacity is None else 1
            waits = len(attempt.taken) < enough
            require(not waits, f"step {push.global_step} waits for {link}, whose base is stale")

    def _late(self, link: Link, push: PushFragment) -> None:
        target = self._attempts.get(self._into)
        taken = self._taken(link, push)
        if target is None or target.emptied:
            self._waiting.setdefault(push.fragment_id, []).append(taken)
        else:
            target.carried.append(taken)

    # -- merges ----------------------------------------------------------------------------------------------

    def _fold(self, job: FoldJob) -> None:
        attempt = self._attempts.get(job.step)
        require(
            attempt is not None and attempt.number == job.attempt, f"a fold into no attempt of {job.step}"
        )
        assert attempt is not None
        require(attempt.into in (None, job.into), f"two sums for one attempt of step {job.step}")
        attempt.into = job.into
        self._check_weight(job.answer, job.step)
        attempt.folded.append(id(job.answer.delta))

    def _on_merge(self, effect: Merge) -> None:
        require(self._job is None and self._started is None, "two merges at a time")
        self._started = effect.job

    def _check_job(self, job: MergeJob) -> None:
        step = job.step
        require(step == self.committed + 1, f"step {step} is merged after step {self.committed}")
        attempt = self._attempts.get(step)
        require(attempt is not None and attempt.number == job.attempt, f"no attempt {job.attempt} of {step}")
        assert attempt is not None
        taken = attempt.taken
        require(taken, f"step {step} is merged without an answer")
        if self._config.quorum_capacity is None and not self._config.carry_answers_round:
            have = len(attempt.accepted)
            require(have >= attempt.k, f"step {step} closed with {have} answers, and K is {attempt.k}")
        expected = sorted(id(each.sent.push.delta) for each in taken)
        if job.folded is None:
            merged = sorted(id(answer.delta) for answer in job.answers)
            links = [answer.link for answer in job.answers]
            require(links == sorted(links), "answers are reduced in ascending (id, generation)")
            for answer in job.answers:
                self._check_weight(answer, step)
        else:
            require(job.folded is attempt.into or not attempt.folded, "the sums are not those of the attempt")
            expected = sorted(id(t.sent.push.delta) for t in taken if self._weight(t.sent.push) > 0)
            merged = sorted(attempt.folded)
        require(merged == expected, f"step {step} does not merge exactly what was accepted for it")
        params = self._params.setdefault(job.fragment_id, job.params)
        require(job.params is params, f"step {step} starts from other parameters")
        self._job = job

    def _check_weight(self, answer: Answer, step: int) -> None:
        """That of its own round, decayed by the rounds that it is late."""
        push = self._context.sent[id(answer.delta)].push
        lag, rest = divmod(step - push.global_step, self._fragments)
        latest = self._config.max_carry_lag if self._config.late_carry else 0
        require(rest == 0 and 0 <= lag <= latest, f"step {step} takes a delta of step {push.global_step}")
        weight = self._weight(push) * self._config.carry_decay**lag
        require(answer.weight == weight, f"a wrong weight: {answer.weight} instead of {weight}")

    def _weight(self, push: PushFragment) -> float:
        return 1.0 if self._config.learner_weight == "equal" else weight(push.c_tokens, push.c_steps)

    def _on_merged(self, event: Merged) -> None:
        job, self._job = self._job, None
        require(job is not None, f"no merge of step {event.step} was running")
        assert job is not None
        attempt = self._attempts.get(job.step)
        if attempt is None:
            return  # its round was dropped meanwhile
        if event.result is None:
            attempt.emptied = True
            self._context.tally["merges not finite"] += 1
            return
        self.committed = job.step
        self.versions[job.fragment_id] = job.step
        self._params[job.fragment_id] = event.result.params
        self._momentum[job.fragment_id] = event.result.momentum
        works: list[int] = []
        for taken in attempt.taken:
            sent = taken.sent
            number = id(sent.push.delta)
            require(number not in self._merged, f"a delta of learner {sent.learner} is merged twice")
            self._anchors.commit(job.step, job.fragment_id, taken)
            self._merged.add(number)
            self._charge(sent.learner, 1, sent.push.c_steps, sent.push.c_tokens)
            works += sent.works
        self._works.commit(job.step, job.fragment_id, tuple(works))
        self._closed = self._attempts.pop(job.step)

    def _charge(self, learner: int, merges: int, steps: int, tokens: int) -> None:
        self._ledger[learner, "merges"] += merges
        self._ledger[learner, "steps"] += steps
        self._ledger[learner, "tokens"] += tokens

    # -- what is shown and saved -----------------------------------------------------------------------------

    def _on_deliver(self, delivery: Deliver) -> None:
        for each in delivery.fragments:
            known = self.versions[each.fragment_id]
            require(each.version == known, f"version {each.version} of {each.fragment_id} is not {known}")
            params = self._params.setdefault(each.fragment_id, each.params)
            require(each.params is params, f"not the committed values of fragment {each.fragment_id}")
        last = self.committed == self._config.total_steps
        require(delivery.final == last, "the last step is delivered as the final cut, and nothing else is")

    def _on_save(self, effect: Save) -> None:
        snapshot = effect.snapshot
        require(snapshot.global_step == self.committed, "a checkpoint is the state at its step")
        for number, state in enumerate(snapshot.fragments):
            require(state.version == self.versions[number], f"a checkpoint has a wrong version of {number}")
            params = self._params.setdefault(number, state.params)
            momentum = self._momentum.setdefault(number, state.momentum)
            require(state.params is params, f"a checkpoint has other values of fragment {number}")
            require(state.momentum is momentum, f"a checkpoint has another momentum of fragment {number}")
        ledger = {
            (learner, name): value
            for learner, entry in snapshot.ledger.items()
            for name, value in (("merges", entry.merges), ("steps", entry.steps), ("tokens", entry.tokens))
            if value
        }
        require(ledger == {key: n for key, n in self._ledger.items() if n}, f"the ledger says {ledger}")

    def _on_tape(self, effect: AppendTape) -> None:
        record: Mapping[str, Any] = effect.record
        match record.get("event"):
            case None:
                self._check_commit(record)
            case "carried":
                self._into = record["into"]
            case "rejected":
                self._released |= "released" in record
            case "carry_dropped":
                self._give_up(record)
            case "attempt_discarded":
                self._settle_push()
                attempt = self._attempts[record["step"]]
                lost = 0 if attempt.emptied else len(attempt.taken)
                require(record["answers"] == lost, f"{lost} answers are lost, the tape says {record}")
            case "round_dropped":
                self._settle_push()
                self._settle_pulls()  # a retry may be given up at once
                attempt = self._attempts.pop(record["step"], None)
                lost = 0 if attempt is None or attempt.emptied else len(attempt.taken)
                require(record["answers"] == lost, f"{lost} answers are lost, the tape says {record}")
            case _:
                pass

    def _give_up(self, record: Mapping[str, Any]) -> None:
        waiting = self._waiting.get(record["fragment"], [])
        for taken in waiting:
            if taken.sent.learner == record["id"] and taken.sent.push.global_step == record["step"]:
                waiting.remove(taken)
                return
        require(False, f"nothing waits of what the tape gives up: {record}")

    def _check_commit(self, record: Mapping[str, Any]) -> None:
        require(
            record["step"] == self._taped + 1, f"the tape tells step {record['step']} after {self._taped}"
        )
        require(record["step"] == self.committed, f"the tape tells step {record['step']} before its commit")
        self._taped += 1
        attempt = self._closed
        assert attempt is not None
        told = sorted((each["id"], each["base_version"], each["c_tokens"]) for each in record["responders"])
        pushes = [(taken.sent.learner, taken.sent.push) for taken in attempt.taken]
        merged = sorted((learner, push.base_version, push.c_tokens) for learner, push in pushes)
        require(told == merged, f"the tape tells answers {told} of step {record['step']}, not {merged}")
        members = [Link(each["id"], each["generation"]) for each in record["expected_members"]]
        if not self._config.fixed_roster:
            require(members == sorted(attempt.slots.values()), f"the tape tells members {members}")
        require(
            record["quorum"] == attempt.k, f"K was frozen at {attempt.k}, the tape says {record['quorum']}"
        )
        require(record["attempt"] == attempt.number, "the tape tells another attempt")
        self._check_quorum(record)

    def _check_quorum(self, record: Mapping[str, Any]) -> None:
        """A committed round had its quorum: of answers, of capacity, or softly."""
        share, soft = self._config.quorum_capacity, self._config.soft_deadline_s
        enough = len(record["responded"]) >= record["quorum"] >= 1
        if share is not None:
            late = soft is not None and record["ms"] >= 1000 * soft
            enough = record["capacity_share"] >= share * (1 - 1e-9) or (late and enough)
        require(enough, f"closed without a quorum: {record}")
