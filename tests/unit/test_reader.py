"""Bytes to messages: what is refused on the header alone, and where the bytes of a frame go."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.wire_samples import (
    bcast,
    joined,
    push,
    received,
    refuse,
    session,
    wire,
)
from yeto_proto._generated.constants import HEADER_BYTES, MAGIC, TINY, WIRE, Preset
from yeto_proto._generated.errors import (
    BadArgument,
    BadLength,
    BadMagic,
    ChunkOverlap,
    EmptyChunk,
    FrameTooLarge,
    Truncated,
    UnexpectedType,
    UnknownType,
    WireError,
)
from yeto_proto._generated.limits import RECEIVES, payload_limit
from yeto_proto._generated.messages import Chunk, FinalAck, Heartbeat, Message
from yeto_proto._generated.types import Dtype, FrameType, Role
from yeto_proto.chunks import Reassembler, slices
from yeto_proto.codec import header
from yeto_proto.reader import FrameReader

S = session(200, 50)
FIRST = (FrameType.HELLO, FrameType.DATA_HELLO)
OPEN = [(role, kind) for role in Role for kind in sorted(RECEIVES[role]) if kind not in FIRST]
OPEN_IDS = [f"{role.value}-{FrameType(kind).name}" for role, kind in OPEN]


def chunked(message: Message, msg_id: int = 0, preset: Preset = TINY) -> list[bytes]:
    return [joined(each) for each in slices(message, msg_id, preset)]


# What comes out.


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_message_of_a_side(role: Role, dtype: Dtype) -> None:
    of = session(200, 50, dtype=dtype)
    messages = received(role, of)
    assert FrameReader(role, of).feed(wire(messages)) == messages
    one_by_one = FrameReader(role, of)
    assert [one_by_one.feed(wire([message])) for message in messages] == [[message] for message in messages]
    one_by_one.eof()


def test_one_receive_may_bring_many_frames() -> None:
    beats = [Heartbeat(0, number) for number in range(200)]
    into = FrameReader(Role.SYNCER, S)
    content = wire(beats)
    room = into.get_buffer()
    assert len(room) > len(content)
    room[: len(content)] = content
    assert into.buffer_updated(len(content)) == beats


def test_messages_do_not_share_memory_with_the_next_receive() -> None:
    into = FrameReader(Role.SYNCER, S)
    (one,) = into.feed(wire([push(S, 1, seed=1)]))
    into.feed(wire([push(S, 1, seed=2)]))
    assert one == push(S, 1, seed=1)


@pytest.mark.parametrize("held", [0, 1, 60, 5000])
def test_a_bare_bulk_frame_is_received_into_its_own_buffer(held: int) -> None:
    of = session(1 << 20)
    message = push(of)
    content = wire([message])
    into = FrameReader(Role.SYNCER, of)
    into.feed(content[: HEADER_BYTES + held])
    room = into.get_buffer()
    assert len(room) == len(content) - HEADER_BYTES - held
    room[:] = content[HEADER_BYTES + held :]
    (got,) = into.buffer_updated(len(room))
    assert got == message
    room[-1] ^= 255
    assert got.delta[-1] == content[-1] ^ 255  # type: ignore[union-attr]
    assert np.frombuffer(got.delta, "<f4").flags.aligned  # type: ignore[union-attr]


def test_a_chunk_is_received_into_its_place_in_the_message() -> None:
    of = session(1 << 20)
    message = push(of)
    one, two = chunked(message, preset=replace(WIRE, chunk_slice=1 << 22))
    into = FrameReader(Role.SYNCER, of)
    into.feed(one[:1000])
    room = into.get_buffer()
    assert len(room) == len(one) - 1000
    room[:] = one[1000:]
    assert into.buffer_updated(len(room)) == []
    (got,) = into.feed(two)
    assert got == message
    room[-1] ^= 255
    assert got.delta != message.delta  # type: ignore[union-attr]


def test_little_of_a_chunk_is_copied() -> None:
    """However much the socket has, a full chunk leaves less than 0.3 % of its bytes in the scratch buffer."""
    of = session(1 << 21)
    into = FrameReader(Role.SYNCER, of)
    copied = 0
    for content in chunked(push(of), preset=WIRE)[:2]:
        rest = memoryview(content)
        while rest:
            room = into.get_buffer()[: len(rest)]
            if len(room) < 10_000:
                copied += len(room)
            room[:] = rest[: len(room)]
            rest = rest[len(room) :]
            into.buffer_updated(len(room))
    assert copied < 0.003 * 2 * WIRE.chunk_slice


def test_readers_of_a_group_share_a_reassembler() -> None:
    message = push(S)
    shared = Reassembler(Role.SYNCER, S, TINY)
    sockets = [FrameReader(Role.SYNCER, S, reassembler=shared, preset=TINY) for _ in range(3)]
    got = []
    for number, content in enumerate(chunked(message)):
        got += sockets[number % 3].feed(content)
    assert got == [message]


def test_partial_chunks_on_several_sockets_do_not_confuse_each_other() -> None:
    of = session(1 << 14)
    message = push(of)
    parts = chunked(message, preset=replace(WIRE, chunk_slice=30_000))
    shared = Reassembler(Role.SYNCER, of)
    sockets = [FrameReader(Role.SYNCER, of, reassembler=shared) for _ in parts]
    for into, content in zip(sockets, parts, strict=True):
        assert into.feed(content[:20_000]) == []
    # What another socket has begun to receive is taken, although its last byte is not there yet.
    refuse(ChunkOverlap, FrameReader(Role.SYNCER, of, reassembler=shared), parts[1])
    got = []
    for into, content in reversed(list(zip(sockets, parts, strict=True))):
        got += into.feed(content[20_000:])
    assert got == [message]


def test_control_frames_and_chunks_of_messages_interleave() -> None:
    into = FrameReader(Role.LEARNER, S, preset=TINY)
    one, two = chunked(bcast(S, 0), 0), chunked(bcast(S, 1), 1)
    small = received(Role.LEARNER, S)[0]
    mixed = b"".join(
        part + wire([small]) for pair in zip(one, two + [b""] * 99, strict=False) for part in pair if part
    )
    got = into.feed(mixed)
    assert got.count(small) == len(one) + len(two)
    assert [each for each in got if each != small] == [bcast(S, 1), bcast(S, 0)]


# The header.


@pytest.mark.rule("header.magic.must")
def test_bad_magic() -> None:
    for role in Role:
        content = bytearray(wire(received(role, S)[:1]))
        content[0] ^= 1
        error = refuse(BadMagic, FrameReader(role, S), bytes(content[:HEADER_BYTES]))
        assert (error.rule, error.limit, error.seen) == ("header.magic.must", MAGIC, MAGIC ^ 1)


@pytest.mark.rule("header.type.known")
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("kind", [0, 15, 99, 255])
def test_unknown_types(role: Role, kind: int) -> None:
    assert refuse(UnknownType, FrameReader(role, S), header(kind, 0)).seen == kind


@pytest.mark.rule("header.type.direction")
@pytest.mark.parametrize("role", list(Role))
def test_the_wrong_way(role: Role) -> None:
    taken = {kind for side, kind in OPEN if side is role}
    for kind in FrameType:
        if kind not in taken:
            error = refuse(UnexpectedType, FrameReader(role, S), header(kind, 0))
            assert (error.rule, error.seen) == ("header.type.direction", kind.name)


@pytest.mark.rule("header.len.limit")
@pytest.mark.parametrize(("role", "kind"), OPEN, ids=OPEN_IDS)
@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("preset", [WIRE, TINY], ids=["wire", "tiny"])
def test_every_limit_by_one(role: Role, kind: int, dtype: Dtype, preset: Preset) -> None:
    of = session(50, 700, dtype=dtype)
    limit = payload_limit(kind, role, of, preset)
    for length in (limit - 1, limit):
        if length >= 0:
            into = FrameReader(role, of, preset=preset)
            # The header passes; what the payload then lacks is another rule's affair.
            try:
                into.feed(header(kind, length))
            except WireError as error:
                assert not isinstance(error, FrameTooLarge)
    for length in (limit + 1, 2**63, 2**64 - 1):
        error = refuse(FrameTooLarge, FrameReader(role, of, preset=preset), header(kind, length))
        assert (error.rule, error.limit, error.seen) == ("header.len.limit", limit, length)
        assert "exceeds limit" in str(error)


@pytest.mark.rule("header.len.limit")
@pytest.mark.parametrize(("role", "kind"), OPEN, ids=OPEN_IDS)
def test_a_message_of_exactly_the_limit_is_taken(role: Role, kind: int) -> None:
    if kind == FrameType.CHUNK:
        into = FrameReader(role, S, preset=TINY)
        content = chunked(push(S) if role is Role.SYNCER else bcast(S))[0]
        assert into.feed(content) == []
        assert len(content) - HEADER_BYTES == payload_limit(kind, role, S, TINY)
        return
    (message,) = (each for each in received(role, session(4, 200)) if each.frame_type == kind)
    of = session(4, 200)
    if kind == FrameType.ERROR:
        message = replace(message, text="x" * WIRE.error_max)  # type: ignore[call-arg]
    if kind == FrameType.PUSH_FRAGMENT:
        message = push(of, 1)
    content = wire([message])
    assert len(content) - HEADER_BYTES == payload_limit(kind, role, of, WIRE)
    assert FrameReader(role, of).feed(content) == [message]


@pytest.mark.rule("header.len.limit")
@pytest.mark.parametrize("role", list(Role))
def test_a_header_bomb_costs_less_than_a_mebibyte(role: Role) -> None:
    of = session(1 << 30)
    bombs = [(FrameReader(role, of), header(kind, 2**63)) for side, kind in OPEN if side is role]
    if role is Role.SYNCER:
        bombs += [(FrameReader(role), header(kind, 2**63)) for kind in FIRST]
    tracemalloc.start()
    try:
        for into, bomb in bombs:
            refuse(FrameTooLarge, into, bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.rule("header.len.limit")
def test_a_payload_that_no_memory_can_hold() -> None:
    def nothing_left(size: int) -> memoryview:
        raise MemoryError

    of = session(1 << 20)
    content = wire([push(of)])[:1000]
    error = refuse(FrameTooLarge, FrameReader(Role.SYNCER, of, allocate=nothing_left), content)
    assert "no memory" in error.detail
    # A session made by hand may have fragments that no HELLO could announce.
    of = session(1 << 62)
    error = refuse(FrameTooLarge, FrameReader(Role.SYNCER, of), header(FrameType.PUSH_FRAGMENT, 1 << 63))
    assert "no memory" in error.detail


@pytest.mark.rule("chunk.payload.complete")
@pytest.mark.parametrize("length", [0, 1, 23])
def test_a_chunk_without_its_envelope(length: int) -> None:
    error = refuse(Truncated, FrameReader(Role.SYNCER, S), header(FrameType.CHUNK, length))
    assert (error.rule, error.seen) == ("chunk.payload.complete", length)


@pytest.mark.rule("chunk.data.some")
def test_a_chunk_without_data() -> None:
    refuse(EmptyChunk, FrameReader(Role.SYNCER, S), wire([Chunk(0, 100, 0, b"")]))


def test_the_envelope_is_judged_before_the_data_arrives() -> None:
    into = FrameReader(Role.SYNCER, S)
    into.feed(wire([Chunk(0, 861, 0, bytes(10))]))
    refuse(ChunkOverlap, into, wire([Chunk(0, 861, 5, bytes(700))])[:37])


@pytest.mark.rule("header.len.complete")
@pytest.mark.parametrize("role", list(Role))
def test_an_end_inside_a_frame(role: Role) -> None:
    of = session(5000, 50)
    for message in [*received(role, of), push(of) if role is Role.SYNCER else bcast(of)]:
        content = wire([message])
        for cut in {1, 12, 13, 14, len(content) - 1} & set(range(len(content))):
            into = FrameReader(role, of)
            into.feed(wire(received(role, of)[:1]))
            assert into.feed(content[:cut]) == []
            with pytest.raises(Truncated) as caught:
                into.eof()
            assert caught.value.rule == "header.len.complete"
            assert into.frame_offset == len(wire(received(role, of)[:1]))
            with pytest.raises(Truncated):
                into.eof()


@pytest.mark.rule("header.len.complete")
def test_an_end_inside_a_chunk_whose_envelope_is_there() -> None:
    content = chunked(push(S))[0]
    for cut in (37, 38, len(content) - 1):
        into = FrameReader(Role.SYNCER, S, preset=TINY)
        into.feed(content[:cut])
        with pytest.raises(Truncated):
            into.eof()


def test_an_end_between_frames_is_fine() -> None:
    into = FrameReader(Role.SYNCER, S)
    into.eof()
    into.feed(wire(received(Role.SYNCER, S)))
    into.eof()


# Errors.


def test_after_an_error_a_reader_is_dead() -> None:
    into = FrameReader(Role.SYNCER, S)
    error = refuse(UnknownType, into, header(99, 0))
    for call in (
        into.get_buffer,
        into.eof,
        lambda: into.buffer_updated(0),
        lambda: into.feed(wire([Heartbeat(0, 1)])),
        lambda: into.open(S),
    ):
        with pytest.raises(UnknownType) as caught:
            call()
        assert caught.value is error


def test_messages_before_a_fault_come_first() -> None:
    into = FrameReader(Role.SYNCER, S)
    good = [Heartbeat(0, 1), FinalAck(2)]
    content = wire(good) + header(99, 0)
    into.get_buffer()[: len(content)] = content
    assert into.buffer_updated(len(content)) == good
    assert isinstance(into.failure, UnknownType)
    with pytest.raises(UnknownType):
        into.get_buffer()


def test_feed_returns_what_came_before_a_fault() -> None:
    of = session(5000)
    into = FrameReader(Role.SYNCER, of)
    content = wire([push(of)]) + header(99, 0) + bytes(9000)
    assert into.feed(content) == [push(of)]
    with pytest.raises(UnknownType):
        into.feed(b"")
        into.eof()


def test_an_error_says_where_its_frame_began() -> None:
    into = FrameReader(Role.SYNCER, S)
    into.feed(wire([Heartbeat(0, 1), push(S)]))
    error = refuse(BadLength, into, header(FrameType.INIT_PARAMS, 8) + bytes(8))
    assert into.frame_offset == len(wire([Heartbeat(0, 1), push(S)]))
    assert (error.frame, error.field, error.rule) == ("INIT_PARAMS", "tensor", "init_params.tensor.length")


def test_more_bytes_than_there_was_room_for() -> None:
    into = FrameReader(Role.SYNCER, S)
    with pytest.raises(BadArgument):
        into.buffer_updated(len(into.get_buffer()) + 1)
    with pytest.raises(BadArgument):
        into.buffer_updated(-1)
    assert into.failure is None
    assert into.buffer_updated(0) == []


def test_a_learner_needs_a_session() -> None:
    with pytest.raises(BadArgument):
        FrameReader(Role.LEARNER)
