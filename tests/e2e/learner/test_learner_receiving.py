"""`SyncerClient`: what it keeps, refuses and pauses for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.e2e.learner.rig import SMALL, failure, until, values
from tests.e2e.scripted_syncer import WAIT, Peer, ScriptedSyncer
from yeto_learner import (
    BcastFragment,
    ProtocolError,
    PullRequest,
    SessionRejectedError,
    SyncerClient,
)
from yeto_proto._generated import messages as wire
from yeto_proto._generated.constants import DIGEST_BLOCK
from yeto_proto._generated.types import FrameType
from yeto_proto.codec import header
from yeto_proto.layout import build_layout


def test_pulls_and_broadcasts_are_drained_in_order(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make()
    peer = syncer.next_peer()
    numel = SMALL.fragments[0].numel
    peer.send(wire.PullReq(0, 1, 1))
    peer.send(wire.PullReq(1, 2, 1))
    peer.broadcast(0, 0, values(numel, 1))
    until(client, lambda: client.has_updates and len(client._link._pulls) == 2)
    peer.send(wire.BcastFragment(0, 1, values(numel, 2)))  # bare, on the control stream
    until(client, lambda: len(client._link._updates) == 2)
    assert client.drain_pulls() == [PullRequest(0, 1, 1), PullRequest(1, 2, 1)]
    assert client.drain_updates() == [
        BcastFragment(0, 0, values(numel, 1)),
        BcastFragment(0, 1, values(numel, 2)),
    ]
    assert client.drain_pulls() == []
    assert client.drain_updates() == []


@pytest.mark.parametrize("streams", [0, 3])
def test_chunks_in_any_order_on_any_stream_make_the_message(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient], streams: int
) -> None:
    numel = 5_000_000
    client = make(build_layout({"w": numel}, 1), num_streams=streams)
    peer = syncer.next_peer()
    data = values(numel)
    peer.send_chunked(wire.BcastFragment(0, 3, data), order=lambda chunks: chunks[::-1])
    until(client, lambda: client.has_updates)
    (update,) = client.drain_updates()
    assert bytes(update.data) == data


@pytest.mark.rule("bcast_fragment.version.replay")
def test_large_broadcasts_are_hashed_block_by_block_and_replays_recognised(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    numel = (2 * DIGEST_BLOCK + 1000) // 4
    client = make(build_layout({"w": numel}, 1), receive_budget=1 << 30)
    peer = syncer.next_peer()
    data = bytearray(values(numel))
    peer.send_chunked(wire.BcastFragment(0, 3, bytes(data)))
    until(client, lambda: client.has_updates)
    peer.send(wire.BcastFragment(0, 3, bytes(data)), stream=1)  # a bare replay has the same digest
    peer.send(wire.PullReq(0, 4, 1), stream=1)
    until(client, lambda: bool(client._link._pulls))
    client.check_health()
    assert len(client.drain_updates()) == 1
    data[-1] ^= 1
    peer.send_chunked(wire.BcastFragment(0, 3, bytes(data)))
    assert "conflicting" in str(failure(client))


def test_reading_pauses_while_broadcasts_wait(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    numel = 500_000
    client = make(build_layout({"w": numel}, 1), receive_budget=4 * numel, num_streams=1)
    peer = syncer.next_peer()
    sent = threading.Event()

    def flood() -> None:
        for version in range(40):  # 80 MB: more than the kernel holds
            peer.broadcast(0, version, values(numel, version))
        sent.set()

    flooder = threading.Thread(target=flood)
    flooder.start()
    until(client, lambda: client.has_updates)
    assert not sent.wait(0.3)
    assert client._link.update_bytes <= 8 * numel
    versions: list[int] = []
    while len(versions) < 40:
        until(client, lambda: client.has_updates)
        versions += [update.version for update in client.drain_updates()]
    flooder.join(WAIT)
    assert versions == list(range(40))


@pytest.mark.parametrize(
    ("send", "text"),
    [
        (lambda peer: peer.send_bytes(b"garbage bytes"), "bad magic"),
        (lambda peer: peer.send_bytes(header(FrameType.BCAST_FRAGMENT, 1 << 40)), "exceeds limit"),
        (lambda peer: peer.send_bytes(header(99, 0)), "unknown frame type"),
        (lambda peer: peer.send(wire.Heartbeat(0, 1)), "unexpected frame type"),
        (lambda peer: peer.send(wire.BcastFragment(0, 1, values(1))), "wrong tensor length"),
        (lambda peer: peer.send(wire.BcastFragment(7, 1, values(6))), "fragment id"),
        (lambda peer: peer.send(wire.PullReq(2, 1, 1)), "fragment id"),
        (lambda peer: peer.send(wire.FinalManifest(1, (1,))), "fragment count"),
        (lambda peer: peer.send(wire.FinalManifest(1, (1, 1), revision=2)), "revision"),
        (lambda peer: peer.send(wire.Shutdown()), "legacy SHUTDOWN"),
    ],
)
@pytest.mark.rule("shutdown.acknowledged")
@pytest.mark.rule("bcast_fragment.tensor.length")
@pytest.mark.rule("final_manifest.revision.must")
@pytest.mark.rule("pull_req.fragment_id.must")
def test_a_broken_rule_is_fatal_and_not_redialled(
    syncer: ScriptedSyncer,
    make: Callable[..., SyncerClient],
    send: Callable[[Peer], None],
    text: str,
) -> None:
    client = make(build_layout({"a": 6, "b": 6}, 2))
    peer = syncer.next_peer()
    send(peer)
    error = failure(client)
    assert text in str(error)
    assert str(error).startswith("syncer connection failed: ")
    assert isinstance(error.__cause__, ProtocolError)
    assert peer.ended.wait(WAIT)
    client.close()
    assert syncer.accepted == 3


def test_an_error_frame_is_final(syncer: ScriptedSyncer, make: Callable[..., SyncerClient]) -> None:
    client = make()
    peer = syncer.next_peer()
    peer.send(wire.Error("invalid HELLO: learner id outside configured range"))
    peer.close()
    error = failure(client)
    assert "syncer rejected protocol session: invalid HELLO: learner id outside" in str(error)
    client.close()
    assert syncer.accepted == 3


def test_a_known_refusal_raises_the_error_with_its_metric(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make()
    syncer.next_peer().send(wire.Error("session mismatch: dtype"))
    error = failure(client)
    assert isinstance(error, SessionRejectedError)
    assert error.metric == "layout_hash_mismatch"


def test_an_error_frame_behind_the_failure_of_another_socket_is_still_read() -> None:
    def refuse(peer: Peer) -> None:
        peer.close_stream(1)
        peer.send(wire.Error("session mismatch: contract"))
        peer.close()

    for _ in range(20):
        with (
            ScriptedSyncer(admit=refuse) as refusing,
            SyncerClient(refusing.address, 0, SMALL, num_streams=1) as client,
        ):
            assert isinstance(failure(client), SessionRejectedError)


def test_an_error_text_that_is_not_utf8_is_shown(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make()
    text = b"no \xff way"
    syncer.next_peer().send_bytes(header(FrameType.ERROR, len(text)) + text)
    assert "syncer rejected protocol session" in str(failure(client))


def test_values_on_the_control_stream_pause_like_those_on_data_streams(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    """Small frames are read on while values are not, up to the first frame of values (D8)."""
    numel = 500_000
    client = make(build_layout({"w": numel}, 1), receive_budget=4 * numel, num_streams=1)
    peer = syncer.next_peer()
    sent = threading.Event()

    def flood() -> None:
        for version in range(40):  # 80 MB: more than the kernel holds
            peer.send(wire.BcastFragment(0, version, values(numel, version)))
        sent.set()

    flooder = threading.Thread(target=flood)
    peer.send(wire.BcastFragment(0, 0, values(numel, 0)), stream=1)
    until(client, lambda: client.has_updates)
    peer.send(wire.PullReq(0, 1, 1))
    until(client, lambda: bool(client._link._pulls))
    flooder.start()
    assert not sent.wait(0.3)
    assert client._link.update_bytes <= 8 * numel
    versions: list[int] = []
    while not versions or versions[-1] < 39:
        until(client, lambda: client.has_updates)
        versions += [update.version for update in client.drain_updates()]
    flooder.join(WAIT)
    assert versions == list(range(40))
