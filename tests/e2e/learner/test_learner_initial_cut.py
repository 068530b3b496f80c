"""`Learner`: initial values, the first cut, and what may go wrong on the way."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.learner.rig import (
    F32,
    Initializer,
    arrived,
    flat,
    parameters,
    running,
    train,
    wait_until,
    wire_values,
)
from tests.e2e.processes import reserved_port
from tests.e2e.scripted_syncer import Peer, ScriptedSyncer
from yeto_learner import Learner, SessionRejectedError, initial_cut
from yeto_proto import dtypes
from yeto_proto._generated import messages as wire
from yeto_proto._generated.errors import WrongState
from yeto_proto._generated.messages import Message
from yeto_proto._generated.types import Dtype


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q4"])
@pytest.mark.parametrize("streams", [0, 2])
def test_learner_0_sends_the_initial_values_and_installs_the_first_cut(dtype: str, streams: int) -> None:
    arrays, initializer = parameters(), Initializer()
    original = {name: array.copy() for name, array in arrays.items()}
    with running(arrays, initializer, dtype=dtype, num_streams=streams) as (made, peer, _):
        bulk = Dtype.F32 if dtype == "f32" else Dtype.BF16
        for fragment in range(2):
            sent = bytes(dtypes.encode(bulk, flat(made, original, fragment)))
            assert initializer.tensors[fragment] == sent
            np.testing.assert_array_equal(
                flat(made, arrays, fragment),
                dtypes.decode(bulk, sent, made.layout.fragments[fragment].numel),
            )
        assert made.versions == [0, 0]
        assert (made.global_step, made.local_step, made.rounds_answered) == (0, 0, 0)
        assert made.connected
        assert made.generation == peer.hello.connection_generation
        assert made.bytes_sent > 0
        assert made.bytes_received > 0


def test_other_learners_send_nothing_and_take_the_first_cut() -> None:
    arrays = parameters()
    served: list[F32] = []

    def admit(peer: Peer) -> None:
        for fragment in range(2):
            numel = peer.session.numel(fragment)
            served.append(np.full(numel, fragment + 0.5, np.float32))
            peer.broadcast(fragment, 6, served[-1].tobytes())

    with (
        ScriptedSyncer(admit=admit) as syncer,
        Learner(
            arrays, syncer.address, learner_id=3, num_fragments=2, dtype="f32", session_contract="test"
        ) as made,
    ):
        peer = syncer.next_peer()
        assert made.versions == [6, 6]
        for fragment in range(2):
            np.testing.assert_array_equal(flat(made, arrays, fragment), served[fragment])
        peer.expect_nothing()


def test_initial_values_go_out_again_on_a_new_connection() -> None:
    lost: list[Peer] = []
    initializer = Initializer()

    def drop_first(peer: Peer, message: Message) -> bool:
        if isinstance(message, wire.InitParams) and not lost:
            lost.append(peer)
            peer.close()
            return True
        return peer not in lost and initializer(peer, message)

    with running(on_message=drop_first) as (made, first, syncer):
        assert first is lost[0]
        assert syncer.next_peer().hello.connection_generation == made.generation


def test_a_cut_that_does_not_come_is_told_while_it_is_waited_for_and_then_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(initial_cut, "WAIT_NOTICE", 0.05)
    for seconds in (0.2, 2.0, 20.0):  # the first is enough unless the learner is held up for so long
        options = {"num_fragments": 2, "session_contract": "t", "initial_cut_timeout_s": seconds}
        with (
            ScriptedSyncer(lambda peer, message: True) as syncer,
            pytest.raises(TimeoutError, match=rf"no initial cut within {seconds:g} s: no fragments \[0, 1\]"),
            Learner(parameters(), syncer.address, **options),  # type: ignore[arg-type]
        ):
            pass
        if "waiting for the first broadcasts" in caplog.text:
            break
    assert caplog.text.count("waiting for the first broadcasts") == 1
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("yeto-")] == []


def test_heartbeats_come_during_the_initial_cut_however_short_a_stall_may_be() -> None:
    initializer, enough = Initializer(), threading.Event()
    beats: list[int] = []

    def on_message(peer: Peer, message: Message) -> bool:
        if isinstance(message, wire.Heartbeat):
            beats.append(message.local_step)
            if len(beats) == 20:  # 0.4 s, four times the stall
                enough.set()
            return True
        if isinstance(message, wire.InitParams):
            held.append((peer, message))
            return True
        return False

    held: list[tuple[Peer, wire.InitParams]] = []

    def answer() -> None:
        wait_until(lambda: enough.is_set() and len(held) == 2)
        for peer, message in held:
            initializer(peer, message)

    answering = threading.Thread(target=answer)
    answering.start()
    with running(on_message=on_message, heartbeat_s=0.02, heartbeat_stall_s=0.1, num_streams=0):
        pass
    answering.join()
    assert enough.is_set()
    assert set(beats) == {0}


def test_a_resumed_learner_tells_its_step_in_the_first_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "record.npz"
    with running() as (made, _, _):
        for _ in range(3):
            made.step()
        made.save_state(path)
    beats: list[int] = []
    heard = threading.Event()

    def on_message(peer: Peer, message: Message) -> bool:
        if isinstance(message, wire.Heartbeat):
            beats.append(message.local_step)
            if not heard.is_set():
                heard.set()
                for fragment in range(2):
                    peer.broadcast(fragment, 0, bytes(4 * peer.session.numel(fragment)))
        return True

    with running(on_message=on_message, heartbeat_s=0.02, resume=path) as (made, _, _):
        assert made.local_step == 3
    assert set(beats) == {3}


def test_an_unreachable_syncer_leaves_nothing_behind() -> None:
    with reserved_port() as port:
        made = Learner(parameters(), f"127.0.0.1:{port}", session_contract="t", connect_timeout_s=0.1)
        with pytest.raises(ConnectionError, match="is yeto-syncer running"):
            made.open()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("yeto-")] == []
    with pytest.raises(WrongState):
        made.step()


def test_a_refusal_reaches_the_caller_while_it_waits_for_the_cut() -> None:
    def refuse(peer: Peer) -> None:
        peer.send(wire.Error("session mismatch: num_fragments is 2, not 3"))
        peer.close()

    with (
        ScriptedSyncer(admit=refuse) as syncer,
        pytest.raises(SessionRejectedError, match="num_fragments is 2, not 3"),
        Learner(parameters(), syncer.address, num_fragments=2, session_contract="t"),
    ):
        pass


def test_without_the_wait_the_first_broadcasts_come_at_a_boundary() -> None:
    arrays = parameters()
    with running(arrays, lambda peer, message: False, initial_cut_timeout_s=0) as (made, peer, _):
        for _ in range(2):
            peer.expect(wire.InitParams)
        assert made.versions == [None, None]
        raw, data = wire_values(made, 1, 3)
        peer.send(wire.PullReq(1, 2, 1))
        peer.broadcast(1, 0, data)
        arrived(made, updates=1, pulls=1)
        train(arrays)
        made.step(tokens=5)
        np.testing.assert_array_equal(flat(made, arrays, 1), raw)  # the first one overwrites
        peer.expect_nothing()  # no local step since the anchor
        train(arrays)
        made.step(tokens=7)
        push = peer.expect(wire.PushFragment)
        assert (push.base_version, push.c_steps, push.c_tokens, push.local_step) == (0, 1, 7, 2)
