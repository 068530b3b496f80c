"""`--late-carry`: what is too late for its round joins the next one of its fragment, once for each anchor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, training
from yeto_proto._generated.files import TAPE
from yeto_proto._generated.messages import PullReq
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Fold, Merge
from yeto_syncer.core.events import Stop


def carrying(**settings: Any) -> Config:
    """Three learners, K = 2, a grace of 1 s, one round at a time on three fragments: steps 1, 4, 7, 10 are of
    fragment 0."""
    return config(fold="on-arrival", late_carry=True, learner_weight="equal", **settings)


def step_without(run: Driver, peers: list[Peer], late: Peer) -> PullReq:
    """All but one answer the round that gathers, and it closes; returns what the late one was asked."""
    (pull,) = late.pulls()
    for peer in peers:
        if peer is not late:
            peer.answer()
    run.wait(1.0)
    return pull


def send_late(peer: Peer, pull: PullReq, **changes: Any) -> None:
    """Answer a pull from the version that its round started from."""
    peer.push(pull, **{"base": max(pull.global_step - 3, 0), **changes})


def steps(peers: list[Peer], count: int) -> None:
    """Everybody answers the next `count` rounds."""
    for _ in range(count):
        for peer in peers:
            peer.answer()


def reasons(run: Driver) -> list[object]:
    return [record["reason"] for record in run.tape("rejected")]


def responders(run: Driver, step: int) -> list[tuple[int, int]]:
    """(learner, lag) of what was merged in a step."""
    record: Any = run.tape()[step - 1]
    assert record["step"] == step
    return [(each["id"], each["lag"]) for each in record["responders"]]


# -- carrying ------------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.carry.late")
def test_a_late_answer_joins_the_next_round_of_its_fragment() -> None:
    run, peers = training(config=carrying(carry_decay=0.5))
    late = step_without(run, peers, peers[2])
    assert responders(run, 1) == [(0, 0), (1, 0)]
    send_late(peers[2], late, value=9.0, c_steps=7, c_tokens=5)
    assert run.tape("carried") == [
        {"event": "carried", "id": 2, "generation": 12, "step": 1, "fragment": 0, "attempt": 1, "into": 4}
    ]
    assert list(run.tape("carried")[0]) == list(TAPE["carried"])
    assert not run.of(Fold)[2:], "it waits as the bytes that came"
    steps(peers, 2)
    assert responders(run, 3) == [(0, 0), (1, 0), (2, 0)]
    fold = run.of(Fold)[-1].job
    assert (fold.step, fold.answer.link.learner_id, fold.answer.weight) == (4, 2, 0.5)
    assert np.frombuffer(fold.answer.delta, np.float32)[0] == 9.0
    steps(peers, 1)
    record: Any = run.tape()[3]
    assert responders(run, 4) == [(0, 0), (1, 0), (2, 0), (2, 1)]
    carried = record["responders"][-1]
    assert (carried["weight"], carried["base_version"], carried["staleness"]) == (0.5, 0, 1)
    assert (carried["c_steps"], carried["c_tokens"], carried["order"]) == (7, 5, 0)
    assert (record["responded"], record["sync/responders"]) == ([0, 1, 2], 4)


def test_a_late_answer_may_start_from_the_version_that_its_round_has_made() -> None:
    """The broadcast of the round came before the learner got to answer it."""
    run, peers = training(config=carrying())
    late = step_without(run, peers, peers[2])
    send_late(peers[2], late, base=1)
    steps(peers[:2], 1)
    run.wait(1.0)
    assert run.tape("carried")[0]["into"] == 4 and not reasons(run)


@pytest.mark.rule("syncer.carry.late")
def test_a_late_answer_joins_at_once_when_the_next_round_gathers() -> None:
    run, peers = training(config=carrying(carry_decay=0.5))
    late = step_without(run, peers, peers[2])
    steps(peers, 2)
    peers[0].answer()
    send_late(peers[2], late)
    assert [fold.job.answer.weight for fold in run.of(Fold) if fold.job.step == 4] == [1.0, 0.5]
    peers[1].answer(), peers[2].answer()
    assert responders(run, 4) == [(0, 0), (1, 0), (2, 0), (2, 1)]


@pytest.mark.rule("syncer.carry.late")
def test_the_weight_decays_with_each_round_of_lag_and_the_lag_is_bounded() -> None:
    run, peers = training(config=carrying(carry_decay=0.5, max_carry_lag=2))
    first = step_without(run, peers, peers[2])
    steps(peers, 2)
    second = step_without(run, peers, peers[2])  # step 4
    send_late(peers[2], first)  # two rounds late
    send_late(peers[2], second, base=1)
    steps(peers, 3)
    assert responders(run, 7) == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2)]
    weights = [each["weight"] for each in run.tape()[6]["responders"]]
    assert weights == [1.0, 1.0, 1.0, 0.5, 0.25]
    third = step_without(run, peers, peers[2])  # step 8, of fragment 1
    steps(peers, 2)
    step_without(run, peers, peers[2])  # step 11
    assert run.tape()[-1]["step"] == 11
    send_late(peers[2], third)
    assert reasons(run) == ["OutOfRound"], "step 14 is beyond the last one"


def test_what_is_too_late_for_every_round_is_refused() -> None:
    run, peers = training(config=carrying(max_carry_lag=1))
    first = step_without(run, peers, peers[2])
    steps(peers, 2)
    step_without(run, peers, peers[2])
    send_late(peers[2], first)
    assert reasons(run) == ["OutOfRound"]


def test_without_the_flag_a_late_answer_is_out_of_round() -> None:
    run, peers = training(config=config(fold="on-arrival"))
    send_late(peers[2], step_without(run, peers, peers[2]))
    assert reasons(run) == ["OutOfRound"]


def test_only_what_its_own_round_has_missed_is_carried() -> None:
    run, peers = training(config=carrying())
    late = step_without(run, peers, peers[2])
    stranger = Peer(run, 2, 77)
    send_late(stranger, late, base=0)
    send_late(peers[0], late, base=0)  # it has answered
    send_late(peers[2], late, attempt=2, base=0)
    send_late(peers[2], late, base=2)
    peers[2].push(PullReq(1, 1, 1), base=0)
    send_late(peers[2], late, base=0)
    send_late(peers[2], late, base=0)
    assert reasons(run) == [
        *("OutOfRound", "OutOfRound", "OutOfRound", "FutureBase", "OutOfRound", "OutOfRound")
    ]
    assert len(run.tape("carried")) == 1


def test_the_ledger_counts_what_was_carried() -> None:
    run, peers = training(config=carrying(checkpoint_path="state.ckpt", checkpoint_every=4))
    send_late(peers[2], step_without(run, peers, peers[2]), c_steps=7, c_tokens=5)
    steps(peers, 3)
    assert run.disk is not None
    entry = run.disk.ledger[2]
    assert (entry.merges, entry.steps, entry.tokens) == (4, 10, 8)


def test_a_late_answer_of_a_learner_that_has_left_is_merged_all_the_same() -> None:
    run, peers = training(config=carrying())
    send_late(peers[2], step_without(run, peers, peers[2]))
    peers[2].close()
    for _ in range(3):
        peers[0].answer(), peers[1].answer()
        run.wait(1.0)
    assert responders(run, 4) == [(0, 0), (1, 0), (2, 1)]


def test_a_base_too_old_for_the_next_round_is_stale() -> None:
    run, peers = training(config=carrying(max_base_lag=4))
    steps(peers, 3)
    late = step_without(run, peers, peers[2])  # step 4, base 1; the next one starts from version 4
    send_late(peers[2], late, base=1)
    assert len(run.tape("carried")) == 1
    steps(peers, 2)
    late = step_without(run, peers, peers[2])  # step 7, base 4; the next one starts from version 7
    send_late(peers[2], late, base=1)
    assert reasons(run) == ["StaleBase"]
    send_late(peers[2], late, base=4)
    assert len(run.tape("carried")) == 2


# -- carried deltas as answers -------------------------------------------------------------------------------


def test_a_carried_delta_is_no_answer_of_its_learner() -> None:
    run, peers = training(config=carrying(quorum=1, grace_ms=0))
    peers[0].answer()
    run.wait(0.0)
    peers[2].push(PullReq(0, 1, 1), base=0)
    for _ in range(2):
        peers[0].answer()
    assert run.tape()[-1]["step"] == 3
    run.wait(30.0)
    assert run.tape()[-1]["step"] == 3, "step 4 holds a delta and no answer"
    peers[1].push(peers[1].pulls()[-1])
    assert responders(run, 4) == [(1, 0), (2, 1)]


@pytest.mark.rule("syncer.carry.late")
def test_with_carry_answers_round_it_counts_for_k_and_for_all_answered() -> None:
    run, peers = training(config=carrying(quorum=1, grace_ms=0, carry_answers_round=True))
    peers[0].answer()
    peers[2].push(PullReq(0, 1, 1), base=0)
    for _ in range(2):
        peers[0].answer()
    assert responders(run, 4) == [(2, 1)], "K is 1, and it was there at the launch"
    record: Any = run.tape()[3]
    assert (record["responded"], record["missed_grace"], record["grace_ms"]) == ([2], [0, 1], 0)


def test_all_answered_counts_carried_members_once() -> None:
    run, peers = training(config=carrying(carry_answers_round=True, grace_ms=600_000))
    send_late(peers[2], step_without_grace(run, peers))
    steps(peers, 2)
    peers[2].answer()
    peers[0].answer()
    assert run.tape()[-1]["step"] == 3
    peers[1].answer()
    assert responders(run, 4) == [(0, 0), (1, 0), (2, 0), (2, 1)]


def step_without_grace(run: Driver, peers: list[Peer]) -> PullReq:
    """As `step_without` the last learner, through a grace window of 600 s."""
    (pull,) = peers[2].pulls()
    peers[0].answer(), peers[1].answer()
    run.wait(600.0)
    return pull


@pytest.mark.rule("syncer.late_joiner.joins")
def test_a_late_joiner_does_not_join_a_round_with_a_carried_delta_of_its_learner() -> None:
    run, peers = training(config=carrying())
    send_late(peers[2], step_without(run, peers, peers[2]))
    peers[2].close()
    for _ in range(2):
        peers[0].answer(), peers[1].answer()
        run.wait(1.0)
    assert run.tape()[-1]["step"] == 3
    back = Peer(run, 2, 50)
    assert not back.pulls()
    peers[0].answer(), peers[1].answer()
    assert responders(run, 4) == [(0, 0), (1, 0), (2, 1)]


# -- retries, stops ------------------------------------------------------------------------------------------


def test_a_round_that_starts_anew_loses_what_was_carried_into_it() -> None:
    run, peers = training(config=carrying(quorum=3, quorum_timeout_s=60, grace_ms=0))
    retry = step_without(run, peers, peers[2])
    assert not run.tape(), "K is 3"
    run.wait(60.0)
    peers[0].close()  # the next attempts capture two
    run.wait(60.0)
    peers[1].push(peers[1].pulls()[-1])
    peers[2].push(peers[2].pulls()[-1])
    assert responders(run, 1) == [(1, 0), (2, 0)]
    peers[2].push(retry, attempt=1, base=0)
    assert reasons(run) == ["OutOfRound"], "a discarded attempt is not late, it is gone"


def test_a_retry_frees_the_anchor_of_a_carried_delta() -> None:
    run, peers = training(config=carrying(quorum=2, quorum_timeout_s=60))
    send_late(peers[2], step_without(run, peers, peers[2]))
    steps(peers, 2)
    peers[2].push(peers[2].pulls()[0], base=0)
    assert reasons(run) == ["Duplicate"], "its anchor was carried"
    run.wait(60.1)  # step 4 had the carried delta and no answer
    assert run.tape("attempt_discarded")[-1]["answers"] == 1
    peers[2].push(peers[2].pulls()[-1], base=0)
    peers[0].push(peers[0].pulls()[-1])
    peers[1].push(peers[1].pulls()[-1])
    assert responders(run, 4) == [(0, 0), (1, 0), (2, 0)]


def test_a_round_that_is_tried_again_gives_up_what_was_late_for_it() -> None:
    run, peers = training(config=carrying(), hold_merges=True)
    late = step_without(run, peers, peers[2])
    send_late(peers[2], late)
    assert len(run.tape("carried")) == 1
    run.finish_merge(finite=False)
    assert run.tape("carry_dropped") == [
        {
            "event": "carry_dropped",
            "id": 2,
            "generation": 12,
            "step": 1,
            "fragment": 0,
            "attempt": 1,
            "reason": "retry",
        }
    ]
    assert list(run.tape("carry_dropped")[0]) == list(TAPE["carry_dropped"])
    for peer in peers:
        peer.push(peer.pulls()[-1], base=0)
    run.finish_merge()
    assert responders(run, 1) == [(0, 0), (1, 0), (2, 0)]


def test_an_older_delta_joins_the_round_that_is_tried_again() -> None:
    run, peers = training(config=carrying())
    send_late(peers[2], step_without(run, peers, peers[2]))
    steps(peers, 2)
    run.hold_merges = True
    steps(peers, 1)
    first = run.of(Merge)[-1].job
    run.finish_merge(finite=False)
    assert [record["reason"] for record in run.tape("rejected")] == ["NonFiniteMerge"] * 4
    assert run.of(Merge)[-1].job is first
    steps(peers, 1)
    run.finish_merge()
    assert responders(run, 4) == [(0, 0), (1, 0), (2, 0)], "it was refused with the attempt that held it"


def test_a_late_answer_while_nobody_can_be_captured_waits_for_the_capture() -> None:
    run, peers = training(config=carrying(max_carry_lag=3), hold_merges=True)
    late = step_without(run, peers, peers[2])
    for _ in range(2):
        run.finish_merge()
        steps(peers, 1)
    run.finish_merge()
    steps(peers[:2], 1)
    run.wait(1.0)
    assert run.merging is not None and run.merging.step == 4
    for peer in peers[:2]:
        peer.close()
    run.hold_deliveries = True
    Peer(run, 2, 50)  # supersedes, and is not caught up while it is held
    run.finish_merge(finite=False)
    assert not run.tape("attempt_discarded"), "nobody can be captured"
    send_late(peers[2], late, base=0)
    assert len(run.tape("carried")) == 1
    run.deliver()
    assert [fold.job.answer.link.learner_id for fold in run.of(Fold)][-1] == 2
    assert run.of(Fold)[-1].job.attempt == 2


def test_a_stop_gives_up_what_waits_for_a_round_that_will_not_come() -> None:
    run, peers = training(config=carrying(checkpoint_path="state.ckpt"))
    send_late(peers[2], step_without(run, peers, peers[2]))
    late = step_without(run, peers, peers[1])
    run.feed(Stop(15))
    assert [record["reason"] for record in run.tape("carry_dropped")] == ["stop"]
    send_late(peers[1], late)
    assert reasons(run) == ["OutOfRound"], "no later round of its fragment will gather"


# -- one delta for each anchor -------------------------------------------------------------------------------


@pytest.mark.rule("syncer.carry.once")
@pytest.mark.parametrize("fold", ["at-close", "on-arrival"])
def test_another_connection_may_not_repeat_an_anchor_that_was_merged(fold: str) -> None:
    run, peers = training(config=config(fold=fold, quorum=3))
    steps(peers, 3)  # fragment 0 is at version 1 by the answers from version 0
    peers[2].close()
    back = Peer(run, 2, 50)
    (pull,) = back.pulls()
    assert pull.global_step == 4
    back.push(pull, base=0)
    assert reasons(run) == ["Duplicate"]
    assert "anchor" in run.logged("dropped")[-1].message
    back.push(pull, base=1)
    peers[0].answer(), peers[1].answer()
    assert run.tape()[3]["responded"] == [0, 1, 2], "the slot stayed open"


@pytest.mark.rule("syncer.carry.once")
def test_an_anchor_stays_spent_when_the_connection_that_used_it_is_long_gone() -> None:
    run, peers = training(config=config(quorum=2))
    (pull,) = peers[2].pulls()
    peers[2].push(pull)
    peers[2].close()  # before its answer is merged
    peers[0].answer(), peers[1].answer()
    assert run.tape()[0]["responded"] == [0, 1, 2]
    for generation in (50, 51):
        back = Peer(run, 2, generation)
        back.close()
    for _ in range(2):
        peers[0].answer(), peers[1].answer()
        run.wait(1.0)
    back = Peer(run, 2, 52)
    back.push(back.pulls()[0], base=0)
    assert reasons(run) == ["Duplicate"]


@pytest.mark.rule("syncer.carry.once")
def test_an_answer_that_is_still_in_its_round_counts_too() -> None:
    """A superseded connection answers late what its successor has answered in time, from the same anchor."""
    run, peers = training(config=carrying(pipeline=1))
    late = step_without(run, peers, peers[2])
    steps(peers, 2)
    new = Peer(run, 2, 50)
    peers[2].close()  # the slot of step 4 goes over
    new.push(new.pulls()[0], base=0)
    assert run.of(Fold)[-1].job.answer.link == new.link
    peers[0].answer(), peers[1].answer()
    assert responders(run, 4)[-1] == (2, 0)
    assert late.global_step == 1


def test_one_connection_may_answer_consecutive_rounds_from_one_anchor() -> None:
    run, peers = training(config=config(quorum=3))
    steps(peers, 3)
    peers[2].push(peers[2].pulls()[0], base=0)
    peers[0].answer(), peers[1].answer()
    assert run.tape()[3]["responded"] == [0, 1, 2] and not reasons(run)


@pytest.mark.rule("syncer.carry.once")
def test_an_anchor_that_was_carried_is_spent_for_every_connection() -> None:
    run, peers = training(config=carrying())
    send_late(peers[2], step_without(run, peers, peers[2]))
    steps(peers, 2)
    peers[2].push(peers[2].pulls()[0], base=0)  # it waits
    steps(peers[:2], 1)
    run.wait(1.0)
    assert responders(run, 4) == [(0, 0), (1, 0), (2, 1)]
    steps(peers, 2)
    peers[2].push(peers[2].pulls()[0], base=0)  # it was merged
    assert reasons(run) == ["Duplicate"] * 2


def test_a_restarted_syncer_holds_nothing_and_takes_such_a_delta_once() -> None:
    run, peers = training(config=config(quorum=3, checkpoint_path="state.ckpt", checkpoint_every=1))
    steps(peers, 3)
    assert run.disk is not None
    again = Driver(config(quorum=3, checkpoint_path="state.ckpt", resume=True), run.disk)
    back = [Peer(again, learner, 50 + learner) for learner in range(3)]
    back[2].push(back[2].pulls()[0], base=0)
    back[0].answer(), back[1].answer()
    assert again.tape()[0]["responded"] == [0, 1, 2]
    steps(back, 2)
    back[2].close()
    last = Peer(again, 2, 99)
    last.push(last.pulls()[0], base=0)
    assert reasons(again) == ["Duplicate"]
