"""`Learner`: the end of a run, and heartbeats."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.learner.rig import (
    OnlyFirst,
    arrived,
    caught_up,
    flat,
    parameters,
    quiet,
    running,
    send_cut,
    train,
    wire_values,
)
from tests.e2e.scripted_syncer import WAIT, Peer, ScriptedSyncer
from yeto_learner import Learner, ProtocolError, final_cut
from yeto_proto._generated import messages as wire


@pytest.mark.rule("learner.final.exact")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("streams", [0, 2])
def test_the_end_of_a_run(dtype: str, streams: int) -> None:
    arrays = parameters()
    with running(arrays, dtype=dtype, num_streams=streams, merge_alpha=0.9) as (made, peer, _):
        cut = send_cut(made, peer, 9)
        assert made.client.finalizing.wait(WAIT)
        train(arrays)
        assert made.step() is True
        assert made.done
        finisher = threading.Thread(target=made.finish)
        finisher.start()
        assert peer.expect(wire.FinalAck) == wire.FinalAck(9)
        for fragment in range(2):  # f32, whatever the session's dtype, and unblended
            np.testing.assert_array_equal(flat(made, arrays, fragment), cut[fragment])
        assert finisher.is_alive()
        peer.send(wire.Shutdown())
        finisher.join(WAIT)
        assert not finisher.is_alive()
        assert made.done
        assert made.global_step == 9
        assert made.versions == [9, 8]
        made.finish()  # once is enough


def test_broadcasts_that_nobody_takes_do_not_hold_up_the_final_cut() -> None:
    arrays = {"w": np.zeros(200_000, np.float32)}
    with running(arrays, num_fragments=1, num_streams=0, receive_budget=1) as (made, peer, _):
        _, data = wire_values(made, 0, 1)
        peer.broadcast(0, 1, data)
        peer.broadcast(0, 2, data)
        send_cut(made, peer, 2)
        finisher = threading.Thread(target=made.finish)
        finisher.start()
        peer.expect(wire.FinalAck)
        peer.broadcast(0, 3, data)
        peer.send(wire.Shutdown())
        finisher.join(WAIT)
        assert not finisher.is_alive()


@pytest.mark.rule("learner.final.bounded")
def test_a_cut_that_stays_incomplete_leaves_the_parameters_untouched() -> None:
    arrays = parameters()
    with running(arrays) as (made, peer, _):
        before = {name: array.copy() for name, array in arrays.items()}
        values = np.zeros(made.layout.fragments[0].numel, np.float32)
        peer.send_chunked(wire.FinalFragment(0, 9, values.tobytes()))
        peer.send(wire.FinalManifest(9, (9, 8)))
        assert made.client.finalizing.wait(WAIT)
        with pytest.raises(TimeoutError, match="fragment 1: version 8 wanted, none held"):
            made.finish(timeout=0.3)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, before[name])
        peer.expect_nothing()  # no acknowledgement


@pytest.mark.parametrize("max_reconnects", [None, 0])
def test_who_finished_too_early_trains_on_with_what_was_broadcast_meanwhile(
    monkeypatch: pytest.MonkeyPatch, max_reconnects: int | None
) -> None:
    arrays = parameters()
    latest: dict[int, bytes] = {}
    with running(arrays, OnlyFirst(), merge_alpha=0.0, max_reconnects=max_reconnects) as (made, peer, syncer):
        for fragment in range(2):
            latest[fragment] = wire_values(made, fragment, fragment)[1]
        wait = made.client.wait_for_final_fragments

        def broadcast_meanwhile(timeout: float | None) -> object:
            for fragment in range(2):
                peer.broadcast(fragment, 1, latest[fragment])
            seen = made.client._link._seen
            assert made.client.wait_for(
                lambda: all(seen[fragment].version == 1 for fragment in range(2)), WAIT
            )
            return wait(0.01)

        monkeypatch.setattr(made.client, "wait_for_final_fragments", broadcast_meanwhile)
        with pytest.raises(TimeoutError, match="no FINAL_MANIFEST"):
            made.finish()
        again = syncer.next_peer()  # its catch-up is what was dropped
        for fragment in range(2):
            again.broadcast(fragment, 1, latest[fragment])
        caught_up(made)
        made.step()
        assert made.versions == [1, 1]
        for fragment in range(2):
            np.testing.assert_array_equal(
                flat(made, arrays, fragment), np.frombuffer(latest[fragment], np.float32)
            )
        again.send(wire.PullReq(0, 2, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step()
        assert again.expect(wire.PushFragment).base_version == 1
        if max_reconnects == 0:  # the renewal was not one of them, but a lost connection is one too many
            again.close()
            with pytest.raises(RuntimeError, match="all 0 reconnects are used"):
                made.client.wait_for(lambda: False, WAIT)


def test_who_finished_too_early_keeps_its_connection_if_nothing_was_missed() -> None:
    arrays = parameters()
    with running(arrays) as (made, peer, _):
        with pytest.raises(TimeoutError, match="no FINAL_MANIFEST"):
            made.finish(timeout=0.1)
        _, data = wire_values(made, 0, 1)
        peer.broadcast(0, 1, data)
        arrived(made, updates=1)
        made.step()
        assert made.versions == [1, 0]
        cut = send_cut(made, peer, 9)
        finisher = threading.Thread(target=made.finish)
        finisher.start()
        peer.expect(wire.FinalAck)
        peer.send(wire.Shutdown())
        finisher.join(WAIT)
        assert not finisher.is_alive()
        np.testing.assert_array_equal(flat(made, arrays, 0), cut[0])


@pytest.mark.parametrize("version", [9, 12, 4])
def test_a_record_that_is_saved_after_the_end_adds_nothing_to_a_longer_run(
    tmp_path: Path, version: int
) -> None:
    arrays, path = {"w": np.zeros(3, np.float32)}, tmp_path / "record.npz"
    with running(arrays, num_fragments=1) as (made, peer, _):
        train(arrays, 10.0)
        made.step()
        cut = send_cut(made, peer, 9)
        finisher = threading.Thread(target=made.finish)
        finisher.start()
        peer.expect(wire.FinalAck)
        peer.send(wire.Shutdown())
        finisher.join(WAIT)
        made.save_state(path)
    values = cut[0] if version == 9 else cut[0] + np.float32(1.0)

    def admit(again: Peer) -> None:
        again.broadcast(0, version, values.tobytes())

    with (
        ScriptedSyncer(admit=admit) as syncer,
        Learner(
            arrays, syncer.address, num_fragments=1, dtype="f32", session_contract="test", resume=path
        ) as made,
    ):
        np.testing.assert_array_equal(arrays["w"], values)
        again = syncer.next_peer()
        again.send(wire.PullReq(0, version + 1, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step(tokens=3)
        push = again.expect(wire.PushFragment)
        assert (push.base_version, push.c_steps, push.c_tokens) == (version, 1, 3)
        np.testing.assert_allclose(np.frombuffer(push.delta, np.float32), 0.25, rtol=1e-5)


def test_a_final_value_that_is_not_finite_leaves_the_parameters_untouched() -> None:
    arrays = parameters()
    with running(arrays) as (made, peer, _):
        before = {name: array.copy() for name, array in arrays.items()}
        for fragment, version in ((0, 9), (1, 8)):
            values = np.zeros(made.layout.fragments[fragment].numel, np.float32)
            values[-1] = np.inf if fragment else 0
            peer.send_chunked(wire.FinalFragment(fragment, version, values.tobytes()))
        peer.send(wire.FinalManifest(9, (9, 8)))
        with pytest.raises(
            ProtocolError, match="final value of fragment 1 is not finite; nothing was written"
        ):
            made.finish(timeout=WAIT)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, before[name])
        peer.expect_nothing()  # no acknowledgement


def test_a_shutdown_that_never_comes_is_said() -> None:
    with running() as (made, peer, _):
        send_cut(made, peer, 9)
        made.client.wait_for_final_fragments(WAIT)
        told = ""
        for seconds in (0.3, 3.0, 30.0):  # the first is enough unless the acknowledgement is held up so long
            with pytest.raises(TimeoutError) as caught:
                made.finish(timeout=seconds)
            told = str(caught.value)
            if "FINAL_ACK" not in told:
                break
        assert "no SHUTDOWN came" in told


def test_a_syncer_that_leaves_after_the_acknowledgement_does_not_fail_the_learner(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(final_cut, "SHUTDOWN_GRACE", 0.1)
    with running() as (made, peer, syncer):
        send_cut(made, peer, 9)
        finisher = threading.Thread(target=made.finish)
        finisher.start()
        peer.expect(wire.FinalAck)
        syncer.stop_listening()
        peer.close()
        finisher.join(WAIT)
        assert not finisher.is_alive()
    assert "left before SHUTDOWN" in caplog.text


def beat(made: Learner, peer: Peer) -> None:
    """Step until a heartbeat tells of it: the thread may be held up for longer than a stall may take."""
    deadline = time.monotonic() + WAIT
    while True:
        made.step()
        with suppress(queue.Empty):
            while True:
                message = peer.inbox.get(timeout=1.0)
                assert isinstance(message, wire.Heartbeat), message
                if message.local_step == made.local_step:
                    return
        assert time.monotonic() < deadline, "no heartbeat tells of the progress"


def test_heartbeats_come_from_a_thread_and_stop_with_a_stalled_loop() -> None:
    with running(heartbeat_s=0.02, heartbeat_stall_s=0.5) as (made, peer, _):
        beat(made, peer)
        deadline = time.monotonic() + WAIT
        silence = threading.Event()
        while not peer.inbox.empty() or not quiet(peer):
            assert time.monotonic() < deadline, "the heartbeat goes on without progress"
            silence.wait(0.01)
        beat(made, peer)


def test_no_stall_is_seen_while_the_end_is_waited_for() -> None:
    with running(heartbeat_s=0.02, heartbeat_stall_s=0.2) as (made, peer, _):
        finisher = threading.Thread(target=made.finish)
        finisher.start()
        begun = time.monotonic()
        while time.monotonic() < begun + 0.6:
            peer.expect(wire.Heartbeat)
        send_cut(made, peer, 9)
        peer.expect(wire.FinalAck)
        peer.send(wire.Shutdown())
        finisher.join(WAIT)
        assert not finisher.is_alive()
