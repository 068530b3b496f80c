"""`SyncerClient`: what it sends, whole or in parts, and back-pressure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

from tests.e2e.learner.rig import SMALL, until, values, wait_until
from tests.e2e.scripted_syncer import WAIT, ScriptedSyncer
from yeto_learner import PartialMessageGenerationLost, SyncerClient
from yeto_proto import dtypes
from yeto_proto._generated import messages as wire
from yeto_proto._generated.constants import CHUNK_SLICE
from yeto_proto.layout import build_layout


@pytest.mark.parametrize("streams", [0, 3])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q4"])
def test_a_push_arrives_with_exactly_its_bytes(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient], streams: int, dtype: str
) -> None:
    numel = 2_500_000  # several chunks in every dtype but q4
    client = make(build_layout({"w": numel}, 1), dtype=dtype, num_streams=streams)
    delta = np.random.default_rng(1).normal(size=numel).astype(np.float32)
    data = bytes(dtypes.encode(client.dtype, delta))
    client.push_fragment(0, 9, 2, 5, 77, 8, 640, data)
    push = syncer.next_peer().expect(wire.PushFragment)
    assert bytes(push.delta) == data
    assert push == wire.PushFragment(0, 0, 9, 2, 5, 77, 8, 640, push.delta)


def test_parts_make_the_same_bytes(syncer: ScriptedSyncer, make: Callable[..., SyncerClient]) -> None:
    numel = 3_000_000
    client = make(build_layout({"w": numel}, 1))
    data = values(numel)
    cuts = [0, 1, 1, 1000, CHUNK_SLICE + 3, len(data)]
    parts = [data[start:stop] for start, stop in pairwise(cuts)]
    called: list[int] = []
    assert client.send_init_parts(0, iter(parts), before_last_enqueue=lambda: called.append(1))
    assert client.push_fragment_parts(0, 1, 1, 0, 1, 1, 1, parts)
    peer = syncer.next_peer()
    assert bytes(peer.expect(wire.InitParams).tensor) == data
    assert bytes(peer.expect(wire.PushFragment).delta) == data
    assert called == [1]


def watched(put: Callable[..., bool], index: int, seen: list[int]) -> Callable[..., bool]:
    def noted(*arguments: object, **options: object) -> bool:
        seen.append(index)
        return put(*arguments, **options)

    return noted


def test_chunks_go_round_the_data_streams(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    client = make(build_layout({"w": 4_000_000}, 1), num_streams=3)
    group = client._connection.group
    assert group is not None
    for index, outbox in enumerate(group.outboxes):
        monkeypatch.setattr(outbox, "put", watched(outbox.put, index, seen))
        monkeypatch.setattr(outbox, "offer", watched(outbox.offer, index, seen))
    client.send_init(0, values(4_000_000))
    peer = syncer.next_peer()
    assert peer.expect(wire.InitParams).fragment_id == 0
    client.heartbeat(5)
    assert seen == [1, 2, 3, 1, 0]
    assert peer.expect(wire.Heartbeat) == wire.Heartbeat(0, 5)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda client: client.send_init(2, values(6)), "fragment_id must be 0 to 1"),
        (lambda client: client.send_init(0, values(5)), "20 bytes"),
        (lambda client: client.push_fragment(0, 1, 0, 0, 1, 1, 1, values(6)), "round_attempt"),
        (lambda client: client.push_fragment(0, 1, 1, 0, 1, 0, 1, values(6)), "c_steps"),
        (lambda client: client.push_fragment(0, 1, 1, 0, 1, 1, 2**64, values(6)), "c_tokens"),
        (lambda client: client.push_fragment(0, 1, 1, 0, 1, 1, 1, values(7)), "28 bytes"),
        (lambda client: client.heartbeat(-1), "local_step"),
        (lambda client: client.send_budget_done(0), "local_steps"),
    ],
)
def test_what_does_not_fit_is_refused_here(
    make: Callable[..., SyncerClient], call: Callable[[SyncerClient], None], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        call(make(build_layout({"a": 6, "b": 6}, 2), start=False))


def test_sending_without_a_connection_is_silent(make: Callable[..., SyncerClient]) -> None:
    client = make(start=False)
    numel = SMALL.fragments[0].numel
    client.send_init(0, values(numel))
    client.push_fragment(0, 1, 1, 0, 1, 1, 1, values(numel))
    client.heartbeat(1)
    taken: list[int] = []

    def parts() -> Iterator[bytes]:
        taken.append(1)
        yield values(numel)

    assert client.send_init_parts(0, parts()) is False
    assert taken == []


@pytest.mark.parametrize("length", [5_999_999, 6_000_001])
def test_parts_of_a_wrong_total_end_the_message_and_the_connection(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient], length: int
) -> None:
    client = make(build_layout({"w": 6_000_000}, 1))
    first = syncer.next_peer()
    with pytest.raises(ValueError, match="send_init_parts"):
        client.send_init_parts(0, [values(length)])
    again = syncer.next_peer()
    assert again.hello.connection_generation != first.hello.connection_generation
    first.expect_nothing()


def test_an_export_that_fails_reaches_the_caller(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make(build_layout({"w": 6_000_000}, 1))
    syncer.next_peer()
    threads = threading.active_count()

    def parts() -> Iterator[bytes]:
        yield bytes(3 * CHUNK_SLICE)
        raise ZeroDivisionError("the export broke")

    with pytest.raises(ZeroDivisionError, match="the export broke"):
        client.push_fragment_parts(0, 1, 1, 0, 1, 1, 1, parts())
    syncer.next_peer()
    until(client, lambda: client.connected)
    wait_until(lambda: threading.active_count() <= threads + 4)  # the scripted syncer serves the new sockets


def test_parts_must_be_contiguous_bytes(make: Callable[..., SyncerClient]) -> None:
    client = make(build_layout({"w": 8}, 1))
    with pytest.raises(TypeError, match="contiguous"):
        client.send_init_parts(0, [memoryview(bytes(64))[::2]])
    with pytest.raises(TypeError):
        client.send_init_parts(0, ["text"])  # type: ignore[list-item]


def test_a_stalled_syncer_blocks_a_push_with_bounded_memory(make: Callable[..., SyncerClient]) -> None:
    numel = 32_000_000
    layout = build_layout({"w": numel}, 1)
    produced: list[int] = []

    def parts() -> Iterator[bytes]:
        block = bytes(CHUNK_SLICE)
        for _ in range(4 * numel // CHUNK_SLICE):
            produced.append(len(block))
            yield block
        yield bytes(4 * numel % CHUNK_SLICE)

    with (
        ScriptedSyncer(admit=lambda peer: peer.reading.clear(), receive_buffer=1 << 16) as stalled,
        SyncerClient(stalled.address, 0, layout, "f32", 1, connect_timeout=WAIT) as client,
    ):
        peer = stalled.next_peer()
        outcome: list[object] = []
        pusher = threading.Thread(target=lambda: outcome.append(client.send_init_parts(0, parts())))
        pusher.start()
        group = client._connection.group
        assert group is not None
        bound = 16 * 1024 * 1024
        wait_until(lambda: group.outboxes[1].queued_bytes > bound - 2 * CHUNK_SLICE)
        assert group.outboxes[1].queued_bytes <= bound
        assert sum(produced) < bound + 4 * CHUNK_SLICE + (8 << 20)  # the queue, and what the kernel took
        assert pusher.is_alive()
        peer.reading.set()
        pusher.join(WAIT)
        assert outcome == [True]
        assert peer.expect(wire.InitParams).fragment_id == 0


def test_closing_ends_a_push_that_waits_for_a_stalled_syncer() -> None:
    layout = build_layout({"w": 32_000_000}, 1)
    with ScriptedSyncer(admit=lambda peer: peer.reading.clear(), receive_buffer=1 << 16) as stalled:
        client = SyncerClient(stalled.address, 0, layout, "f32", 1, connect_timeout=WAIT)
        client.start()
        stalled.next_peer()
        outcome: list[object] = []

        def push() -> None:
            try:
                client.push_fragment_parts(0, 1, 1, 0, 1, 1, 1, iter([bytes(CHUNK_SLICE)] * 31))
            except PartialMessageGenerationLost as error:
                outcome.append(error.queued_chunks)

        pusher = threading.Thread(target=push)
        pusher.start()
        group = client._connection.group
        assert group is not None
        wait_until(lambda: group.outboxes[1].queued_bytes > 3 * CHUNK_SLICE)
        client.close()
        pusher.join(WAIT)
        assert not pusher.is_alive()
        assert len(outcome) == 1


@pytest.mark.rule("learner.message.pinned")
def test_a_push_that_loses_its_link_in_the_middle_says_so(
    make: Callable[..., SyncerClient], syncer: ScriptedSyncer
) -> None:
    client = make(build_layout({"w": 6_000_000}, 1))
    peer = syncer.next_peer()

    def parts() -> Iterator[bytes]:
        yield bytes(2 * CHUNK_SLICE)
        peer.reset()
        until(client, lambda: client.connection_generation != peer.hello.connection_generation)
        yield bytes(24_000_000 - 2 * CHUNK_SLICE)

    with pytest.raises(PartialMessageGenerationLost) as caught:
        client.push_fragment_parts(0, 1, 1, 0, 1, 1, 1, parts())
    assert caught.value.connection_generation == peer.hello.connection_generation
    assert caught.value.queued_chunks >= 1
    assert caught.value.operation == "push_fragment_parts"


def test_heartbeats_go_on_behind_a_full_queue_of_bulk_on_the_only_socket() -> None:
    layout = build_layout({"w": 16_000_000}, 1)
    with (
        ScriptedSyncer(admit=lambda peer: peer.reading.clear(), receive_buffer=1 << 16) as stalled,
        SyncerClient(stalled.address, 0, layout, "f32", 0, connect_timeout=WAIT) as client,
    ):
        peer = stalled.next_peer()
        group = client._connection.group
        assert group is not None
        parts = [bytes(CHUNK_SLICE)] * 15 + [bytes(64_000_000 - 15 * CHUNK_SLICE)]
        pusher = threading.Thread(target=client.send_init_parts, args=(0, parts))
        pusher.start()
        wait_until(lambda: group.outboxes[0].queued_bytes > 16 * 1024 * 1024 - 2 * CHUNK_SLICE)
        client.heartbeat(7)
        peer.reading.set()
        pusher.join(WAIT)
        assert not pusher.is_alive()
        heard = [peer.inbox.get(timeout=WAIT) for _ in range(2)]
        assert heard[0] == wire.Heartbeat(0, 7), "it arrived in the middle of the bulk"
        assert isinstance(heard[1], wire.InitParams)
