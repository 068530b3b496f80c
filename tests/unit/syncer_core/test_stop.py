"""Signals: the graceful stop in every phase, and the second signal (D22)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.driver import Driver, Peer, saves
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.messages import FinalManifest, Shutdown
from yeto_syncer.core.effects import Deliver, RemoveMarker, Save, SaveKind, Send
from yeto_syncer.core.events import Stop

SIGINT, SIGTERM = 2, 15
PATH: dict[str, Any] = {"checkpoint_path": "state.ckpt", "checkpoint_every": 0}


def code(run: Driver) -> int | None:
    return None if run.exit is None else run.exit.code


def test_before_training_it_ends_at_once() -> None:
    run = Driver(config(**PATH))
    Peer(run, 0, 1)
    run.feed(Stop(SIGTERM))
    assert code(run) == 0
    assert not saves(run)


def test_while_the_first_checkpoint_is_written_it_ends_too() -> None:
    run = Driver(config(checkpoint_path="state.ckpt", checkpoint_every=1), hold_saves=True)
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    assert run.saving is not None
    run.feed(Stop(SIGTERM))
    assert code(run) == 0, "at once: it does not wait for the write"
    assert not run.of(Send)


def test_no_marker_of_an_earlier_run_stands_beside_a_stop_checkpoint() -> None:
    run, peers = training(config=config(shutdown_timeout_s=600.0, **PATH))
    for peer in peers:
        peer.close()
    run.feed(Stop(SIGTERM))
    assert saves(run) == [(SaveKind.STOP, 0)]
    kinds = [type(effect) for effect in run.performed if isinstance(effect, (RemoveMarker, Save))]
    assert kinds == [RemoveMarker, Save], "once, and before anything is written"


def test_a_fresh_run_without_steps_removes_the_marker_of_an_earlier_one() -> None:
    run = Driver(config(total_steps=0, **PATH))
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    kinds = [type(effect) for effect in run.performed if isinstance(effect, (RemoveMarker, Save))]
    assert kinds == [RemoveMarker, Save]


def test_rounds_in_flight_may_close_and_no_new_one_starts() -> None:
    run, peers = training(config=config(pipeline=2, shutdown_timeout_s=100.0, **PATH))
    run.feed(Stop(SIGTERM))
    assert code(run) is None
    play(peers)
    assert [record["step"] for record in run.tape()] == [1, 2]
    assert saves(run) == [(SaveKind.STOP, 2)]
    assert code(run) == 0
    assert run.broadcasts() == [(0, 1), (1, 2)], "the learners hold what the checkpoint holds"


def test_gathering_rounds_are_dropped_after_the_shutdown_timeout() -> None:
    run, peers = training(config=config(pipeline=3, shutdown_timeout_s=100.0, quorum_timeout_s=900, **PATH))
    pulls = [peer.pulls() for peer in peers]
    for peer, each in zip(peers, pulls, strict=True):
        peer.push(each[0])
        peer.push(each[2])
    peers[0].push(pulls[0][1])  # step 2 has one answer of two
    run.feed(Stop(SIGTERM))
    run.wait(99.9)
    assert code(run) is None
    run.wait(0.2)
    assert code(run) == 0
    assert [record["step"] for record in run.tape()] == [1], "step 3 cannot pass step 2"
    assert [record["step"] for record in run.tape("round_dropped")] == [2, 3, 4]
    assert saves(run) == [(SaveKind.STOP, 1)]


def test_a_merge_that_runs_is_committed() -> None:
    run, peers = training(config=config(shutdown_timeout_s=5.0, **PATH), hold_merges=True)
    play(peers)
    run.feed(Stop(SIGTERM))
    run.wait(50.0)
    assert code(run) is None
    run.finish_merge()
    assert saves(run) == [(SaveKind.STOP, 1)]
    assert run.tape()[-1]["step"] == 1
    assert code(run) == 0


def test_a_round_that_nobody_can_answer_is_dropped_at_once() -> None:
    run, peers = training(config=config(shutdown_timeout_s=600.0, **PATH))
    for peer in peers:
        peer.close()
    run.feed(Stop(SIGTERM))
    assert saves(run) == [(SaveKind.STOP, 0)]
    assert code(run) == 0


def test_an_emptied_round_waits_for_anybody_who_is_still_connected() -> None:
    run, peers = training(config=config(shutdown_timeout_s=600.0, **PATH), hold_merges=True)
    play(peers)
    for peer in peers:
        peer.close()
    run.hold_deliveries = True
    back = Peer(run, 1, 50)
    run.finish_merge(finite=False)  # nobody can be captured yet: the round is empty
    run.feed(Stop(SIGTERM))
    assert code(run) is None
    run.deliver(back.link)
    back.answer()
    run.finish_merge()
    assert saves(run) == [(SaveKind.STOP, 1)]


def test_a_round_becomes_hopeless_when_the_last_learner_leaves() -> None:
    run, peers = training(config=config(shutdown_timeout_s=600.0, **PATH))
    run.feed(Stop(SIGTERM))
    assert code(run) is None
    for peer in peers:
        peer.close()
    assert code(run) == 0


def test_a_round_with_an_answer_keeps_its_time() -> None:
    run, peers = training(config=config(shutdown_timeout_s=600.0, **PATH))
    peers[0].answer()
    for peer in peers:
        peer.close()
    run.feed(Stop(SIGTERM))
    assert code(run) is None
    back = Peer(run, 1, 50)
    back.answer()
    run.wait(2.0)
    assert [record["step"] for record in run.tape()] == [1]
    assert code(run) == 0


def test_the_stop_waits_for_a_background_write() -> None:
    run, peers = training(
        config=config(checkpoint_path="state.ckpt", checkpoint_every=2, background_checkpoint=True),
        hold_saves=True,
    )
    for _ in range(2):
        for peer in peers:
            peer.answer()
    run.feed(Stop(SIGTERM))
    play(peers)
    assert saves(run) == [(SaveKind.PERIODIC, 2)]
    run.finish_save()
    assert saves(run) == [(SaveKind.PERIODIC, 2), (SaveKind.STOP, 3)]
    assert code(run) is None
    run.finish_save()
    assert code(run) == 0


def test_the_checkpoint_holds_the_last_step_of_the_tape() -> None:
    run, peers = training(config=config(checkpoint_path="state.ckpt", checkpoint_every=4, pipeline=2))
    for _ in range(3):
        for peer in peers:
            peer.answer()
    run.feed(Stop(SIGTERM))
    play(peers)
    assert run.disk is not None
    assert run.disk.global_step == run.tape()[-1]["step"]


def test_no_manifest_no_shutdown_no_marker() -> None:
    run, peers = training(config=config(total_steps=1, mark_final_checkpoint=True, **PATH))
    run.feed(Stop(SIGTERM))
    play(peers)
    assert code(run) == 0
    assert not any(deliver.final for deliver in run.of(Deliver))
    assert not [send for send in run.of(Send) if isinstance(send.message, (FinalManifest, Shutdown))]
    assert run.marker is None


def test_without_a_path_the_loss_is_said() -> None:
    run, peers = training(config=config())
    play(peers[:0])
    run.feed(Stop(SIGINT))
    play(peers)
    assert code(run) == 0
    assert any(log.level == "warning" for log in run.logged("state of this run is lost"))


def test_a_failed_stop_checkpoint_is_a_failure() -> None:
    run, peers = training(config=config(**PATH), hold_saves=True)
    run.feed(Stop(SIGTERM))
    play(peers)
    run.finish_save("disk full")
    assert code(run) == 1


@pytest.mark.parametrize(("signal", "expected"), [(SIGINT, 130), (SIGTERM, 143)])
def test_the_second_signal_ends_without_a_checkpoint(signal: int, expected: int) -> None:
    run, _ = training(config=config(**PATH))
    run.feed(Stop(SIGTERM))
    run.feed(Stop(signal))
    assert code(run) == expected
    assert not saves(run)


def test_finalization_goes_on_and_its_outcome_tells() -> None:
    run, peers = training(config=config(total_steps=1, final_ack_timeout_s=30, **PATH))
    play(peers)
    run.feed(Stop(SIGTERM))
    assert code(run) is None
    for peer in peers:
        peer.ack()
    assert code(run) == 0


def test_finalization_times_out_under_a_stop_as_without() -> None:
    run, peers = training(config=config(total_steps=1, final_ack_timeout_s=30, **PATH))
    play(peers)
    run.feed(Stop(SIGTERM))
    run.wait(30.1)
    assert code(run) == 1


def test_a_second_signal_in_finalization_unmarks_the_checkpoint() -> None:
    run, peers = training(config=config(total_steps=1, mark_final_checkpoint=True, **PATH))
    play(peers)
    assert run.marker == 1
    run.feed(Stop(SIGINT), Stop(SIGINT))
    assert code(run) == 130
    assert run.marker is None
