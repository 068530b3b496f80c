"""What must hold after every effect of the coordinator, whatever the learners and the network do.

The watcher knows only what goes in and what comes out. Each push of a simulation carries its own number in
its delta, so that a delta can be followed into the merge that takes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from yeto_proto._generated.messages import FinalAck, FinalManifest, PullReq, PushFragment, Shutdown
from yeto_proto.files import Snapshot
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import (
    Accept,
    AppendTape,
    CloseLink,
    Count,
    Deliver,
    Effect,
    Exit,
    Fold,
    Merge,
    Save,
    SaveKind,
    Send,
)
from yeto_syncer.core.events import Event, Merged, Received
from yeto_syncer.core.jobs import FoldJob, Link, MergeJob
from yeto_syncer.core.merge import weight as merge_weight


@dataclass(frozen=True, slots=True)
class Sent:
    """A push that was fed to the coordinator."""

    link: Link
    step: int
    attempt: int
    base: int
    c_steps: int
    c_tokens: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A delta that a merge takes."""

    number: int
    link: Link
    weight: float


def number_of(delta: bytes | bytearray | memoryview) -> int:
    """The number of a push: the first value of its delta. The second one is 1, so sums count the merges."""
    return int(np.frombuffer(delta, np.float32)[0])


class Watcher:
    """Checks one incarnation of the syncer, from its start or from the checkpoint it resumed."""

    def __init__(self, config: Config, num_fragments: int, resumed: Snapshot | None) -> None:
        self._config = config
        self._period = num_fragments
        self.start = 0 if resumed is None else resumed.global_step
        self.committed = self.start
        self._versions: dict[int, int] = {}
        self._params: dict[int, np.ndarray] = {}
        self._ledger: Counter[tuple[int, str]] = Counter()
        if resumed is not None:
            for fragment, state in enumerate(resumed.fragments):
                self._versions[fragment] = state.version
                self._params[fragment] = state.params
            for learner, entry in resumed.ledger.items():
                self._charge(learner, entry.merges, entry.steps, entry.tokens)
        self._sent: dict[int, Sent] = {}
        self._merged_numbers: set[int] = set()
        # (learner, fragment, base): from which connection its deltas came, and whether one was carried.
        self._anchors: dict[tuple[int, int, int], tuple[Link, bool]] = {}
        self._folds: dict[tuple[int, int], list[Taken]] = {}
        self._taken: list[Taken] = []
        self._job: MergeJob | None = None
        self._durable = self.start if resumed is not None else -1
        self._terminal_durable = False
        self._taped = self.start
        self._live: set[Link] = set()
        self._attempts: dict[int, int] = {}
        self._pulled: dict[tuple[int, int, int], Link] = {}
        self._manifested: set[Link] = set()
        self._ack_fed: set[Link] = set()
        self._finalized: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()
        self.ended: Exit | None = None

    # -- in --------------------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """An event is about to be fed."""
        match event:
            case Received(_, link, PushFragment() as push):
                self._sent[number_of(push.delta)] = Sent(
                    link, push.global_step, push.round_attempt, push.base_version, push.c_steps, push.c_tokens
                )
            case Received(_, link, FinalAck(final_global_step=step)):
                if link in self._manifested and step == self._config.total_steps:
                    self._ack_fed.add(link)
            case Merged(step, attempt, result) if self._job is not None:
                assert (step, attempt) == (self._job.step, self._job.attempt)
                if result is not None:
                    self._commit(self._job, result.params)
                else:
                    self.counts["refused"] += len(self._taken)
                self._job = None
            case _:
                pass

    def landed(self, save: Save) -> None:
        """A checkpoint is durable."""
        self._durable = max(self._durable, save.snapshot.global_step)
        self._terminal_durable |= save.kind is SaveKind.TERMINAL

    def _commit(self, job: MergeJob, params: np.ndarray) -> None:
        assert job.step == self.committed + 1, "a step was skipped or repeated"
        self.committed = job.step
        self._versions[job.fragment_id] = job.step
        self._params[job.fragment_id] = params
        for taken in self._taken:
            assert taken.number not in self._merged_numbers, f"delta {taken.number} was merged twice"
            self._merged_numbers.add(taken.number)
            self.counts["merged"] += 1
            sent = self._sent[taken.number]
            self._charge(sent.link.learner_id, 1, sent.c_steps, sent.c_tokens)
            self._spend(sent, job.fragment_id, carried=sent.step != job.step)

    def _spend(self, sent: Sent, fragment: int, *, carried: bool) -> None:
        """No part of an anchor's delta counts twice: one connection alone, and nothing after a carry."""
        anchor = (sent.link.learner_id, fragment, sent.base)
        link, spent = self._anchors.get(anchor, (sent.link, False))
        assert link == sent.link, f"an anchor was merged from {link} and from {sent.link}"
        assert not spent, "an anchor was merged again after its delta had been carried"
        self._anchors[anchor] = (link, carried)
        if carried:
            self.counts["carried"] += 1

    def _charge(self, learner: int, merges: int, steps: int, tokens: int) -> None:
        self._ledger[learner, "merges"] += merges
        self._ledger[learner, "steps"] += steps
        self._ledger[learner, "tokens"] += tokens

    # -- out -------------------------------------------------------------------------------------------------

    def effect(self, effect: Effect) -> None:
        """An effect is about to be performed."""
        assert self.ended is None, f"{effect} after the exit"
        match effect:
            case Accept(_, link, _):
                assert link not in self._live
                self._live.add(link)
            case CloseLink(link, _):
                self._live.discard(link)
            case Fold(job):
                self._fold(job)
            case Merge(job):
                self._check_job(job)
            case Deliver():
                self._check_delivery(effect)
            case Send(link, message):
                assert link in self._live, f"{message} to {link}, which is gone"
                self._check_message(link, message)
            case Save():
                self._check_snapshot(effect.snapshot)
            case AppendTape(record) if "event" not in record:
                assert record["step"] == self._taped + 1, "the tape skipped a step"
                assert record["step"] == self.committed
                self._taped += 1
                self._check_quorum(record)
            case AppendTape(record):
                if record["event"] in ("attempt_discarded", "round_dropped"):
                    answers = record["answers"]
                    assert isinstance(answers, int)
                    self.counts["discarded"] += answers
                self.counts[f"tape {record['event']}"] += 1
                if "released" in record:  # its learner may join again, on another connection
                    self.counts["released"] += 1
                    del self._pulled[record["step"], record["attempt"], record["id"]]
            case Count(name, labels):
                self.counts[" ".join((name, *labels.values()))] += 1
                if name in ("answers_accepted", "answers_late"):
                    self.counts["accepted"] += 1
            case Exit():
                self._check_exit(effect)
                self.ended = effect
            case _:
                pass

    def _fold(self, job: FoldJob) -> None:
        assert job.step > self.committed, "a fold into a round that is over"
        answer = job.answer
        folds = self._folds.setdefault((job.step, job.attempt), [])
        folds.append(Taken(number_of(answer.delta), answer.link, answer.weight))

    def _check_job(self, job: MergeJob) -> None:
        assert self._job is None, "two merges at a time"
        assert job.step == self.committed + 1, "merges run in step order"
        assert job.attempt == self._attempts[job.step]
        if job.folded is None:
            self._taken = [Taken(number_of(each.delta), each.link, each.weight) for each in job.answers]
            links = [taken.link for taken in self._taken]
            assert links == sorted(links), "answers are reduced in ascending order"
        else:
            assert not job.answers
            self._taken = self._folds.pop((job.step, job.attempt))
            assert job.folded.values[1] == len(self._taken), "a fold is missing, or not of this attempt"
        assert self._taken, "a round without an answer was merged"
        own: set[int] = set()
        for taken in self._taken:
            sent = self._sent[taken.number]
            assert sent.link == taken.link
            base = self._versions.get(job.fragment_id, 0)
            assert sent.base <= base, "an answer from a future base was merged"
            if self._config.max_base_lag is not None:
                assert base - sent.base <= self._config.max_base_lag
            self._check_weight(taken, sent, job.step)
            if sent.step == job.step:
                assert sent.attempt == job.attempt, "an answer of another attempt"
                assert sent.link.learner_id not in own, "one answer per learner"
                own.add(sent.link.learner_id)
            if not self._config.fixed_roster:
                key = (sent.step, sent.attempt, sent.link.learner_id)
                assert self._pulled[key] == taken.link, "an answer that was never asked for"
        if job.fragment_id in self._params:
            assert job.params is self._params[job.fragment_id]
        self._job = job

    def _check_weight(self, taken: Taken, sent: Sent, step: int) -> None:
        lag, rest = divmod(step - sent.step, self._period)
        assert rest == 0, "a delta of another fragment"
        assert 0 <= lag <= (self._config.max_carry_lag if self._config.late_carry else 0)
        equal = self._config.learner_weight == "equal"
        own = 1.0 if equal else merge_weight(sent.c_tokens, sent.c_steps)
        assert taken.weight == own * self._config.carry_decay**lag

    def _check_quorum(self, record: Mapping[str, Any]) -> None:
        """A committed round had its quorum: of answers, of capacity, or softly."""
        share, soft = self._config.quorum_capacity, self._config.soft_deadline_s
        assert 1 <= record["quorum"] <= min(self._config.quorum, len(record["expected"]))
        enough = len(record["responded"]) >= record["quorum"]
        if share is not None:
            late = soft is not None and record["ms"] >= 1000 * soft
            enough = record["capacity_share"] >= share * (1 - 1e-9) or (late and enough)
        assert enough, f"closed without a quorum: {record}"

    def _check_delivery(self, delivery: Deliver) -> None:
        for each in delivery.fragments:
            assert each.version == self._versions.get(each.fragment_id, 0), "not the committed version"
            if each.fragment_id in self._params:
                assert each.params is self._params[each.fragment_id], "not the committed bytes"
            if delivery.final:
                continue
            if self._config.per_round_checkpoint:
                assert self._durable >= each.version, "visible before it was durable"
            assert self.committed < self._config.total_steps, "the last step is never broadcast"
        if delivery.final:
            assert self.committed == self._config.total_steps
            if self._config.checkpoint_path is not None:
                assert self._terminal_durable, "the terminal checkpoint comes before the final cut"

    def _check_message(self, link: Link, message: object) -> None:
        match message:
            case PullReq(_, step, attempt):
                assert self.committed < step <= self._config.total_steps
                assert attempt >= self._attempts.get(step, 1), "attempts only grow"
                self._attempts[step] = attempt
                asked = self._pulled.setdefault((step, attempt, link.learner_id), link)
                if asked != link and not self._config.fixed_roster:
                    assert asked not in self._live, "a slot was taken from a live generation"
                    self._pulled[step, attempt, link.learner_id] = link
                assert link.learner_id not in self._config.observers, "an observer was pulled"
            case FinalManifest():
                self._manifested.add(link)
            case Shutdown():
                assert link in self._ack_fed, "SHUTDOWN without an ACK of that generation"
            case _:
                pass

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        assert snapshot.global_step == self.committed, "a checkpoint is the state at its step"
        for fragment, state in enumerate(snapshot.fragments):
            assert state.version == self._versions.get(fragment, 0)
            if fragment in self._params:
                assert state.params is self._params[fragment]
            assert state.momentum.shape == state.params.shape
        ledger = {
            (learner, field): getattr(entry, field)
            for learner, entry in snapshot.ledger.items()
            for field in ("merges", "steps", "tokens")
        }
        assert {key: n for key, n in ledger.items() if n} == {k: n for k, n in self._ledger.items() if n}
        merges = sum(entry.merges for entry in snapshot.ledger.values())
        assert sum(float(state.params[1]) - 1.0 for state in snapshot.fragments) == merges

    def _check_exit(self, effect: Exit) -> None:
        if effect.code == 0 and self.committed == self._config.total_steps and self._ack_fed:
            lost = self.counts["accepted"] - self.counts["merged"]
            known = ("discarded", "refused", "tape carry_dropped")
            assert lost == sum(self.counts[name] for name in known), "an accepted answer was lost"
        if "no final acknowledgement" in effect.message:
            named = effect.message.split("from learner ")[1].split(" within")[0].split(", ")
            acked = {str(link.learner_id) for link in self._ack_fed}
            assert not acked & set(named), "an accepted ACK was lost"
