"""`SyncerClient`: the final cut, its acknowledgement, and the budget report."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from tests.e2e.learner.rig import SMALL, final_cut, until, values
from tests.e2e.scripted_syncer import WAIT, ScriptedSyncer
from yeto_learner import FinalManifest, SyncerClient, channel, connection
from yeto_proto import dtypes
from yeto_proto._generated import messages as wire
from yeto_proto._generated.types import Dtype


@pytest.mark.rule("shutdown.acknowledged")
def test_the_final_exchange(syncer: ScriptedSyncer, make: Callable[..., SyncerClient]) -> None:
    client = make(dtype="bf16")
    peer = syncer.next_peer()
    numel = SMALL.fragments[0].numel
    peer.broadcast(0, 9, bytes(dtypes.encode(Dtype.BF16, np.frombuffer(values(numel), "<f4"))))
    tensors = final_cut(peer, SMALL, 9)
    manifest, finals = client.wait_for_final_fragments(WAIT)
    assert manifest == FinalManifest(9, (9, 8))
    assert [bytes(final.data) for final in finals] == tensors
    assert client.finalizing.is_set()
    assert not client.finalized.is_set()
    assert [update.version for update in client.drain_updates()] == [9]
    client.acknowledge_finalization(manifest, WAIT)
    assert client.finalized.is_set()
    assert peer.expect(wire.FinalAck) == wire.FinalAck(9)
    peer.send(wire.Shutdown())
    assert client.shutdown.wait(WAIT)
    peer.close()
    assert peer.ended.wait(WAIT)
    client.check_health()
    client.close()
    assert syncer.accepted == 3  # no redial after SHUTDOWN


def test_what_is_missing_of_the_final_cut_is_named(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make()
    peer = syncer.next_peer()
    with pytest.raises(TimeoutError, match="no FINAL_MANIFEST"):
        client.wait_for_final_fragments(0.05)
    peer.send_chunked(wire.FinalFragment(0, 8, values(SMALL.fragments[0].numel)))
    peer.send(wire.FinalManifest(9, (9, 8)))
    assert client.finalizing.wait(WAIT)
    with pytest.raises(
        TimeoutError, match=r"fragment 0: version 9 wanted, .* held, fragment 1: version 8 wanted, none"
    ):
        client.wait_for_final_fragments(0.5)


def test_only_the_held_manifest_is_acknowledged(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make()
    peer = syncer.next_peer()
    final_cut(peer, SMALL, 9)
    client.wait_for_final_fragments(WAIT)
    with pytest.raises(RuntimeError, match="not the held one"):
        client.acknowledge_finalization(FinalManifest(8, (7, 8)), 1)
    peer.expect_nothing()


def test_the_cut_survives_a_redial_and_is_acknowledged_again(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make()
    first = syncer.next_peer()
    final_cut(first, SMALL, 9)
    manifest, _ = client.wait_for_final_fragments(WAIT)
    client.acknowledge_finalization(manifest, WAIT)
    first.expect(wire.FinalAck)
    first.reset()  # the syncer never took the acknowledgement into account
    second = syncer.next_peer()
    final_cut(second, SMALL, 9)
    assert second.expect(wire.FinalAck) == wire.FinalAck(9)
    second.send(wire.Shutdown())
    assert client.shutdown.wait(WAIT)


def test_an_acknowledgement_waits_for_a_connection(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make()
    peer = syncer.next_peer()
    final_cut(peer, SMALL, 9)
    manifest, _ = client.wait_for_final_fragments(WAIT)
    release = threading.Event()
    dial = channel.dial

    def held(*arguments: object) -> object:
        assert release.wait(WAIT)
        return dial(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(connection, "dial", held)
    peer.close()
    until(client, lambda: not client.connected)
    with pytest.raises(TimeoutError, match="no connection"):
        client.acknowledge_finalization(manifest, 0.05)
    release.set()
    client.acknowledge_finalization(manifest, WAIT)
    assert syncer.next_peer().expect(wire.FinalAck) == wire.FinalAck(9)


def test_the_budget_report_and_the_rewound_restart(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make()
    first = syncer.next_peer()
    numel = SMALL.fragments[0].numel
    first.broadcast(0, 9, values(numel))
    until(client, lambda: client.has_updates)
    epoch = client.send_budget_done(500, WAIT)
    assert first.expect(wire.BudgetDone) == wire.BudgetDone(500)
    first.close()
    client.wait_for_budget_restart(epoch, WAIT)
    syncer.next_peer().broadcast(0, 5, values(numel, 1))
    until(client, lambda: client.has_updates)
    assert [update.version for update in client.drain_updates()] == [5]
