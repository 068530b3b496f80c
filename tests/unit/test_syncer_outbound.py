"""The outbound side of a connection group: order, round robin, replacement, and what counts as delivered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from yeto_proto._generated.constants import CHUNK_HEAD_BYTES, HEADER_BYTES, TINY
from yeto_proto._generated.messages import BcastFragment, Error, FinalFragment, PullReq, Shutdown
from yeto_proto._generated.types import FrameType
from yeto_proto.chunks import slices
from yeto_proto.codec import decode, encode, parse_header
from yeto_syncer.shell.outbound import CONTROL, STREAM_DEPTH, Outbound

SLICE = TINY.chunk_slice


class Body:
    """A payload whose encoding the test completes by hand."""

    def __init__(self, fragment_id: int, version: int, size: int, *, final: bool = False, ready: bool = True):
        self.fragment_id = fragment_id
        self.version = version
        self.final = final
        self.ready = ready
        self.users = 0
        self.wanted: list[Callable[[], None]] = []
        self.data = bytes([version % 256]) * size

    def want(self, wake: Callable[[], None]) -> None:
        self.wanted.append(wake)

    def encoded(self) -> None:
        self.ready = True
        for wake in self.wanted:
            wake()

    def message(self) -> BcastFragment | FinalFragment:
        assert self.ready
        kind = FinalFragment if self.final else BcastFragment
        return kind(self.fragment_id, self.version, self.data)

    def retain(self) -> None:
        self.users += 1

    def release(self) -> None:
        self.users -= 1
        assert self.users >= 0


class Peer:
    """Drains an Outbound like a kernel that takes `appetite` bytes a write, and remembers what went where."""

    def __init__(self, outbound: Outbound) -> None:
        self.outbound = outbound
        self.got: dict[int, bytearray] = {}
        self.order: list[tuple[int, int, int]] = []

    def write(self, stream: int, appetite: int | None = None) -> int:
        """One vectored write; returns the bytes taken."""
        data = b"".join(bytes(buffer) for buffer in self.outbound.next(stream))[:appetite]
        if data:
            self.got.setdefault(stream, bytearray()).extend(data)
            self.outbound.sent(stream, len(data))
        return len(data)

    def drain(self, *streams: int, appetite: int | None = None) -> None:
        """Write to the streams in turn until none of them takes anything."""
        while sum(self.write(stream, appetite) for stream in streams or self.outbound.streams):
            pass

    def frames(self, stream: int) -> list[tuple[int, bytes]]:
        """The whole frames that a stream has seen: type and payload."""
        data, frames = bytes(self.got.get(stream, b"")), []
        while data:
            _, kind, length = parse_header(data)
            end = HEADER_BYTES + length
            assert len(data) >= end, "a frame is torn"
            frames.append((kind, data[HEADER_BYTES:end]))
            data = data[end:]
        return frames

    def chunks(self, stream: int) -> list[tuple[int, int]]:
        """(msg_id, offset) of every chunk that a stream has seen."""
        found = []
        for kind, payload in self.frames(stream):
            if kind == FrameType.CHUNK:
                chunk = decode(kind, payload)
                found.append((chunk.msg_id, chunk.offset))
        return found

    def messages(self) -> list[BcastFragment | FinalFragment]:
        """The bulk messages that all streams together complete, in order of msg_id."""
        parts: dict[int, dict[int, bytes]] = {}
        totals: dict[int, int] = {}
        for stream in self.got:
            for kind, payload in self.frames(stream):
                if kind == FrameType.CHUNK:
                    chunk = decode(kind, payload)
                    parts.setdefault(chunk.msg_id, {})[chunk.offset] = bytes(chunk.data)
                    totals[chunk.msg_id] = chunk.total_len
        whole = []
        for msg_id in sorted(parts):
            inner = b"".join(parts[msg_id][offset] for offset in sorted(parts[msg_id]))
            if len(inner) == totals[msg_id]:
                whole.append(decode(parse_header(inner)[1], inner[HEADER_BYTES:]))
        return whole


def make(
    *, streams: int = 0, limit: int = 10_000, wake: Callable[[], None] = lambda: None, announced: int = 0
) -> Outbound:
    outbound = Outbound(
        wake, limit, lambda message, msg_id: slices(message, msg_id, TINY), announced=announced
    )
    for stream in range(streams):
        outbound.attach(stream)
    return outbound


def test_small_frames_keep_their_order_on_the_control_stream() -> None:
    outbound = make(streams=2, limit=1 << 20)
    peer = Peer(outbound)
    sent = [PullReq(0, step, 1) for step in range(1, 600)]
    for message in sent:
        assert outbound.send(message)
        peer.write(CONTROL, 7)
    peer.drain()
    assert [decode(*frame) for frame in peer.frames(CONTROL)] == sent
    assert outbound.idle
    assert 0 not in peer.got


@pytest.mark.rule("chunk.streams.round_robin")
def test_chunks_go_round_the_streams_and_the_counter_runs_on_across_messages() -> None:
    outbound = make(streams=3)
    peer = Peer(outbound)
    for fragment in range(3):
        outbound.deliver([Body(fragment, 1, SLICE * 3)], fragment)  # four chunks each: header and fixed part
    peer.drain()
    dealt = sorted((peer.chunks(stream), stream) for stream in range(3))
    order = sorted((chunk, stream) for chunks, stream in dealt for chunk in chunks)
    assert [stream for _, stream in order] == [number % 3 for number in range(12)]
    assert CONTROL not in peer.got
    assert [message.fragment_id for message in peer.messages()] == [0, 1, 2]
    assert outbound.delivered() == [0, 1, 2]


@pytest.mark.rule("chunk.streams.none")
def test_without_data_streams_bulk_is_wrapped_on_the_control_stream() -> None:
    outbound = make()
    peer = Peer(outbound)
    outbound.send(PullReq(0, 1, 1))
    outbound.deliver([Body(0, 5, 3)], 1)
    outbound.send(PullReq(1, 2, 1))
    peer.drain()
    kinds = [kind for kind, _ in peer.frames(CONTROL)]
    assert kinds.count(FrameType.CHUNK) == 1
    assert kinds.count(FrameType.PULL_REQ) == 2
    assert peer.messages() == [BcastFragment(0, 5, memoryview(bytes([5]) * 3))]


def test_streams_attached_later_are_used_from_the_next_message_on() -> None:
    outbound = make(streams=1)
    peer = Peer(outbound)
    outbound.deliver([Body(0, 1, SLICE * 6)], None)
    peer.write(0)
    outbound.attach(1)
    outbound.deliver([Body(1, 1, SLICE * 6)], None)
    peer.drain()
    assert {msg_id for msg_id, _ in peer.chunks(0)} == {0, 1}
    assert {msg_id for msg_id, _ in peer.chunks(1)} == {1}
    assert len(peer.messages()) == 2


def test_only_a_few_chunks_are_cut_ahead() -> None:
    outbound = make(streams=2)
    outbound.deliver([Body(0, 1, SLICE * 100)], None)
    for stream in range(2):
        waiting = sum(len(buffer) for buffer in outbound.next(stream))
        assert waiting <= STREAM_DEPTH * (SLICE + HEADER_BYTES + CHUNK_HEAD_BYTES)


@pytest.mark.rule("syncer.broadcast.newest")
def test_a_newer_version_takes_the_place_of_an_older_one_that_has_not_started() -> None:
    outbound = make(streams=1)
    peer = Peer(outbound)
    first, old, other, new = (Body(0, 1, SLICE * 9), Body(1, 2, 8), Body(2, 3, 8), Body(1, 5, 8))
    outbound.deliver([first], 10)
    peer.write(0, 5)  # the first message has started
    outbound.deliver([old], 11)
    outbound.deliver([other], 12)
    outbound.deliver([new], 13)
    assert old.users == 0
    peer.drain()
    assert [(m.fragment_id, m.version) for m in peer.messages()] == [(0, 1), (1, 5), (2, 3)]
    assert outbound.delivered() == [10, 11, 13, 12]
    assert [body.users for body in (first, other, new)] == [0, 0, 0]


def test_a_message_that_has_started_is_finished_before_its_newer_version() -> None:
    outbound = make(streams=1)
    peer = Peer(outbound)
    outbound.deliver([Body(0, 1, SLICE * 4)], 1)
    peer.write(0, 1)
    outbound.deliver([Body(0, 2, SLICE * 4)], 2)
    peer.drain()
    assert [m.version for m in peer.messages()] == [1, 2]
    assert outbound.delivered() == [1, 2]


def test_an_older_version_never_replaces_a_newer_one() -> None:
    outbound = make(streams=1)
    peer = Peer(outbound)
    blocker, newer, older = Body(9, 1, SLICE * 9), Body(0, 7, 4), Body(0, 3, 4)
    outbound.deliver([blocker], None)
    peer.write(0, 1)
    outbound.deliver([newer], 1)
    outbound.deliver([older], 2)
    peer.drain()
    assert [m.version for m in peer.messages()] == [1, 7]
    assert outbound.delivered() == [1, 2]
    assert (newer.users, older.users) == (0, 0)


@pytest.mark.rule("final_fragment.version.apart")
def test_final_fragments_are_never_replaced_and_replace_nothing() -> None:
    outbound = make(streams=1)
    peer = Peer(outbound)
    outbound.deliver([Body(9, 1, SLICE * 9)], None)
    peer.write(0, 1)
    outbound.deliver([Body(0, 4, 4)], None)
    outbound.deliver([Body(0, 5, 4, final=True)], None)
    outbound.deliver([Body(0, 5, 4, final=True)], None)
    peer.drain()
    seen = [(type(m).__name__, m.version) for m in peer.messages()[1:]]
    assert seen == [("BcastFragment", 4), ("FinalFragment", 5), ("FinalFragment", 5)]


def test_delivered_waits_for_the_last_byte_of_every_fragment() -> None:
    outbound = make(streams=2)
    peer = Peer(outbound)
    outbound.deliver([Body(fragment, 1, SLICE * 2) for fragment in range(3)], 42)
    total = 0
    while count := peer.write(0, 11) + peer.write(1, 13):
        total += count
        if outbound.delivered():
            break
    assert outbound.idle, "something was left when the delivery was reported"
    assert total == sum(len(data) for data in peer.got.values())
    assert len(peer.messages()) == 3


def test_a_delivery_of_nothing_is_complete_at_once() -> None:
    outbound = make()
    outbound.deliver([], 7)
    assert outbound.delivered() == [7]
    assert outbound.idle


def test_bulk_waits_for_its_encoding_and_small_frames_do_not() -> None:
    woken: list[bool] = []
    outbound = make(streams=1, wake=lambda: woken.append(True))
    peer = Peer(outbound)
    body = Body(0, 1, 10, ready=False)
    outbound.deliver([body], 1)
    outbound.send(Shutdown())
    peer.drain()
    assert [kind for kind, _ in peer.frames(CONTROL)] == [FrameType.SHUTDOWN]
    assert not outbound.idle
    assert body.wanted and not woken
    body.encoded()
    assert woken
    peer.drain()
    assert outbound.delivered() == [1]


def test_bulk_waits_for_the_streams_that_were_announced_and_small_frames_do_not() -> None:
    outbound = make(announced=3)
    peer = Peer(outbound)
    outbound.deliver([Body(0, 1, SLICE * 9)], 1)
    outbound.send(Shutdown())
    for stream in range(3):
        peer.drain()
        assert list(peer.got) == [CONTROL] and not outbound.idle
        outbound.attach(stream)
    peer.drain()
    assert [kind for kind, _ in peer.frames(CONTROL)] == [FrameType.SHUTDOWN]
    assert all(len(peer.chunks(stream)) >= 3 for stream in range(3))
    assert outbound.delivered() == [1]


@pytest.mark.parametrize("attached", [0, 2])
def test_streams_that_do_not_come_are_not_waited_for_for_ever(attached: int) -> None:
    outbound = make(streams=0, announced=4)
    for stream in range(attached):
        outbound.attach(stream)
    peer = Peer(outbound)
    outbound.deliver([Body(0, 1, SLICE * 9)], 1)
    peer.drain()
    assert not peer.got
    outbound.wait_no_more()
    peer.drain()
    assert set(peer.got) == (set(range(attached)) or {CONTROL})
    assert outbound.delivered() == [1]


def test_a_stream_that_is_lost_later_is_not_waited_for() -> None:
    outbound = make(announced=2)
    outbound.attach(0)
    outbound.attach(1)
    outbound.detach(1)
    outbound.deliver([Body(0, 1, SLICE * 9)], 1)
    peer = Peer(outbound)
    peer.drain()
    assert set(peer.got) == {0}


def test_a_message_is_encoded_while_streams_are_waited_for() -> None:
    outbound = make(announced=1)
    body = Body(0, 1, 10, ready=False)
    outbound.deliver([body], 1)
    assert not outbound.next(CONTROL)
    assert body.wanted


def test_the_next_message_is_encoded_while_one_is_being_sent() -> None:
    outbound = make(streams=1)
    first, second = Body(0, 1, SLICE * 9), Body(1, 1, 10, ready=False)
    outbound.deliver([first, second], 1)
    Peer(outbound).write(0, 1)
    assert second.wanted


@pytest.mark.rule("syncer.write_queue.bounded")
def test_too_many_small_frames_are_reported() -> None:
    outbound = make(limit=100)
    peer = Peer(outbound)
    assert outbound.send(PullReq(0, 1, 1))
    peer.drain()
    assert all(outbound.send(PullReq(0, 1, 1)) for _ in range(3))
    assert not outbound.send(PullReq(0, 1, 1))


@pytest.mark.parametrize("written", [0, 5, 70, 300])
def test_a_message_that_loses_a_stream_starts_again_on_the_others(written: int) -> None:
    outbound = make(streams=2)
    peer = Peer(outbound)
    body, later = Body(0, 1, SLICE * 12), Body(1, 1, 10)
    outbound.deliver([body], 1)
    outbound.deliver([later], 2)
    peer.write(0, written)
    peer.write(1, written)
    outbound.detach(1)
    peer.got.pop(1, None)
    peer.drain()
    whole = {message.fragment_id: bytes(message.tensor) for message in peer.messages()}
    assert whole == {0: body.data, 1: later.data}
    assert sorted(outbound.delivered()) == [1, 2]
    assert (body.users, later.users) == (0, 0)
    assert outbound.idle


def test_a_lost_stream_without_parts_of_a_message_changes_nothing() -> None:
    outbound = make(streams=2)
    peer = Peer(outbound)
    outbound.deliver([Body(0, 1, SLICE * 3)], 1)
    peer.drain()
    outbound.detach(1)
    outbound.detach(1)
    assert outbound.delivered() == [1]
    assert outbound.idle


def test_a_broken_message_yields_to_a_newer_version_of_its_fragment() -> None:
    outbound = make(streams=1)
    peer = Peer(outbound)
    old, new = Body(0, 1, SLICE * 9), Body(0, 2, 10)
    outbound.deliver([old], 1)
    peer.write(0, 5)
    outbound.deliver([new], 2)
    outbound.detach(0)
    peer.got.clear()
    peer.drain()
    assert [m.version for m in peer.messages()] == [2]
    assert sorted(outbound.delivered()) == [1, 2]
    assert (old.users, new.users) == (0, 0)


@pytest.mark.parametrize("written", [0, 5, 20, 60, 150])
@pytest.mark.parametrize("streams", [0, 2])
def test_close_keeps_frames_whole_and_ends_with_the_error(written: int, streams: int) -> None:
    outbound = make(streams=streams)
    peer = Peer(outbound)
    bodies = [Body(fragment, 1, SLICE * 4) for fragment in range(3)]
    outbound.deliver(bodies, 1)
    outbound.send(PullReq(0, 1, 1))
    peer.write(CONTROL, written)
    control = outbound.close(Error("session mismatch"))
    while buffers := control.take():
        data = b"".join(bytes(buffer) for buffer in buffers)[:9]
        peer.got.setdefault(CONTROL, bytearray()).extend(data)
        control.advance(len(data))
    frames = peer.frames(CONTROL)
    assert decode(*frames[-1]) == Error("session mismatch")
    assert FrameType.PULL_REQ in [kind for kind, _ in frames]
    assert [body.users for body in bodies] == [0, 0, 0]
    outbound.deliver([Body(0, 2, 4)], 2)
    assert outbound.send(PullReq(0, 1, 1))
    assert outbound.delivered() == []


def test_a_write_of_many_frames_is_bounded() -> None:
    outbound = make(limit=1 << 20)
    for step in range(2000):
        outbound.send(PullReq(0, step + 1, 1))
    assert 0 < len(outbound.next(CONTROL)) <= 1024  # what one sendmsg takes on Linux
    peer = Peer(outbound)
    peer.drain()
    assert len(peer.frames(CONTROL)) == 2000
    assert sum(map(len, encode(PullReq(0, 1, 1)))) * 2000 == len(peer.got[CONTROL])
