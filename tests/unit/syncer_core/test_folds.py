"""`--fold on-arrival`: answers leave for the sums of their attempt at once; the tape tells their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.simulation.driver import NUMEL, Driver, Peer
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.types import Dtype
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Exit, Fold, Merge
from yeto_syncer.core.events import MergeFailed
from yeto_syncer.core.jobs import Accumulator, Answer, FoldJob, Link, MergeJob, MergeResult
from yeto_syncer.core.merge import fold as run_fold
from yeto_syncer.core.merge import run as run_merge


def streaming(**settings: Any) -> Config:
    return config(fold="on-arrival", **settings)


def folded(run: Driver) -> list[tuple[int, int, int]]:
    """(step, attempt, learner) of every fold, in order."""
    return [(fold.job.step, fold.job.attempt, fold.job.answer.link.learner_id) for fold in run.of(Fold)]


# -- at the close --------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.fold.at_close")
def test_at_the_close_answers_wait_as_bytes_and_are_reduced_by_id() -> None:
    run, peers = training(config=config(), peers=None)
    for peer, value in ((peers[2], 3.0), (peers[0], 1.0), (peers[1], 2.0)):
        peer.push(peer.pulls()[0], value=value)
    assert not run.of(Fold)
    (merge,) = run.of(Merge)
    assert merge.job.folded is None
    assert [answer.link.learner_id for answer in merge.job.answers] == [0, 1, 2]
    assert [float(np.frombuffer(each.delta, np.float32)[0]) for each in merge.job.answers] == [1.0, 2.0, 3.0]
    record: Any = run.tape()[0]
    assert (record["fold"], [each["order"] for each in record["responders"]]) == ("at-close", [0, 1, 2])


@pytest.mark.rule("syncer.fold.at_close")
def test_at_the_close_a_round_can_be_joined_until_it_closes() -> None:
    run, peers = training(peers=2, config=config(quorum=2, min_start_learners=2, grace_ms=60_000))
    peers[0].answer(), peers[1].answer()
    assert len(run.tape()) == 1, "both had answered"
    peers[0].answer()
    late = Peer(run, 2, 50)
    assert late.answer() == 1
    peers[1].answer()
    assert run.tape()[1]["responded"] == [0, 1, 2]


# -- on arrival ----------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.fold.on_arrival")
def test_each_answer_is_folded_as_it_comes_and_its_bytes_are_let_go() -> None:
    run, peers = training(config=streaming(learner_weight="equal"))
    for peer, value in ((peers[2], 3.0), (peers[0], 1.0)):
        peer.push(peer.pulls()[0], value=value)
    assert folded(run) == [(1, 1, 2), (1, 1, 0)], "before the round has closed"
    first, second = (effect.job for effect in run.of(Fold))
    assert first.into is second.into and (first.answer.weight, first.answer.dtype) == (1.0, Dtype.F32)
    run.wait(1.0)
    (merge,) = run.of(Merge)
    assert merge.job.answers == () and merge.job.folded is first.into
    assert merge.job.folded.values.tolist() == [4.0, 4.0]
    record: Any = run.tape()[0]
    assert record["fold"] == "on-arrival" and record["missed_grace"] == [1]
    assert [(each["id"], each["order"]) for each in record["responders"]] == [(0, 1), (2, 0)]


def test_the_merge_waits_for_the_folds_of_its_round() -> None:
    run, peers = training(config=streaming(), hold_folds=True)
    for peer in peers:
        peer.answer()
    assert not run.of(Merge) and len(run.folding) == 3
    run.finish_fold(), run.finish_fold()
    assert not run.of(Merge)
    run.finish_fold()
    assert len(run.of(Merge)) == 1 and len(run.tape()) == 1


def test_a_new_attempt_has_sums_of_its_own() -> None:
    run, peers = training(config=streaming(), hold_folds=True)
    peers[0].push(peers[0].pulls()[0], value=500.0)
    run.wait(60.1)
    for peer in peers:
        peer.push(peer.pulls()[-1])
    run.finish_fold()  # of the attempt that is gone
    assert not run.of(Merge)
    for _ in range(3):
        run.finish_fold()
    (merge,) = run.of(Merge)
    assert merge.job.attempt == 2 and merge.job.folded is not None
    assert merge.job.folded.values.tolist() == [3.0] * NUMEL
    assert run.tape("attempt_discarded")[0]["answers"] == 1


def test_an_answer_without_weight_is_not_folded() -> None:
    run, peers = training(config=streaming())
    peers[0].push(peers[0].pulls()[0], c_tokens=0)
    peers[1].push(peers[1].pulls()[0])
    peers[2].push(peers[2].pulls()[0])
    assert folded(run) == [(1, 1, 1), (1, 1, 2)]
    assert [each["order"] for each in run.tape()[0]["responders"]] == [0, 1, 2]


@pytest.mark.rule("syncer.weight.zero")
@pytest.mark.parametrize("fold", ["at-close", "on-arrival"])
def test_without_any_weight_the_momentum_decays_and_nothing_is_nan(fold: str) -> None:
    results: dict[int, MergeResult | None] = {}

    def merge(job: MergeJob) -> MergeResult | None:
        results[job.step] = run_merge(job)
        return results[job.step]

    run, peers = training(config=config(fold=fold, learners=1, quorum=1), merge=merge, fold=run_fold)
    for tokens in (1, 1, 1, 0):  # step 4 is the second one of fragment 0
        peers[0].push(peers[0].pulls()[0], c_tokens=tokens, value=1.0)
    before, after = results[1], results[4]
    assert before is not None and after is not None
    assert before.momentum.tolist() == [-1.0, -1.0]
    assert after.momentum.tolist() == (np.float32(0.9) * before.momentum).tolist()
    assert run.tape()[3]["gnorm"] == 0.0


def test_a_merge_that_is_not_finite_refuses_what_was_folded_and_starts_anew() -> None:
    run, peers = training(config=streaming(), hold_merges=True)
    for peer in peers:
        peer.answer()
    run.finish_merge(finite=False)
    assert [record["reason"] for record in run.tape("rejected")] == ["NonFiniteMerge"] * 3
    for peer in peers:
        peer.answer()
    run.finish_merge()
    assert run.tape()[0]["attempt"] == 2
    assert run.of(Merge)[0].job.folded is not run.of(Merge)[1].job.folded


def test_a_failed_fold_ends_the_run() -> None:
    run, peers = training(config=streaming(), hold_folds=True)
    peers[0].answer()
    run.feed(MergeFailed(1, 1, "MemoryError: no memory"))
    assert isinstance(run.exit, Exit) and run.exit.code == 1 and "no memory" in run.exit.message


# -- the order is on the tape --------------------------------------------------------------------------------


class Recorder:
    """Keeps what was folded into each step and what came of it, as a capture of the pushes would."""

    def __init__(self) -> None:
        self.deltas: dict[tuple[int, Link], tuple[float, bytes]] = {}
        self.closed: dict[int, tuple[MergeJob, np.ndarray, np.ndarray]] = {}

    def fold(self, job: FoldJob) -> None:
        self.deltas[job.step, job.answer.link] = (job.answer.weight, bytes(job.answer.delta))
        run_fold(job)

    def merge(self, job: MergeJob) -> MergeResult | None:
        result = run_merge(job)
        assert result is not None
        self.closed[job.step] = (job, result.params, result.momentum)
        return result


@pytest.mark.rule("syncer.fold.on_arrival")
@pytest.mark.parametrize("seed", range(5))
def test_replaying_the_order_of_the_tape_gives_the_same_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    recorder = Recorder()
    run, peers = training(config=streaming(quorum=3, total_steps=9), merge=recorder.merge, fold=recorder.fold)
    for _ in range(8):
        for number in rng.permutation(3):
            peer = peers[number]
            value = float(rng.standard_normal() * 10.0 ** rng.integers(-3, 3))
            peer.push(peer.pulls()[0], value=value, c_steps=3, c_tokens=int(rng.integers(1, 999)))
    records = run.tape()
    assert len(records) == 8
    orders = set()
    for record in records:
        job, params, momentum = recorder.closed[int(record["step"])]
        sums = Accumulator(job.tensors)
        responders: list[dict[str, int]] = sorted(record["responders"], key=lambda each: each["order"])
        orders.add(tuple(each["id"] for each in responders))
        for each in responders:
            link = Link(each["id"], each["generation"])
            weight, delta = recorder.deltas[job.step, link]
            assert weight == each["weight"]
            answer = Answer(link, weight, Dtype.F32, delta)
            run_fold(
                FoldJob(job.step, 1, job.fragment_id, job.momentum, job.tensors, answer, job.correction, sums)
            )
        again = run_merge(MergeJob(**{**_fields(job), "folded": sums}))
        assert again is not None
        assert again.params.tobytes() == params.tobytes()
        assert again.momentum.tobytes() == momentum.tobytes()
        assert again.gnorm == record["gnorm"]
    assert len(orders) > 1, "the orders differed"


def _fields(job: MergeJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in MergeJob.__slots__}


# -- a stale base --------------------------------------------------------------------------------------------


def stale(run: Driver, peers: list[Peer], steps: int = 3) -> None:
    """Commit some steps, so that version 0 is too old for fragment 0."""
    for _ in range(steps):
        for peer in peers:
            peer.answer()


@pytest.mark.rule("syncer.push.slot_open")
@pytest.mark.rule("push_fragment.base_version.lag")
def test_a_stale_base_releases_the_slot_and_the_others_close_the_round() -> None:
    run, peers = training(config=streaming(quorum=3, max_base_lag=0))
    stale(run, peers)
    pull = peers[1].pulls()[0]
    peers[0].answer()
    peers[1].push(pull, base=0)
    assert run.tape("rejected")[-1]["released"] is True
    assert len(run.tape()) == 3
    peers[2].answer()
    record = run.tape()[3]
    assert (record["responded"], record["expected"], record["missed_grace"]) == ([0, 2], [0, 2], [])
    assert record["quorum"] == 2, "K shrinks with the members"
    peers[1].push(pull)
    assert run.tape("rejected")[-1]["reason"] == "OutOfRound"


def test_the_last_one_to_be_released_closes_the_round() -> None:
    run, peers = training(config=streaming(quorum=3, max_base_lag=0))
    stale(run, peers)
    peers[0].answer(), peers[2].answer()
    peers[1].push(peers[1].pulls()[0], base=0)
    assert run.tape()[3]["responded"] == [0, 2]


def test_a_released_member_is_not_expected_any_more() -> None:
    run, peers = training(config=streaming(quorum=3, max_base_lag=0))
    stale(run, peers)
    pull = peers[1].pulls()[0]
    peers[1].push(pull, base=0)
    peers[1].push(pull)
    assert [record["reason"] for record in run.tape("rejected")] == ["StaleBase", "UnexpectedMember"]


@pytest.mark.rule("syncer.push.slot_open")
def test_at_the_close_a_stale_base_keeps_the_slot_open() -> None:
    run, peers = training(config=config(quorum=3, max_base_lag=0))
    stale(run, peers)
    pull = peers[1].pulls()[0]
    peers[0].answer(), peers[2].answer()
    peers[1].push(pull, base=0)
    assert "released" not in run.tape("rejected")[-1] and len(run.tape()) == 3
    peers[1].push(pull)
    assert run.tape()[3]["responded"] == [0, 1, 2]


def test_a_stale_repeat_of_an_answer_releases_nothing() -> None:
    run, peers = training(config=streaming(quorum=3, max_base_lag=0))
    stale(run, peers)
    pull = peers[1].pulls()[0]
    peers[1].push(pull)
    peers[1].push(pull, base=0)
    assert "released" not in run.tape("rejected")[-1]
    peers[0].answer(), peers[2].answer()
    assert run.tape()[3]["responded"] == [0, 1, 2]


@pytest.mark.parametrize("carry", [False, True], ids=["no carry", "late carry"])
def test_a_stale_base_that_comes_too_late_changes_nothing_in_a_closed_round(carry: bool) -> None:
    run, peers = training(config=streaming(max_base_lag=3, late_carry=carry), hold_folds=True)
    for _ in range(6):
        for peer in peers:
            peer.answer()
        while run.folding:
            run.finish_fold()
    pull = peers[1].pulls()[0]
    peers[0].answer(), peers[2].answer()
    run.wait(1.0)
    assert len(run.folding) == 2, "the round has closed after its grace and waits for its folds"
    peers[1].push(pull, base=0)
    rejected = run.tape("rejected")[-1]
    assert rejected["reason"] == ("StaleBase" if carry else "OutOfRound") and "released" not in rejected
    run.finish_fold(), run.finish_fold()
    record = run.tape()[6]
    assert (record["responded"], record["expected"], record["missed_grace"]) == ([0, 2], [0, 1, 2], [1])


def test_a_fixed_roster_releases_nobody() -> None:
    run, peers = training(config=streaming(quorum=3, max_base_lag=0, grace_ms=0))
    stale(run, peers)
    pull = peers[1].pulls()[0]
    peers[0].answer(), peers[2].answer()
    peers[1].push(pull, base=0)
    assert len(run.tape()) == 3
    run.wait(60.1)
    assert peers[1].pulls() == [pull], "it is asked again"
    peers[1].push(pull)
    assert run.tape()[3]["responded"] == [0, 1, 2]


def test_a_round_that_released_everybody_waits_for_its_next_attempt() -> None:
    run, peers = training(config=streaming(quorum=3, max_base_lag=0))
    stale(run, peers)
    for peer in peers:
        peer.push(peer.pulls()[0], base=0)
    assert len(run.tape()) == 3
    run.wait(0.9)
    assert not any(peer.pulls() for peer in peers)
    run.wait(0.2)  # not the quorum timeout: nobody is left to wait for
    play(peers)
    record = run.tape()[3]
    assert (record["attempt"], record["responded"]) == (2, [0, 1, 2])


def test_a_released_learner_that_comes_back_joins_again() -> None:
    run, peers = training(config=streaming(quorum=3, max_base_lag=0))
    stale(run, peers)
    peers[1].push(peers[1].pulls()[0], base=0)
    peers[1].close()
    back = Peer(run, 1, 50)
    assert back.answer() == 1
    peers[0].answer(), peers[2].answer()
    assert run.tape()[3]["responded"] == [0, 1, 2]
