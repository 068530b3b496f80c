"""The terminal exchange: frozen ids, the cut per generation, permanent ACKs, SHUTDOWN, and bounded waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.driver import Driver, Peer, saves
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.errors import BadRevision, BudgetNotExpected
from yeto_proto._generated.messages import BudgetDone, FinalAck, FinalManifest, PullReq, Shutdown
from yeto_syncer.core.coordinator import Phase
from yeto_syncer.core.effects import (
    Deliver,
    Exit,
    RemoveMarker,
    Save,
    SaveKind,
    Send,
    WriteFinalState,
    WriteMarker,
)
from yeto_syncer.core.events import Dropped, FileFailed, Refused

MARKED: dict[str, Any] = {
    "checkpoint_path": "state.ckpt",
    "mark_final_checkpoint": True,
    "final_state": "final.bin",
}


def finalizing(**settings: Any) -> tuple[Driver, list[Peer]]:
    """A run of four steps over three fragments whose last step is committed."""
    held = settings.pop("hold_deliveries", False)
    run, peers = training(config=config(**{"total_steps": 4, "final_ack_timeout_s": 30, **settings}))
    for _ in range(3):
        for peer in peers:
            peer.answer()
    run.hold_deliveries = held
    for peer in peers:
        peer.answer()
    assert run.core.phase is Phase.FINALIZING
    return run, peers


def manifests(peer: Peer) -> list[FinalManifest]:
    return list(peer.messages(FinalManifest))


def shut_down(peer: Peer) -> bool:
    return bool(list(peer.messages(Shutdown)))


def finals(peer: Peer) -> list[tuple[int, int]]:
    return [
        (each.fragment_id, each.version)
        for cut in peer.driver.cuts[peer.link]
        if cut.final
        for each in cut.fragments
    ]


# -- order ---------------------------------------------------------------------------------------------------


def test_terminal_checkpoint_marker_final_state_then_the_cut() -> None:
    run, _ = finalizing(**MARKED)
    order: list[str] = []
    for effect in run.performed:
        if isinstance(effect, Save) and effect.kind is SaveKind.TERMINAL:
            order.append("save")
        elif isinstance(effect, (WriteMarker, WriteFinalState)):
            order.append(type(effect).__name__)
        elif isinstance(effect, Deliver) and effect.final and order[-1] != "final":
            order.append("final")
    assert order == ["save", "WriteMarker", "WriteFinalState", "final"]
    assert run.marker == 4
    (state,) = run.of(WriteFinalState)
    assert [values.tolist() for values in state.fragments] == [[7.0, 7.0], [4.0, 4.0], [4.0, 4.0]]


@pytest.mark.rule("syncer.final.cut")
def test_every_fragment_then_the_manifest() -> None:
    _, peers = finalizing()
    for peer in peers:
        assert finals(peer) == [(0, 4), (1, 2), (2, 3)]
        (manifest,) = manifests(peer)
        assert (manifest.revision, manifest.final_global_step) == (1, 4)
        assert manifest.expected_versions == (4, 2, 3)


@pytest.mark.rule("syncer.final.cut")
def test_the_manifest_follows_when_the_whole_cut_has_left() -> None:
    run, peers = finalizing(hold_deliveries=True)
    assert not manifests(peers[0])
    run.deliver(peers[0].link)
    assert len(manifests(peers[0])) == 1
    assert not manifests(peers[1])


@pytest.mark.rule("syncer.final.shutdown")
def test_shutdown_after_all_acks_and_exit_0() -> None:
    run, peers = finalizing()
    for peer in peers[:2]:
        peer.ack()
        assert not any(shut_down(each) for each in peers)
    peers[2].ack()
    assert all(shut_down(each) for each in peers)
    assert run.exit == Exit(0, "training complete at step 4")
    (log,) = run.logged("all learners acknowledged final cut")
    assert log.fields == {"learners": 3}


# -- which ACK counts ----------------------------------------------------------------------------------------


@pytest.mark.rule("final_ack.final_global_step.must")
def test_an_ack_of_another_step_is_dropped() -> None:
    run, peers = finalizing()
    for peer in peers:
        peer.ack(step=3)
    assert run.exit is None and all(peer.connected for peer in peers)
    assert run.counted("rejected", reason="OutOfRound") == 3
    for peer in peers:
        peer.ack(step=4)
    assert run.exit is not None and run.exit.code == 0


@pytest.mark.rule("final_ack.eligible")
def test_an_ack_from_a_generation_that_did_not_get_the_cut_is_dropped() -> None:
    run, peers = finalizing(hold_deliveries=True)
    for peer in peers:
        peer.ack(step=4)
    assert run.counted("rejected", reason="UnexpectedMember") == 3
    run.deliver()
    for peer in peers:
        peer.ack()
    assert run.exit is not None and run.exit.code == 0


def test_a_wrong_revision_ends_that_connection_only() -> None:
    run, peers = finalizing()
    run.feed(Refused(peers[0].conn, BadRevision()))
    assert not peers[0].connected and peers[1].connected
    assert run.exit is None


def test_a_second_ack_changes_nothing() -> None:
    run, peers = finalizing()
    peers[0].ack()
    peers[0].ack(step=4)
    assert run.exit is None
    assert len(run.logged("learner finalized")) == 1


def test_pushes_heartbeats_and_init_are_ignored() -> None:
    run, peers = finalizing()
    peers[0].push(PullReq(0, 4, 1))
    peers[0].heartbeat(100)
    peers[0].init(value=9.0)
    assert all(peer.connected for peer in peers)
    for peer in peers:
        peer.ack()
    assert run.exit is not None and run.exit.code == 0


@pytest.mark.rule("budget_done.exact_local_steps.mode")
def test_budget_done_outside_budget_mode_ends_that_connection_only() -> None:
    run, peers = finalizing()
    peers[0].send(BudgetDone(5))
    assert isinstance(peers[0].refused, BudgetNotExpected)
    assert run.exit is None and peers[1].connected


# -- reconnects ----------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.final.reconnect")
def test_a_reconnect_before_the_ack_gets_the_cut_again() -> None:
    run, peers = finalizing()
    peers[0].ack(), peers[1].ack()
    peers[2].close()
    back = Peer(run, 2, 50)
    assert finals(back) == [(0, 4), (1, 2), (2, 3)]
    assert not [cut for cut in run.cuts[back.link] if not cut.final], "no BCAST"
    back.ack()
    assert run.exit is not None and run.exit.code == 0
    assert shut_down(back) and shut_down(peers[0])


@pytest.mark.rule("syncer.final.permanent")
@pytest.mark.rule("syncer.final.shutdown")
def test_an_accepted_ack_survives_the_disconnect() -> None:
    run, peers = finalizing()
    peers[0].ack()
    peers[0].close()
    back = Peer(run, 0, 50)
    assert not run.cuts[back.link], "nothing is owed"
    peers[1].ack(), peers[2].ack()
    assert run.exit is not None and run.exit.code == 0
    assert not shut_down(back), "SHUTDOWN goes to generations whose ACK was accepted"
    assert [send.link for send in run.of(Send) if isinstance(send.message, Shutdown)] == [
        peers[1].link,
        peers[2].link,
    ]


def test_several_generations_of_a_learner_may_be_eligible() -> None:
    run, peers = finalizing()
    new = Peer(run, 0, 50)
    peers[0].ack()
    peers[1].ack(), peers[2].ack()
    assert run.exit is not None and run.exit.code == 0
    assert shut_down(peers[0]) and not shut_down(new)


@pytest.mark.rule("syncer.final.frozen")
def test_learners_that_were_gone_at_the_freeze_are_not_waited_for() -> None:
    run, peers = training(config=config(total_steps=1, grace_ms=0))
    peers[2].close()
    peers[0].answer(), peers[1].answer()
    assert run.core.phase is Phase.FINALIZING
    late = Peer(run, 2, 50)
    assert not run.cuts[late.link] and late.connected
    peers[0].ack(), peers[1].ack()
    assert run.exit is not None and run.exit.code == 0


@pytest.mark.rule("syncer.final.frozen")
def test_nobody_at_the_freeze_is_a_failure() -> None:
    run, peers = training(config=config(total_steps=1, grace_ms=5000, **MARKED))
    peers[0].answer(), peers[1].answer()
    for peer in peers:
        peer.close()
    run.wait(5.1)
    assert run.exit is not None and run.exit.code == 1
    assert run.marker is None


# -- bounded waits -------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.final.timeout")
def test_a_missing_ack_fails_after_a_bounded_wait_and_names_the_ids() -> None:
    run, peers = finalizing(**MARKED)
    peers[1].ack()
    run.wait(29.9)
    assert run.exit is None
    run.wait(0.2)
    assert run.exit is not None and run.exit.code == 1
    assert "learner 0, 2 " in run.exit.message
    assert not any(shut_down(peer) for peer in peers)
    assert run.marker is None, "a timeout leaves an unmarked checkpoint"
    assert saves(run)[-1] == (SaveKind.TERMINAL, 4)


def test_events_do_not_extend_the_wait() -> None:
    run, peers = finalizing()
    run.wait(20.0)
    peers[0].ack()
    peers[1].close()
    Peer(run, 1, 50)
    run.wait(10.1)
    assert run.exit is not None and run.exit.code == 1


def test_the_wait_counts_from_the_end_of_the_first_round_of_sends() -> None:
    run, peers = finalizing(hold_deliveries=True)
    run.wait(20.0)
    run.feed(run.held.popleft())  # a fragment has left: the sends make progress
    run.wait(25.0)
    assert run.exit is None
    run.deliver()
    run.wait(29.0)
    assert run.exit is None
    run.wait(1.1)
    assert run.exit is not None and run.exit.code == 1
    assert len(peers) == 3


def test_sends_without_progress_are_bounded_too() -> None:
    run, _ = finalizing(hold_deliveries=True)
    run.wait(30.1)
    assert run.exit is not None and run.exit.code == 1


def test_an_ack_timeout_of_zero_times_out_at_once() -> None:
    run, peers = training(config=config(total_steps=1, final_ack_timeout_s=0))
    play(peers)
    run.wait(0.0)
    assert run.exit is not None and run.exit.code == 1


def test_the_ack_timeout_defaults_to_the_quorum_timeout() -> None:
    run, _ = finalizing(final_ack_timeout_s=None, quorum_timeout_s=40)
    run.wait(39.0)
    assert run.exit is None
    run.wait(1.1)
    assert run.exit is not None and run.exit.code == 1


def test_a_group_dropped_during_its_cut_may_come_back() -> None:
    run, peers = finalizing(hold_deliveries=True)
    run.deliver(peers[0].link), run.deliver(peers[1].link)
    peers[0].ack(), peers[1].ack()
    run.feed(Dropped(peers[2].link, "write timeout"))
    back = Peer(run, 2, 50)
    run.deliver()
    back.ack()
    assert run.exit is not None and run.exit.code == 0


def test_a_marker_that_cannot_be_written_ends_the_run() -> None:
    run, _ = finalizing(**MARKED)
    run.feed(FileFailed("state.ckpt.final", "read-only"))
    assert run.exit is not None and run.exit.code == 1
    assert isinstance(run.performed[-2], RemoveMarker)


def test_without_the_flag_no_marker_is_written() -> None:
    run, peers = finalizing(checkpoint_path="state.ckpt")
    for peer in peers:
        peer.ack()
    assert not run.of(WriteMarker)


def test_the_lease_does_not_end_a_learner_that_installs_the_cut() -> None:
    run, peers = finalizing(island_lease_s=2.0)
    run.wait(20.0)
    assert all(peer.connected for peer in peers)


# -- observers -----------------------------------------------------------------------------------------------


def with_observer(**settings: Any) -> tuple[Driver, list[Peer], Peer]:
    run, peers = training(
        peers=2, config=config(observers=(2,), total_steps=1, final_ack_timeout_s=30, **settings)
    )
    observer = Peer(run, 2, 50)
    return run, peers, observer


@pytest.mark.rule("syncer.observers.apart")
def test_an_observer_gets_the_cut_and_need_not_ack() -> None:
    run, peers, observer = with_observer()
    play(peers)
    assert finals(observer) == [(0, 1), (1, 0), (2, 0)]
    for peer in peers:
        peer.ack()
    assert run.exit is not None and run.exit.code == 0


def test_an_observer_that_acks_is_let_go_like_a_learner() -> None:
    _, peers, observer = with_observer()
    play(peers)
    observer.ack()
    for peer in peers:
        peer.ack()
    assert shut_down(observer)


def test_the_process_waits_a_bounded_time_for_the_cut_of_an_observer() -> None:
    run, peers, observer = with_observer()
    run.hold_deliveries = True
    play(peers)
    for peer in peers:
        run.deliver(peer.link)
        peer.ack()
    assert all(shut_down(peer) for peer in peers), "the learners do not wait for it"
    assert run.exit is None
    run.deliver(observer.link)
    assert manifests(observer)
    assert run.exit is not None and run.exit.code == 0


def test_a_stalled_observer_fails_nothing() -> None:
    run, peers, _ = with_observer()
    run.hold_deliveries = True
    play(peers)
    for peer in peers:
        run.deliver(peer.link)
        peer.ack()
    run.wait(30.1)
    assert run.exit is not None and run.exit.code == 0


def test_an_observer_alone_is_nobody_to_finish_with() -> None:
    run, peers, _ = with_observer()
    run.hold_merges = True
    play(peers)
    for peer in peers:
        peer.close()
    run.finish_merge()
    assert run.exit is not None and run.exit.code == 1


def test_a_learner_that_dials_again_and_again_holds_few_connections() -> None:
    run, peers = finalizing()
    peers[0].send(FinalAck(4))
    run.hold_deliveries = True
    again = [[Peer(run, learner, 100 + number) for number in range(50)] for learner in (0, 1)]
    assert peers[0].connected, "its acknowledgement counts, and it is still to be let go"
    assert peers[1].connected, "it has the whole cut and may acknowledge it"
    for each in again:
        assert [peer for peer in each if peer.connected] == each[-2:]
    peers[1].send(FinalAck(4))
    peers[2].send(FinalAck(4))
    assert [shut_down(peer) for peer in peers] == [True, True, True]
    assert run.exit is not None and run.exit.code == 0
