"""What must hold after every effect of the coordinator, whatever the learners and the network do.

The watcher knows only what goes in and what comes out. Each push of a simulation carries its own number in
its delta, so that a delta can be followed into the merge that takes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

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
    Merge,
    Save,
    SaveKind,
    Send,
)
from yeto_syncer.core.events import Event, Merged, Received
from yeto_syncer.core.jobs import Link, MergeJob


@dataclass(frozen=True, slots=True)
class Sent:
    """A push that was fed to the coordinator."""

    link: Link
    step: int
    attempt: int
    base: int
    c_steps: int
    c_tokens: int


def number_of(delta: bytes | bytearray | memoryview) -> int:
    """The number of a push: the first value of its delta. The second one is 1, so sums count the merges."""
    return int(np.frombuffer(delta, np.float32)[0])


class Watcher:
    """Checks one incarnation of the syncer, from its start or from the checkpoint it resumed."""

    def __init__(self, config: Config, resumed: Snapshot | None) -> None:
        self._config = config
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
                    self.counts["refused"] += len(self._job.answers)
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
        for answer in job.answers:
            number = number_of(answer.delta)
            assert number not in self._merged_numbers, f"delta {number} was merged twice"
            self._merged_numbers.add(number)
            self.counts["merged"] += 1
            sent = self._sent[number]
            self._charge(sent.link.learner_id, 1, sent.c_steps, sent.c_tokens)

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
            case AppendTape(record):
                if record["event"] in ("attempt_discarded", "round_dropped"):
                    answers = record["answers"]
                    assert isinstance(answers, int)
                    self.counts["discarded"] += answers
                self.counts[f"tape {record['event']}"] += 1
            case Count(name, labels):
                self.counts[" ".join((name, *labels.values()))] += 1
                if name == "answers_accepted":
                    self.counts["accepted"] += 1
            case Exit():
                self._check_exit(effect)
                self.ended = effect
            case _:
                pass

    def _check_job(self, job: MergeJob) -> None:
        assert self._job is None, "two merges at a time"
        assert job.step == self.committed + 1, "merges run in step order"
        assert job.attempt == self._attempts[job.step]
        assert job.answers, "a round without an answer was merged"
        links = [answer.link for answer in job.answers]
        assert links == sorted(links), "answers are reduced in ascending order"
        assert len({link.learner_id for link in links}) == len(links), "one answer per learner"
        for answer in job.answers:
            sent = self._sent[number_of(answer.delta)]
            assert (sent.link, sent.step, sent.attempt) == (answer.link, job.step, job.attempt)
            base = self._versions.get(job.fragment_id, 0)
            assert sent.base <= base, "an answer from a future base was merged"
            if self._config.max_base_lag is not None:
                assert base - sent.base <= self._config.max_base_lag
            if not self._config.fixed_roster:
                key = (job.step, job.attempt, answer.link.learner_id)
                assert self._pulled[key] == answer.link, "an answer that was never asked for"
        if job.fragment_id in self._params:
            assert job.params is self._params[job.fragment_id]
        self._job = job

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
            assert lost == self.counts["discarded"] + self.counts["refused"], "an accepted answer was lost"
        if "no final acknowledgement" in effect.message:
            named = effect.message.split("from learner ")[1].split(" within")[0].split(", ")
            acked = {str(link.learner_id) for link in self._ack_fed}
            assert not acked & set(named), "an accepted ACK was lost"
