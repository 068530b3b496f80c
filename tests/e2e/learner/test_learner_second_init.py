"""`Learner` with a syncer that comes back without parameters, or seems to."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.e2e.learner.rig import (
    OnlyFirst,
    arrived,
    caught_up,
    flat,
    parameters,
    running,
    train,
    wait_until,
    wire_values,
)
from tests.e2e.scripted_syncer import WAIT, Peer, ScriptedSyncer
from yeto_learner import Learner, channel, connection
from yeto_proto._generated import messages as wire


def redialled(made: Learner, first: Peer, syncer: ScriptedSyncer) -> Peer:
    """The syncer is gone and back; what it sends on the new connection is up to the test."""
    first.close()
    second = syncer.next_peer()
    generation = second.hello.connection_generation
    assert made.client.wait_for(lambda: made.connected and made.generation == generation, WAIT)
    return second


def broadcast_all(made: Learner, peer: Peer, version: int) -> list[bytes]:
    """A new version of every fragment, installed; the bytes that were sent."""
    sent = []
    for fragment in range(2):
        _, data = wire_values(made, fragment, 10 * version + fragment)
        peer.broadcast(fragment, version, data)
        sent.append(bytes(data))
    arrived(made, updates=2)
    made.step()
    assert made.versions == [version, version]
    return sent


@pytest.mark.parametrize(("dtype", "anchor_dtype"), [("f32", "f32"), ("bf16", "f32"), ("q4", "bf16")])
def test_the_last_broadcast_goes_back_bit_for_bit_and_local_progress_stays(
    dtype: str, anchor_dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = parameters()
    with running(arrays, OnlyFirst(), dtype=dtype, anchor_dtype=anchor_dtype, init_probe_s=0.0) as (
        made,
        first,
        syncer,
    ):
        sent = broadcast_all(made, first, 4)
        train(arrays)
        made.step(tokens=5)
        local = [flat(made, arrays, fragment) for fragment in range(2)]
        second = redialled(made, first, syncer)
        made.step(tokens=5)
        got = [second.expect(wire.InitParams) for _ in range(2)]
        assert {each.fragment_id: bytes(each.tensor) for each in got} == dict(enumerate(sent))
        made.step(tokens=5)  # once on a connection
        second.expect_nothing()
        assert caplog.text.count("in case it has no parameters") == 1
        for fragment in range(2):
            second.broadcast(fragment, 0, sent[fragment])
        caught_up(made)
        made.step(tokens=5)
        assert made.versions == [0, 0]
        for fragment in range(2):
            np.testing.assert_allclose(flat(made, arrays, fragment), local[fragment], rtol=1e-6, atol=1e-6)
        second.send(wire.PullReq(0, 1, 1))
        arrived(made, pulls=1)
        made.step(tokens=5)
        push = second.expect(wire.PushFragment)
        assert (push.base_version, push.c_steps, push.c_tokens) == (0, 5, 25)


def test_each_connection_without_a_word_gets_them_again() -> None:
    with running(None, OnlyFirst(), init_probe_s=0.0) as (made, first, syncer):
        peer = first
        for _ in range(2):
            peer = redialled(made, peer, syncer)
            made.step()
            for _ in range(2):
                peer.expect(wire.InitParams)


@pytest.mark.parametrize("word", ["a broadcast", "a pull"])
def test_a_syncer_that_says_something_has_its_parameters(word: str) -> None:
    with running(None, OnlyFirst(), init_probe_s=0.0) as (made, first, syncer):
        second = redialled(made, first, syncer)
        if word == "a broadcast":
            _, data = wire_values(made, 0, 4)
            second.broadcast(0, 1, data)
            arrived(made, updates=1)
        else:
            second.send(wire.PullReq(0, 1, 1))
            arrived(made, pulls=1)
        made.step()
        made.step()
        second.expect_nothing()


@pytest.mark.parametrize(
    "options",
    [
        {"accept_rewound_catch_up": False, "init_probe_s": 0.0},  # it would not take version 0 again
        {},  # there is time: 60 s
    ],
    ids=["no rewinding", "patience"],
)
def test_who_sends_nothing(options: dict[str, object]) -> None:
    with running(None, OnlyFirst(), **options) as (made, first, syncer):
        second = redialled(made, first, syncer)
        made.step()
        made.step()
        second.expect_nothing()


def test_only_learner_0_sends_them() -> None:
    served: list[Peer] = []

    def admit(peer: Peer) -> None:
        if not served:
            for fragment in range(2):
                peer.broadcast(fragment, 0, bytes(4 * peer.session.numel(fragment)))
        served.append(peer)

    with (
        ScriptedSyncer(admit=admit) as syncer,
        Learner(
            parameters(),
            syncer.address,
            learner_id=1,
            num_fragments=2,
            dtype="f32",
            session_contract="test",
            init_probe_s=0.0,
        ) as made,
    ):
        second = redialled(made, syncer.next_peer(), syncer)
        made.step()
        made.step()
        second.expect_nothing()


def test_nothing_is_sent_while_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    back = threading.Event()
    dial = channel.dial

    def held(*arguments: object) -> object:
        assert back.wait(WAIT)
        return dial(*arguments)  # type: ignore[arg-type]

    with running(None, OnlyFirst(), init_probe_s=0.0) as (made, first, syncer):
        monkeypatch.setattr(connection, "dial", held)
        first.close()
        wait_until(lambda: not made.connected)
        made.step()
        back.set()
        second = syncer.next_peer()
        assert made.client.wait_for(lambda: made.connected, WAIT)
        made.step()
        for _ in range(2):
            second.expect(wire.InitParams)


def test_a_learner_that_does_not_wait_sends_its_values_again_to_a_syncer_that_lost_them() -> None:
    arrays = parameters()
    with running(arrays, lambda peer, message: False, initial_cut_timeout_s=0, init_probe_s=0.0) as (
        made,
        first,
        syncer,
    ):
        for _ in range(2):
            first.expect(wire.InitParams)
        train(arrays)
        made.step()
        second = redialled(made, first, syncer)
        made.step()
        got = {
            each.fragment_id: bytes(each.tensor) for each in (second.expect(wire.InitParams) for _ in "ab")
        }
        assert got == {fragment: flat(made, arrays, fragment).tobytes() for fragment in range(2)}
        for fragment in range(2):
            second.broadcast(fragment, 0, got[fragment])
        caught_up(made)
        made.step()
        assert made.versions == [0, 0]
