"""Launch, capture, K, the checks of a push in their order, throttle, depth, grace and retry."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.errors import WrongLearner
from yeto_proto._generated.messages import Heartbeat, PullReq
from yeto_syncer.core.effects import Merge, Send


def rejected(run: Driver) -> list[object]:
    return [record["reason"] for record in run.tape("rejected")]


# -- launch --------------------------------------------------------------------------------------------------


def test_pulls_go_out_in_ascending_order_with_attempt_one() -> None:
    run, peers = training(config=config())
    sends = run.of(Send)
    assert [send.link for send in sends] == [peer.link for peer in peers]
    assert {send.message for send in sends} == {PullReq(0, 1, 1)}


def test_fragments_follow_the_step_round_robin() -> None:
    run, peers = training(config=config(total_steps=7))
    play(peers)
    assert [(record["step"], record["fragment"]) for record in run.tape()] == [
        (1, 0), (2, 1), (3, 2), (4, 0), (5, 1), (6, 2), (7, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("pipeline", "depth"), [(0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_depth_is_bounded_by_the_fragments(pipeline: int, depth: int) -> None:
    _, peers = training(config=config(pipeline=pipeline))
    assert [(pull.global_step, pull.fragment_id) for pull in peers[0].pulls()] == [
        (step, step - 1) for step in range(1, depth + 1)
    ]


@pytest.mark.rule("syncer.quorum.frozen")
def test_k_is_frozen_from_the_captured_members() -> None:
    run, peers = training(config=config(quorum=3))
    peers[1].close()
    peers[2].close()
    run.wait(60.0)  # the attempt that captured three expires; the next one captures one
    pull = peers[0].pulls()[-1]
    assert pull.round_attempt == 2
    peers[0].push(pull)
    record = run.tape()[0]
    assert (record["quorum"], record["expected"], record["grace_ms"]) == (1, [0], None)


def test_launch_to_launch_throttle_by_the_minimum_interval() -> None:
    run, peers = training(config=config(min_round_interval_ms=5000))
    peers[0].answer(), peers[1].answer(), peers[2].answer()
    assert len(run.tape()) == 1
    run.wait(4.9)
    assert not peers[0].pulls()
    run.wait(0.2)
    assert [pull.global_step for pull in peers[0].pulls()] == [2]


def test_throttle_by_the_slowest_captured_member() -> None:
    """H = 24 inner steps of 2 s over 3 fragments: 16 s from launch to launch."""
    run, peers = training(config=config(sync_interval_steps=24.0))
    peers[0].heartbeat(10)
    run.wait(2.0)
    peers[0].heartbeat(11)
    play(peers)  # round 1 was launched without an estimate, so round 2 follows at once
    assert len(run.tape()) == 2
    run.wait(15.9)
    assert not peers[0].pulls()
    run.wait(0.2)
    assert [pull.global_step for pull in peers[0].pulls()] == [3]


@pytest.mark.parametrize("how", ["is measured anew", "leaves", "dials again"])
def test_a_member_that_was_slow_for_a_moment_does_not_hold_the_others_for_long(how: str) -> None:
    """H = 24 inner steps over 3 fragments: 8 s from launch to launch at 1 s a step. A pause of 600 s is one
    step of 600 s."""
    run, peers = training(config=config(sync_interval_steps=24.0, quorum_timeout_s=900))
    for peer in peers:
        peer.heartbeat(10)
    run.wait(1.0)
    peers[0].heartbeat(11), peers[1].heartbeat(11)
    run.wait(599.0)
    peers[0].heartbeat(610), peers[1].heartbeat(610), peers[2].heartbeat(11)
    play(peers)
    launched = run.now  # round 2 was launched while a step of learner 2 took 600 s
    assert len(run.tape()) == 2
    if how == "leaves":
        peers[2].close()
    elif how == "dials again":
        Peer(run, 2, 50)
    else:
        for step in range(1, 11):
            run.wait(30.0)
            for peer, at in zip(peers, (610, 610, 11), strict=True):
                peer.heartbeat(at + 30 * step)
    run.wait(8.1)
    assert [pull.global_step for pull in peers[0].pulls()] == [3]
    assert run.now - launched < 320.0, "it was 4800 s"


def test_the_interval_never_gets_longer_than_at_the_launch() -> None:
    run, peers = training(config=config(sync_interval_steps=24.0))
    for peer in peers:
        peer.heartbeat(10)
    run.wait(2.0)
    for peer in peers:
        peer.heartbeat(11)
    play(peers)
    run.wait(15.0)
    for peer in peers:
        peer.heartbeat(12)  # a step of 15 s
    assert not peers[0].pulls()
    run.wait(1.1)
    assert [pull.global_step for pull in peers[0].pulls()] == [3]


def test_nobody_to_capture_means_no_launch_until_somebody_is_there() -> None:
    run, peers = training(config=config())
    for peer in peers:
        peer.answer()
    for peer in peers:
        peer.close()
    run.wait(60.0)
    launched = len(run.of(Send))
    back = Peer(run, 1, 50)
    assert [pull.global_step for pull in back.pulls()] == [2]
    assert len(run.of(Send)) == launched + 1


# -- checks of a push ----------------------------------------------------------------------------------------


@pytest.mark.rule("push_fragment.learner_id.must")
def test_another_learner_id_ends_the_connection() -> None:
    run, peers = training(config=config())
    peers[0].push(peers[0].pulls()[0], learner_id=1)
    assert isinstance(peers[0].refused, WrongLearner)
    assert peers[1].connected
    assert run.core.phase.value == "training"


@pytest.mark.rule("heartbeat.learner_id.must")
def test_a_heartbeat_of_another_learner_ends_the_connection() -> None:
    _, peers = training(config=config())
    peers[0].send(Heartbeat(2, 5))
    assert isinstance(peers[0].refused, WrongLearner)


@pytest.mark.parametrize(
    ("pull", "changes", "reason"),
    [
        (PullReq(1, 2, 1), {}, "OutOfRound"),  # that step is not in flight
        (PullReq(1, 1, 1), {}, "OutOfRound"),  # another fragment
        (PullReq(0, 1, 2), {}, "OutOfRound"),  # another attempt
        (PullReq(0, 1, 1), {"base": 1}, "FutureBase"),
    ],
)
@pytest.mark.rule("push_fragment.global_step.round")
@pytest.mark.rule("push_fragment.round_attempt.round")
@pytest.mark.rule("push_fragment.base_version.must")
@pytest.mark.rule("syncer.push.slot_open")
def test_a_rejected_push_keeps_its_slot_open(pull: PullReq, changes: dict[str, Any], reason: str) -> None:
    run, peers = training(config=config())
    peers[0].push(pull, **changes)
    assert rejected(run) == [reason]
    assert run.counted("rejected", reason=reason) == 1
    assert peers[0].connected
    play(peers)
    assert run.tape()[0]["responded"] == [0, 1, 2]


@pytest.mark.rule("push_fragment.round_attempt.member")
@pytest.mark.rule("syncer.capture.frozen")
def test_a_generation_that_was_not_captured_may_not_answer() -> None:
    run, peers = training(config=config())
    new = Peer(run, 0, 99)
    new.push(PullReq(0, 1, 1))
    assert rejected(run) == ["UnexpectedMember"]
    peers[0].push(peers[0].pulls()[0])
    peers[1].answer(), peers[2].answer()
    assert run.tape()[0]["responded_members"][0] == {"id": 0, "generation": 10}


@pytest.mark.rule("push_fragment.base_version.lag")
@pytest.mark.rule("syncer.push.slot_open")
def test_a_base_beyond_the_lag_is_stale_and_the_slot_stays_open() -> None:
    run, peers = training(config=config(max_base_lag=3))
    for _ in range(6):  # steps 1..6: fragment 0 is at version 4
        for peer in peers:
            peer.answer()
    pull = peers[0].pulls()[0]
    assert (pull.global_step, pull.fragment_id) == (7, 0)
    peers[0].push(pull, base=0)
    assert rejected(run) == ["StaleBase"]
    peers[0].push(pull, base=1)
    peers[1].answer(), peers[2].answer()
    assert [each["staleness"] for each in run.tape()[-1]["responders"]] == [3, 0, 0]


def test_without_a_lag_any_older_base_is_admitted_and_logged() -> None:
    run, peers = training(config=config())
    for _ in range(3):
        for peer in peers:
            peer.answer()
    peers[0].push(peers[0].pulls()[0], base=0)
    assert run.logged("stale base-relative delta admitted")
    assert not rejected(run)


@pytest.mark.rule("push_fragment.first")
def test_the_first_valid_push_wins() -> None:
    run, peers = training(config=config())
    pull = peers[0].pulls()[0]
    peers[0].push(pull, value=1.0)
    peers[0].push(pull, value=500.0)
    assert rejected(run) == ["Duplicate"]
    peers[1].answer(), peers[2].answer()
    (merge,) = run.of(Merge)
    assert [bytes(answer.delta)[:4] for answer in merge.job.answers] == [b"\0\0\x80?"] * 3


def test_the_order_of_the_checks() -> None:
    """A push that breaks several rules is rejected for the first of them."""
    run, peers = training(config=config(max_base_lag=0))
    for _ in range(3):
        for peer in peers:
            peer.answer()
    stranger = Peer(run, 0, 77)
    stranger.push(PullReq(0, 4, 9), base=99)
    stranger.push(PullReq(0, 4, 1), base=99)
    pull = peers[0].pulls()[0]
    peers[0].push(pull)
    peers[0].push(pull, base=99)
    peers[0].push(pull, base=0)
    peers[0].push(pull)
    assert rejected(run) == ["OutOfRound", "UnexpectedMember", "FutureBase", "StaleBase", "Duplicate"]


def test_an_answer_after_the_round_closed_is_out_of_round() -> None:
    run, peers = training(config=config(), hold_merges=True)
    pull = peers[2].pulls()[0]
    peers[0].answer(), peers[1].answer()
    run.wait(1.0)
    assert run.merging is not None
    peers[2].push(pull)
    assert rejected(run) == ["OutOfRound"]


@pytest.mark.parametrize(
    ("weight", "expected"), [("tokens2-over-steps", [40.0, 0.0, 1.0]), ("equal", [1.0] * 3)]
)
def test_the_weight_is_the_one_that_is_used(weight: str, expected: list[float]) -> None:
    run, peers = training(config=config(learner_weight=weight))
    for peer, (steps, tokens) in zip(peers, [(10, 20), (5, 0), (1, 1)], strict=True):
        peer.push(peer.pulls()[0], c_steps=steps, c_tokens=tokens)
    (merge,) = run.of(Merge)
    assert [answer.weight for answer in merge.job.answers] == expected
    responders: Any = run.tape()[0]["responders"]
    assert [each["weight"] for each in responders] == expected
    assert sum(each["contribution"] for each in responders) == pytest.approx(1.0)


def test_all_weights_zero_commit_with_contribution_zero() -> None:
    run, peers = training(config=config())
    for peer in peers:
        peer.push(peer.pulls()[0], c_tokens=0)
    responders: Any = run.tape()[0]["responders"]
    assert [each["contribution"] for each in responders] == [0.0] * 3


# -- grace ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.quorum.reached")
def test_all_answers_close_the_round_at_once() -> None:
    run, peers = training(config=config(grace_ms=9000))
    run.wait(3.0)
    for peer in peers:
        peer.answer()
    record = run.tape()[0]
    assert (record["ms"], record["quorum_ms"], record["missed_grace"]) == (3000, 3000, [])


@pytest.mark.rule("syncer.grace.adaptive")
@pytest.mark.rule("syncer.quorum.reached")
def test_the_grace_window_waits_for_the_rest() -> None:
    run, peers = training(config=config(grace_ms=2000))
    run.wait(1.0)
    peers[0].answer(), peers[1].answer()
    run.wait(1.9)
    assert not run.tape()
    run.wait(0.2)
    record = run.tape()[0]
    assert (record["responded"], record["missed_grace"]) == ([0, 1], [2])
    assert record["missed_members"] == [{"id": 2, "generation": 12}]
    assert (record["quorum_ms"], record["grace_ms"], record["grace_waited_ms"]) == (1000, 2000, 2000)


@pytest.mark.rule("syncer.grace.adaptive")
def test_an_answer_inside_the_window_counts() -> None:
    run, peers = training(config=config(grace_ms=2000))
    peers[0].answer(), peers[1].answer()
    run.wait(1.5)
    peers[2].answer()
    record = run.tape()[0]
    assert (record["responded"], record["grace_ms"], record["grace_waited_ms"]) == ([0, 1, 2], 2000, 1500)


@pytest.mark.rule("syncer.grace.adaptive")
def test_after_the_quorum_only_the_grace_window_counts() -> None:
    run, peers = training(config=config(grace_ms=90_000, quorum_timeout_s=5))
    peers[0].answer(), peers[1].answer()
    run.wait(80.0)
    assert not run.tape() and not run.tape("attempt_discarded")
    run.wait(10.0)
    assert run.tape()[0]["attempt"] == 1


@pytest.mark.rule("syncer.heartbeat.repeated")
@pytest.mark.rule("syncer.grace.adaptive")
def test_the_window_adapts_to_the_slowest_captured_member() -> None:
    """gamma 0.5, tau 2, a step of 4 s, quorum after 4 s, no commit yet: 0.5 * (8 - 4 - 0) = 2 s."""
    run, peers = training(config=config(grace_ms=60_000, grace_gamma=0.5, grace_tau=2.0))
    peers[2].heartbeat(5)
    peers[0].heartbeat(5)
    run.wait(1.0)
    peers[0].heartbeat(6)
    run.wait(2.0)
    peers[2].heartbeat(5)  # the same step again: no sample, and no new reference point
    run.wait(1.0)
    peers[2].heartbeat(6)
    peers[0].answer(), peers[1].answer()
    run.wait(10.0)
    assert run.tape()[0]["grace_ms"] == 2000


def test_a_rejected_push_feeds_no_estimate() -> None:
    run, peers = training(config=config(grace_ms=60_000, grace_gamma=1.0, grace_tau=1.0))
    pull = peers[0].pulls()[0]
    peers[0].push(pull, base=9, local_step=1)
    run.wait(1.0)
    peers[0].push(pull, base=9, local_step=2)
    peers[0].push(pull, local_step=3)
    peers[1].answer()
    run.wait(59.0)
    assert not run.tape(), "no estimate: the full cap of 60 s"
    run.wait(1.1)
    assert run.tape()[0]["grace_ms"] == 60_000


def test_accepted_pushes_feed_the_estimate_and_the_commit_time_counts() -> None:
    run, peers = training(config=config(grace_ms=60_000, grace_gamma=1.0, grace_tau=1.0), hold_merges=True)
    for peer in peers:
        peer.push(peer.pulls()[0], local_step=10)
    run.wait(2.0)
    run.finish_merge()  # xi_sync = 2 s
    run.wait(6.0)
    peers[0].push(peers[0].pulls()[0], local_step=11)  # one step in 8 s
    peers[1].push(peers[1].pulls()[0], local_step=18)  # eight steps in 8 s
    run.wait(60.0)
    run.finish_merge()
    # At the quorum the attempt is 6 s old and the slowest step takes 8 s: 8 - 6 - 2 = 0.
    assert (run.tape()[1]["grace_ms"], run.tape()[1]["quorum_ms"]) == (0, 6000)


def test_a_reconnect_starts_with_a_blank_estimate() -> None:
    run, peers = training(config=config(grace_ms=60_000, learners=2, quorum=1))
    peers[0].heartbeat(1)
    run.wait(1.0)
    peers[0].heartbeat(2)
    peers[0].close()
    Peer(run, 0, 50)
    peers[1].answer()
    run.wait(60.0)
    assert run.tape()[0]["grace_ms"] == 60_000, "with the old estimate of 1 s it would be shorter"


# -- retry ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.retry.members")
def test_below_k_at_the_deadline_a_new_attempt_discards_the_answers() -> None:
    run, peers = training(config=config(quorum_timeout_s=60))
    stale = peers[0].pulls()[0]
    peers[0].push(stale, value=500.0)
    run.wait(59.9)
    assert not run.tape("attempt_discarded")
    run.wait(0.2)
    assert run.logged("new frozen-membership attempt")
    assert run.tape("attempt_discarded") == [
        {"event": "attempt_discarded", "step": 1, "fragment": 0, "attempt": 1, "answers": 1}
    ]
    peers[1].push(stale)
    assert rejected(run) == ["OutOfRound"], "an answer to the discarded attempt cannot enter its retry"
    (pull,) = peers[0].pulls()
    assert (pull.global_step, pull.round_attempt) == (1, 2)
    peers[0].push(pull)
    peers[1].push(peers[1].pulls()[-1])
    run.wait(1.0)
    record = run.tape()[0]
    assert (record["attempt"], record["quorum_ms"], record["responded"]) == (2, 100, [0, 1])
    assert bytes(run.of(Merge)[0].job.answers[0].delta)[:4] == b"\0\0\x80?"


def test_every_attempt_has_the_full_time() -> None:
    run, _ = training(config=config(quorum_timeout_s=60))
    run.wait(60.0 * 4 + 1)
    assert [record["attempt"] for record in run.tape("attempt_discarded")] == [1, 2, 3, 4]


@pytest.mark.rule("syncer.retry.members")
@pytest.mark.rule("syncer.quorum.frozen")
def test_a_retry_captures_whoever_is_there_also_below_the_quorum() -> None:
    run, peers = training(config=config(quorum=3))
    peers[0].close()
    peers[1].answer()
    peers[2].answer()
    run.wait(60.1)
    peers[1].push(peers[1].pulls()[-1])
    peers[2].push(peers[2].pulls()[-1])
    record = run.tape()[0]
    assert (record["attempt"], record["quorum"], record["expected"]) == (2, 2, [1, 2])


@pytest.mark.rule("syncer.retry.members")
def test_with_nobody_connected_the_attempt_and_its_answers_are_kept() -> None:
    run, peers = training(config=config())
    peers[0].answer()
    for peer in peers:
        peer.close()
    run.wait(200.0)
    assert not run.tape("attempt_discarded")
    back = Peer(run, 1, 50)
    (pull,) = back.pulls()
    assert (pull.global_step, pull.round_attempt) == (1, 1)
    back.push(pull)
    run.wait(1.0)
    assert run.tape()[0]["responded_members"] == [
        {"id": 0, "generation": 10},
        {"id": 1, "generation": 50},
    ]


@pytest.mark.rule("syncer.retry.members")
def test_the_kept_attempt_is_looked_at_every_second() -> None:
    """A stranger returns who cannot complete the kept attempt: within a second a new one captures it."""
    run, peers = training(config=config(quorum=3))
    peers[0].answer(), peers[1].answer()
    for peer in peers:
        peer.close()
    run.wait(100.5)
    back = Peer(run, 0, 50)  # its slot is answered: nothing to rebind
    assert not back.pulls()
    run.wait(1.0)
    assert [pull.round_attempt for pull in back.pulls()] == [2]


def test_retries_do_not_disturb_the_other_rounds_in_flight() -> None:
    run, peers = training(config=config(pipeline=2))
    second = [peer.pulls()[1] for peer in peers]
    for peer, pull in zip(peers, second, strict=True):
        peer.push(pull)
    assert not run.tape(), "step 2 is complete and waits for step 1"
    run.wait(60.1)
    for peer in peers:
        peer.push(peer.pulls()[0])
    assert [(record["step"], record["attempt"]) for record in run.tape()] == [(1, 2), (2, 1)]
