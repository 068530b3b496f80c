"""Superseding, disconnects, rebind, late joiners, catch-up before capture, and the island lease."""

from __future__ import annotations

import pytest

from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.errors import WriteTimeout
from yeto_proto._generated.messages import PullReq
from yeto_syncer.core.effects import CloseLink, Deliver
from yeto_syncer.core.events import Dropped, Heard


def rejected(run: Driver) -> list[object]:
    return [record["reason"] for record in run.tape("rejected")]


# -- catch-up ------------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.catch_up.sent")
def test_a_new_generation_gets_every_fragment_at_its_version() -> None:
    run, peers = training(config=config())
    for _ in range(2):
        for peer in peers:
            peer.answer()
    back = Peer(run, 2, 50)
    (cut,) = run.cuts[back.link]
    assert [(each.fragment_id, each.version) for each in cut.fragments] == [(0, 1), (1, 2), (2, 0)]
    assert cut.links == (back.link,)


@pytest.mark.rule("syncer.capture.catch_up")
def test_a_member_whose_catch_up_has_not_left_is_not_captured() -> None:
    run, peers = training(config=config(learners=2), hold_deliveries=True)
    peers[1].close()
    back = Peer(run, 1, 50)
    peers[0].answer()
    run.wait(60.1)  # the first attempt expires; the second captures learner 0 alone
    assert not back.pulls()
    peers[0].push(peers[0].pulls()[-1])
    assert [(each["step"], each["expected"]) for each in run.tape()] == [(1, [0])]
    assert [pull.global_step for pull in peers[0].pulls()] == [2]
    run.deliver(back.link)
    assert [pull.global_step for pull in back.pulls()] == [2], "it joins the open round"


@pytest.mark.rule("syncer.capture.catch_up")
def test_a_superseded_catch_up_makes_nobody_ready() -> None:
    run, peers = training(config=config(learners=2), hold_deliveries=True)
    peers[1].close()
    first, second = Peer(run, 1, 50), Peer(run, 1, 51)
    run.deliver(first.link)
    assert not first.pulls() and not second.pulls()
    run.deliver(second.link)
    assert len(second.pulls()) == 1, "the current one takes the slot of generation 11, which is gone"


# -- rebind --------------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.round.rebind")
def test_a_returned_learner_takes_its_slot_over() -> None:
    run, peers = training(config=config(quorum=3))
    run.wait(5.0)
    peers[1].close()
    back = Peer(run, 1, 50)
    (pull,) = back.pulls()
    assert pull == PullReq(0, 1, 1), "same step, attempt and base"
    run.wait(5.0)
    back.push(pull)
    peers[0].answer(), peers[2].answer()
    record = run.tape()[0]
    assert record["responded_members"] == [
        {"id": 0, "generation": 10},
        {"id": 1, "generation": 50},
        {"id": 2, "generation": 12},
    ]
    assert record["ms"] == 10_000, "the clock of the attempt went on"
    assert run.tape("rebound") == [{"event": "rebound", "id": 1, "generation": 50, "step": 1, "attempt": 1}]


@pytest.mark.rule("syncer.round.rebind")
def test_the_rebound_pull_follows_the_catch_up() -> None:
    run, peers = training(config=config(quorum=3), hold_deliveries=True)
    peers[1].close()
    back = Peer(run, 1, 50)
    assert not back.pulls()
    run.deliver(back.link)
    assert len(back.pulls()) == 1


@pytest.mark.rule("syncer.round.rebind")
def test_a_rebind_moves_no_deadline() -> None:
    run, peers = training(config=config(quorum=3, quorum_timeout_s=60))
    run.wait(59.0)
    peers[1].close()
    Peer(run, 1, 50)
    run.wait(1.1)
    assert [record["attempt"] for record in run.tape("attempt_discarded")] == [1]


@pytest.mark.rule("syncer.capture.frozen")
def test_a_live_captured_generation_keeps_its_slot() -> None:
    run, peers = training(config=config(quorum=3))
    new = Peer(run, 1, 50)
    assert not new.pulls()
    peers[1].answer()
    peers[0].answer(), peers[2].answer()
    assert run.tape()[0]["responded_members"][1] == {"id": 1, "generation": 11}
    assert len(new.pulls()) == 1, "the next round captures the new generation"
    assert not peers[1].pulls()


@pytest.mark.rule("syncer.generation.supersedes")
def test_the_late_disconnect_of_the_old_generation_rebinds_to_the_new_one() -> None:
    run, peers = training(config=config(quorum=3))
    new = Peer(run, 1, 50)
    assert not new.pulls()
    peers[1].close()
    assert len(new.pulls()) == 1
    assert new.connected


def test_an_answered_slot_is_not_rebound() -> None:
    run, peers = training(config=config(quorum=3))
    peers[1].answer()
    peers[1].close()
    back = Peer(run, 1, 50)
    assert not back.pulls()
    peers[0].answer(), peers[2].answer()
    assert run.tape()[0]["responded"] == [0, 1, 2], "a disconnect erases no answer"


def test_a_superseded_generation_never_rebinds_backwards() -> None:
    run, peers = training(config=config(quorum=3))
    older, newer = Peer(run, 1, 50), Peer(run, 1, 51)
    peers[1].close()
    assert not older.pulls()
    assert len(newer.pulls()) == 1
    older.close()
    newer.push(PullReq(0, 1, 1))
    assert not rejected(run)


@pytest.mark.rule("syncer.generation.supersedes")
def test_the_old_generation_can_still_finish_what_captured_it() -> None:
    run, peers = training(config=config(quorum=3))
    old_pull = peers[0].pulls()[0]
    Peer(run, 0, 50)
    peers[0].push(old_pull)
    peers[1].answer(), peers[2].answer()
    assert run.tape()[0]["responded"] == [0, 1, 2]


@pytest.mark.rule("syncer.generation.supersedes")
def test_heartbeats_of_a_superseded_generation_feed_nothing() -> None:
    run, peers = training(config=config(grace_ms=60_000, learners=2, quorum=1))
    Peer(run, 0, 50)
    peers[0].heartbeat(1)
    run.wait(1.0)
    peers[0].heartbeat(2)
    peers[1].answer()
    run.wait(60.0)
    assert run.tape()[0]["grace_ms"] == 60_000


# -- late joiners --------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.late_joiner.joins")
def test_a_late_joiner_is_pulled_into_every_open_round() -> None:
    run, peers = training(peers=2, config=config(min_start_learners=2, pipeline=2, grace_ms=9000))
    run.wait(3.0)
    late = Peer(run, 2, 50)
    assert [(pull.global_step, pull.round_attempt) for pull in late.pulls()] == [(1, 1), (2, 1)]
    late.push(PullReq(0, 1, 1))
    for peer in peers:
        peer.push(peer.pulls()[0])
    record = run.tape()[0]
    assert (record["expected"], record["responded"], record["quorum"]) == ([0, 1, 2], [0, 1, 2], 2)


@pytest.mark.rule("syncer.late_joiner.joins")
def test_a_late_joiner_is_one_more_that_all_answered_waits_for() -> None:
    run, peers = training(peers=2, config=config(min_start_learners=2, grace_ms=9000))
    peers[0].answer()
    late = Peer(run, 2, 50)
    peers[1].answer()
    assert not run.tape(), "K is reached; the grace window waits for the joiner"
    run.wait(1.0)
    late.answer()
    assert run.tape()[0]["responded"] == [0, 1, 2]


@pytest.mark.rule("syncer.late_joiner.joins")
def test_a_join_inside_the_grace_window_keeps_its_deadline() -> None:
    run, peers = training(config=config(grace_ms=4000, min_start_learners=3, learners=4))
    peers[0].answer(), peers[1].answer()
    run.wait(3.0)
    Peer(run, 3, 50)
    run.wait(1.1)
    record = run.tape()[0]
    assert (record["expected"], record["grace_waited_ms"]) == ([0, 1, 2, 3], 4000)


def test_a_complete_round_is_not_joined() -> None:
    run, peers = training(peers=2, config=config(min_start_learners=2), hold_merges=True)
    peers[0].answer(), peers[1].answer()
    late = Peer(run, 2, 50)
    assert not late.pulls()


@pytest.mark.rule("syncer.late_joiner.base")
def test_a_round_from_another_version_than_the_catch_up_is_not_joined() -> None:
    run, peers = training(
        peers=2, config=config(min_start_learners=2, pipeline=3, total_steps=20), hold_deliveries=True
    )
    late = Peer(run, 2, 50)  # its catch-up brings version 0 of every fragment
    for peer in peers:
        peer.push(PullReq(0, 1, 1), base=0)
    # In flight are now 2, 3 (base 0) and 4 (fragment 0 at version 1).
    run.deliver(late.link)
    assert [pull.global_step for pull in late.pulls()] == [2, 3]


@pytest.mark.rule("syncer.late_joiner.joins")
def test_a_slot_of_the_same_learner_is_not_joined_a_second_time() -> None:
    run, peers = training(config=config(quorum=3))
    peers[1].answer()
    new = Peer(run, 1, 50)
    assert not new.pulls()
    new.push(PullReq(0, 1, 1))
    assert rejected(run) == ["UnexpectedMember"]


@pytest.mark.rule("syncer.observers.apart")
def test_an_observer_joins_nothing() -> None:
    run, _ = training(peers=2, config=config(observers=(2,)))
    observer = Peer(run, 2, 50)
    assert run.cuts[observer.link]
    assert not observer.pulls()
    observer.push(PullReq(0, 1, 1))
    assert rejected(run) == ["UnexpectedMember"]


# -- leaving -------------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.answer.kept")
def test_a_disconnect_neither_erases_an_answer_nor_blocks_the_round_for_ever() -> None:
    run, peers = training(config=config(grace_ms=1000))
    peers[0].answer()
    peers[0].close()
    peers[1].answer()
    run.wait(1.1)
    assert run.tape()[0]["responded"] == [0, 1]


def test_the_end_of_the_control_socket_closes_the_whole_group() -> None:
    run, peers = training(config=config())
    peers[0].close()
    assert [close.link for close in run.of(CloseLink)] == [peers[0].link]


def test_a_group_that_the_shell_dropped_is_gone() -> None:
    run, peers = training(config=config(quorum=3))
    run.feed(Dropped(peers[1].link, "no byte went out for 180 s"))
    assert isinstance(peers[1].refused, WriteTimeout)
    assert run.counted("learners_left", reason="WriteTimeout") == 1
    assert Peer(run, 1, 50).pulls()


@pytest.mark.rule("syncer.generation.supersedes")
def test_a_learner_that_dials_again_and_again_holds_few_connections() -> None:
    run, peers = training(config=config(quorum=3))
    (pull,) = peers[1].pulls()
    again = [Peer(run, 1, 100 + number) for number in range(300)]
    assert peers[1].connected, "the open round waits for it"
    assert [peer for peer in again if peer.connected] == again[-2:]
    assert run.counted("learners_left", reason="superseded") == 298
    peers[0].answer(), peers[2].answer()
    peers[1].push(pull)
    assert run.tape()[0]["responded"] == [0, 1, 2]
    assert len(again[-1].pulls()) == 1
    last = Peer(run, 1, 500)
    assert not peers[1].connected, "its round is over"
    assert again[-1].connected and last.connected, "the one before may finish what captured it"


def test_before_the_start_older_connections_are_few_as_well() -> None:
    run = Driver(config())
    peers = [Peer(run, 0, 1 + number, num_streams=1) for number in range(300)]
    assert [peer for peer in peers if peer.connected] == peers[-2:]


def test_broadcasts_go_to_current_generations_only() -> None:
    run, peers = training(config=config())
    new = Peer(run, 0, 50)
    for peer in peers:
        peer.answer()
    (broadcast,) = [each for each in run.of(Deliver) if each.token is None]
    assert set(broadcast.links) == {new.link, peers[1].link, peers[2].link}


# -- lease ---------------------------------------------------------------------------------------------------


def test_without_a_lease_silence_is_allowed() -> None:
    run, peers = training(config=config())
    run.wait(5000.0)
    assert all(peer.connected for peer in peers)


@pytest.mark.rule("syncer.lease.expiry")
def test_a_silent_learner_loses_its_lease() -> None:
    run, peers = training(config=config(island_lease_s=2.0, quorum_timeout_s=900))
    for _ in range(4):
        run.wait(1.0)
        peers[0].heartbeat(7)  # an unchanged step renews the lease
        peers[1].heartbeat(7)
    assert [peer.connected for peer in peers] == [True, True, False]
    assert run.counted("learners_left", reason="lease expired") == 1
    back = Peer(run, 2, 50)
    assert len(back.pulls()) == 1, "it joins again and takes its slot over"


@pytest.mark.rule("syncer.lease.expiry")
@pytest.mark.rule("syncer.heartbeat.repeated")
def test_any_message_renews_the_lease_and_answers_stay() -> None:
    run, peers = training(
        config=config(island_lease_s=2.0, learners=2, grace_ms=60_000, quorum_timeout_s=900)
    )
    run.wait(1.5)
    peers[0].answer()
    run.wait(1.5)
    assert [peer.connected for peer in peers] == [True, False]
    run.wait(10.0)
    assert not peers[0].connected
    back = Peer(run, 1, 50)
    back.answer()
    assert run.tape()[0]["responded"] == [0, 1]


@pytest.mark.rule("syncer.lease.expiry")
def test_a_message_that_waits_for_a_check_renews_the_lease_too() -> None:
    run, peers = training(config=config(island_lease_s=2.0, quorum_timeout_s=900))
    for _ in range(4):
        run.wait(1.5)
        for peer in peers[:2]:
            run.feed(Heard(peer.link))
    assert [peer.connected for peer in peers] == [True, True, False]
    run.feed(Heard(peers[2].link))
    assert not peers[2].connected, "a connection that is gone stays gone"
    run.wait(2.1)
    assert not any(peer.connected for peer in peers)


@pytest.mark.rule("syncer.observers.apart")
def test_an_observer_has_no_lease() -> None:
    """It only listens: nothing ever comes from it."""
    run = Driver(config(island_lease_s=2.0, observers=(2,)))
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    run.wait(30.0)
    assert [peer.connected for peer in peers] == [False, False, True]


@pytest.mark.parametrize("lease", [0.0, 3.0])
def test_a_run_with_answers_ends_whatever_the_lease(lease: float) -> None:
    run, peers = training(config=config(island_lease_s=lease))
    play(peers)
    for peer in peers:
        peer.ack()
    assert run.exit is not None and run.exit.code == 0
