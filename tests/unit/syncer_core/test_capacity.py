"""`--quorum-capacity` and `--soft-deadline-s`: a quorum by what members can do, not by their number (D36)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, training
from yeto_syncer.core.config import Config
from yeto_syncer.core.steprate import capacities


def by_capacity(share: float, **settings: Any) -> Config:
    """Four learners, a capacity quorum, no grace."""
    values = {"learners": 4, "quorum": 1, "grace_ms": 0, **settings}
    return config(quorum_capacity=share, **values)


def started(share: float, paces: tuple[float | None, ...] = (), **settings: Any) -> tuple[Driver, list[Peer]]:
    """A run in step 2, which has captured everybody.

    Step 1 went to those that had their initial cut first. In it each learner with a pace has shown how many
    seconds one of its steps takes.
    """
    run, peers = training(config=by_capacity(share, **settings))
    known = [(pace, number) for number, pace in enumerate(paces) if pace is not None]
    for _, number in known:
        peers[number].heartbeat(10)
    since = run.now
    for pace, number in sorted(known):
        run.wait(pace - (run.now - since))
        peers[number].heartbeat(11)
    asked = [(peer, pull) for peer in peers for pull in peer.pulls()]
    for peer, pull in asked:
        peer.push(pull, local_step=1)
    assert len(run.tape()) == 1
    return run, peers


def rounds(run: Driver) -> list[dict[str, Any]]:
    """What was committed after step 1."""
    return run.tape()[1:]


def test_capacities() -> None:
    assert capacities([2.0, 4.0]) == [0.5, 0.25]
    assert capacities([2.0, None, 4.0]) == [0.5, 0.375, 0.25], "the mean of the known ones"
    assert capacities([None, None]) == [1.0, 1.0]
    assert capacities([0.0, 4.0]) == [0.25, 0.25], "a step that takes no time was not measured"
    assert capacities([]) == []


@pytest.mark.rule("syncer.quorum.capacity")
def test_a_round_closes_at_its_share_of_the_capacity() -> None:
    """Steps of 1, 2, 4 and 4 s: capacities 1, 1/2, 1/4, 1/4, in all 2."""
    run, peers = started(0.75, (1.0, 2.0, 4.0, 4.0))
    peers[0].answer()
    assert not rounds(run), "a half"
    peers[3].answer()
    assert not rounds(run), "0.625"
    peers[1].answer()
    assert rounds(run)[0]["responded"] == [0, 1, 3]
    assert rounds(run)[0]["capacity_share"] == 0.875


@pytest.mark.rule("syncer.quorum.capacity")
def test_two_fast_learners_outweigh_two_slow_ones() -> None:
    run, peers = started(0.75, (1.0, 1.0, 3.0, 3.0))
    peers[0].answer(), peers[1].answer()
    assert (rounds(run)[0]["responded"], rounds(run)[0]["capacity_share"]) == ([0, 1], 0.75)


def test_without_estimates_all_count_alike() -> None:
    run, peers = started(0.5)
    peers[2].answer()
    assert not rounds(run)
    peers[3].answer()
    assert (rounds(run)[0]["responded"], rounds(run)[0]["capacity_share"]) == ([2, 3], 0.5)


def test_a_member_without_an_estimate_has_the_mean_of_the_others() -> None:
    run, peers = started(0.5, (1.0, 2.0, None, None))
    peers[2].answer()
    assert not rounds(run), "3/4 of 3"
    peers[3].answer()
    assert rounds(run)[0]["capacity_share"] == 0.5


def test_capacities_are_fixed_at_the_capture() -> None:
    """A learner that turns out to be faster while the round gathers does not move its bar."""
    run, peers = started(0.5, (1.0, 1.0, 1.0, 1.0))
    run.wait(0.1)
    peers[3].heartbeat(1000)
    peers[0].answer()
    assert not rounds(run)
    peers[1].answer()
    assert rounds(run)[0]["capacity_share"] == 0.5


@pytest.mark.parametrize("learners", [3, 7, 10])
def test_a_share_of_one_takes_everybody_and_rounding_does_not_matter(learners: int) -> None:
    paces = tuple(0.1 + 0.3 * number for number in range(learners))
    run, peers = started(1.0, paces, learners=learners)
    for peer in peers[:-1]:
        peer.answer()
    assert not rounds(run)
    peers[-1].answer()
    assert rounds(run)[0]["capacity_share"] == 1.0


def test_the_grace_window_follows_a_capacity_quorum_too() -> None:
    run, peers = started(0.5, grace_ms=2000)
    peers[0].answer(), peers[1].answer()
    run.wait(1.0)
    peers[2].answer()
    run.wait(0.9)
    assert not rounds(run)
    run.wait(0.2)
    (record,) = rounds(run)
    assert (record["responded"], record["grace_ms"], record["capacity_share"]) == ([0, 1, 2], 2000, 0.75)


def test_below_its_share_at_the_quorum_deadline_the_attempt_is_discarded() -> None:
    run, peers = started(0.9)
    for peer in peers[:3]:
        peer.answer()
    run.wait(60.1)
    assert run.tape("attempt_discarded")[0]["answers"] == 3
    for peer in peers:
        peer.push(peer.pulls()[-1])
    assert rounds(run)[0]["attempt"] == 2


def test_the_first_launch_waits_for_the_share_of_those_it_starts_with() -> None:
    """Nobody was measured yet: three of the four that training waits for have 0.7 of the capacity."""
    assert by_capacity(0.7).first_cut == 3
    assert by_capacity(0.7, quorum=4).first_cut == 4
    assert by_capacity(1.0, min_start_learners=2).first_cut == 2
    assert config(learners=4, quorum=2, min_start_learners=1).first_cut == 2
    _, peers = training(config=by_capacity(0.7))
    assert [len(peer.pulls()) for peer in peers] == [1, 1, 1, 0]


# -- the soft deadline ---------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.quorum.capacity")
def test_the_soft_deadline_closes_a_round_that_holds_quorum_answers() -> None:
    run, peers = started(0.9, quorum=2, soft_deadline_s=20.0, grace_ms=5000)
    peers[0].answer()
    run.wait(5.0)
    peers[1].answer()
    run.wait(14.9)
    assert not rounds(run)
    run.wait(0.2)
    (record,) = rounds(run)
    assert (record["responded"], record["ms"]) == ([0, 1], 20_000)
    assert (record["quorum_ms"], record["grace_ms"], record["capacity_share"]) == (None, None, 0.5)


@pytest.mark.rule("syncer.quorum.capacity")
def test_after_the_soft_deadline_the_answer_that_was_missing_closes_the_round() -> None:
    run, peers = started(0.9, quorum=2, soft_deadline_s=20.0)
    peers[0].answer()
    run.wait(30.0)
    assert not rounds(run) and not run.tape("attempt_discarded")
    peers[1].answer()
    assert (rounds(run)[0]["responded"], rounds(run)[0]["ms"]) == ([0, 1], 30_000)


def test_the_soft_deadline_comes_before_the_quorum_deadline_of_the_same_moment() -> None:
    run, peers = started(0.9, soft_deadline_s=60.0, quorum_timeout_s=60)
    peers[0].answer()
    run.run_until(60.0)
    assert rounds(run)[0]["responded"] == [0] and not run.tape("attempt_discarded")


def test_every_attempt_has_its_own_soft_deadline() -> None:
    run, peers = started(0.9, quorum=2, soft_deadline_s=20.0)
    run.wait(60.0)  # nobody has answered
    peers[0].push(peers[0].pulls()[-1])
    peers[1].push(peers[1].pulls()[-1])
    run.wait(19.9)
    assert not rounds(run)
    run.wait(0.2)
    assert (rounds(run)[0]["attempt"], rounds(run)[0]["ms"]) == (2, 20_000)


def test_a_share_that_is_reached_does_not_wait_for_the_soft_deadline() -> None:
    run, peers = started(0.5, quorum=4, soft_deadline_s=20.0)
    peers[0].answer(), peers[1].answer()
    assert (rounds(run)[0]["responded"], rounds(run)[0]["quorum_ms"]) == ([0, 1], 0)


# -- who is expected -----------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.quorum.capacity")
def test_a_late_joiner_does_not_join_a_round_under_a_capacity_quorum() -> None:
    run, peers = training(peers=3, config=by_capacity(1.0, min_start_learners=3))
    late = Peer(run, 3, 50)
    assert not late.pulls() and not run.tape("late_join")
    for peer in peers:
        peer.answer()
    assert run.tape()[0]["expected"] == [0, 1, 2]
    assert [pull.global_step for pull in late.pulls()] == [2], "it is captured from the next launch on"


def test_a_reconnect_takes_its_slot_over_with_its_capacity() -> None:
    run, peers = started(0.5, (1.0, 4.0, 4.0, 4.0))
    peers[0].close()
    back = Peer(run, 0, 50)
    back.answer()
    (record,) = rounds(run)
    assert record["responded_members"] == [{"id": 0, "generation": 50}]
    assert record["capacity_share"] == pytest.approx(1.0 / 1.75)


def test_a_released_slot_takes_its_capacity_with_it() -> None:
    run, peers = started(0.9, fold="on-arrival", max_base_lag=0)
    for _ in range(2):
        for peer in peers:
            peer.answer()
    for peer in peers[:3]:
        peer.answer()
    assert len(rounds(run)) == 2
    peers[3].push(peers[3].pulls()[0], base=0)
    record = rounds(run)[2]
    assert (record["responded"], record["capacity_share"]) == ([0, 1, 2], 1.0)


def test_carried_deltas_count_by_capacity_when_they_count() -> None:
    run, peers = started(0.7, fold="on-arrival", late_carry=True, carry_answers_round=True)
    (late,) = peers[3].pulls()
    for _ in range(3):
        for peer in peers[:3]:
            peer.answer()
    peers[3].push(late, base=0)
    peers[0].answer()
    assert len(rounds(run)) == 3
    peers[1].answer()
    record = rounds(run)[3]
    assert (record["step"], record["responded"], record["capacity_share"]) == (5, [0, 1, 3], 0.75)
