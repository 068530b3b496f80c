"""`Subscriber`: follows a run on an observer id and sends nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.e2e.learner.rig import F32, parameters, values
from tests.e2e.scripted_syncer import WAIT, Peer, ScriptedSyncer
from yeto_learner import Subscriber
from yeto_learner.errors import ProtocolError
from yeto_proto import dtypes
from yeto_proto._generated import messages as wire
from yeto_proto._generated.types import Dtype


def flat(subscriber: Subscriber, arrays: dict[str, F32], fragment: int) -> F32:
    return np.concatenate(
        [arrays[tensor.name].reshape(-1) for tensor in subscriber.layout.fragments[fragment].tensors]
    )


def broadcast(peer: Peer, fragment: int, version: int, seed: int) -> F32:
    data = bytes(dtypes.encode(Dtype.BF16, np.frombuffer(values(peer.session.numel(fragment), seed), "<f4")))
    peer.broadcast(fragment, version, data)
    return dtypes.decode(Dtype.BF16, data, peer.session.numel(fragment))


def test_a_subscriber_follows_to_the_end_and_sends_nothing() -> None:
    arrays = parameters()
    with (
        ScriptedSyncer() as syncer,
        Subscriber(
            arrays, syncer.address, observer_id=7, num_fragments=2, num_streams=1, session_contract="test"
        ) as subscriber,
    ):
        peer = syncer.next_peer()
        assert peer.hello.learner_id == 7
        assert subscriber.update() == []
        first = broadcast(peer, 1, 4, 1)
        assert subscriber.update(timeout=WAIT) == [1]
        np.testing.assert_array_equal(flat(subscriber, arrays, 1), first)
        assert subscriber.versions == [None, 4]
        assert subscriber.global_step == 4
        finals = []
        for fragment in range(2):
            tensor = values(peer.session.numel(fragment), 10 + fragment)
            finals.append(np.frombuffer(tensor, "<f4"))
            peer.send_chunked(wire.FinalFragment(fragment, 5 + fragment, tensor))
        peer.send(wire.FinalManifest(6, (5, 6)))
        assert subscriber.client.finalizing.wait(WAIT)
        assert subscriber.done
        subscriber.finish(WAIT)
        for fragment in range(2):
            np.testing.assert_array_equal(flat(subscriber, arrays, fragment), finals[fragment])
        assert subscriber.versions == [5, 6]
        peer.expect_nothing()


def test_a_broadcast_that_is_not_finite_leaves_the_parameters_untouched() -> None:
    arrays = parameters()
    with (
        ScriptedSyncer() as syncer,
        Subscriber(
            arrays, syncer.address, observer_id=7, num_fragments=2, num_streams=1, session_contract="test"
        ) as subscriber,
    ):
        peer = syncer.next_peer()
        before = flat(subscriber, arrays, 1)
        bad = np.full(peer.session.numel(1), np.nan, np.float32)
        peer.broadcast(1, 4, bytes(dtypes.encode(Dtype.BF16, bad)))
        with pytest.raises(ProtocolError, match="version 4 of fragment 1 is not finite"):
            subscriber.update(timeout=WAIT)
        np.testing.assert_array_equal(flat(subscriber, arrays, 1), before)


def test_an_observer_that_finished_too_early_follows_on() -> None:
    arrays = parameters()
    with (
        ScriptedSyncer() as syncer,
        Subscriber(
            arrays, syncer.address, observer_id=7, num_fragments=2, num_streams=1, session_contract="test"
        ) as subscriber,
    ):
        peer = syncer.next_peer()
        tensor = values(peer.session.numel(1), 3)
        data = bytes(dtypes.encode(Dtype.BF16, np.frombuffer(tensor, np.float32)))
        peer.broadcast(1, 4, data)
        assert subscriber.client.wait_for(lambda: subscriber.client.has_updates, WAIT)
        with pytest.raises(TimeoutError, match="no FINAL_MANIFEST"):
            subscriber.finish(0.1)
        syncer.next_peer().broadcast(1, 4, data)  # its catch-up
        assert subscriber.update(timeout=WAIT) == [1]
        np.testing.assert_array_equal(
            flat(subscriber, arrays, 1), dtypes.decode(Dtype.BF16, data, peer.session.numel(1))
        )


def test_an_incomplete_final_cut_leaves_the_parameters_untouched() -> None:
    arrays = parameters()
    before = {name: array.copy() for name, array in arrays.items()}
    with (
        ScriptedSyncer() as syncer,
        Subscriber(arrays, syncer.address, observer_id=7, num_fragments=2, num_streams=1) as subscriber,
    ):
        syncer.next_peer().send(wire.FinalManifest(6, (5, 6)))
        assert subscriber.client.finalizing.wait(WAIT)
        with pytest.raises(TimeoutError, match="incomplete"):
            subscriber.finish(0.2)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, before[name])
