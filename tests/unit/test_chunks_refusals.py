"""CHUNKs that are refused, and that a refused one changes nothing."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tests.unit.chunk_samples import put, put_all
from tests.unit.wire_samples import push, received, session, wire
from yeto_proto._generated.constants import (
    HEADER_BYTES,
    MAGIC,
    MAX_PARTIAL_MESSAGES,
    MAX_RANGES,
    TINY,
    WIRE,
    Preset,
)
from yeto_proto._generated.errors import (
    BadArgument,
    BadFragment,
    BadInnerFrame,
    BadLength,
    ChunkOutOfRange,
    ChunkOverlap,
    ChunkTotalChanged,
    ChunkTotalTooLarge,
    EmptyChunk,
    FrameTooLarge,
    TooManyPartials,
    TooManyRanges,
    WireError,
)
from yeto_proto._generated.limits import chunk_total_limit
from yeto_proto._generated.messages import Heartbeat
from yeto_proto._generated.types import Dtype, FrameType, Role
from yeto_proto.chunks import Reassembler, slices
from yeto_proto.codec import header

S = session(200, 50)
PUSH = wire([push(S)])


def refused(
    error: type[WireError], into: Reassembler, msg_id: int, total: int, offset: int, length: int
) -> WireError:
    before = into.partials, into.arrived, into.announced
    with pytest.raises(error) as caught:
        into.begin(msg_id, total, offset, length)
    assert (into.partials, into.arrived, into.announced) == before
    assert (caught.value.frame, caught.value.fatal, caught.value.sends) == ("CHUNK", True, True)
    return caught.value


def begun() -> Reassembler:
    """Half of a PUSH_FRAGMENT has arrived: bytes 100 to 200, and byte 300 is announced."""
    into = Reassembler(Role.SYNCER, S, TINY)
    put(into, 1, len(PUSH), 100, PUSH[100:200])
    into.begin(1, len(PUSH), 300, 1)
    return into


@pytest.mark.rule("chunk.data.overlap")
@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (100, 100),
        (100, 1),
        (199, 1),
        (99, 2),
        (199, 2),
        (0, 861),
        (120, 10),
        (90, 120),
        (300, 1),
        (299, 2),
        (300, 9),
    ],
)
def test_any_overlap_is_refused(offset: int, length: int) -> None:
    into = begun()
    error = refused(ChunkOverlap, into, 1, len(PUSH), offset, length)
    assert error.rule == "chunk.data.overlap"
    assert error.seen == f"{offset}..{offset + length}"
    # The rest of the message still fits.
    put(into, 1, len(PUSH), 0, PUSH[:100])
    put(into, 1, len(PUSH), 200, PUSH[200:300])
    into.commit(1, 300, 1)
    assert put(into, 1, len(PUSH), 301, PUSH[301:]) is not None


@pytest.mark.rule("chunk.total_len.same")
def test_another_total_is_refused() -> None:
    error = refused(ChunkTotalChanged, begun(), 1, len(PUSH) - 1, 0, 10)
    assert (error.limit, error.seen) == (len(PUSH), len(PUSH) - 1)


@pytest.mark.rule("chunk.data.some")
def test_an_empty_chunk_is_refused() -> None:
    refused(EmptyChunk, begun(), 1, len(PUSH), 0, 0)
    refused(EmptyChunk, begun(), 2, len(PUSH), 0, 0)


@pytest.mark.rule("chunk.data.inside")
@pytest.mark.parametrize("offset", [len(PUSH), len(PUSH) - 9, 2**64 - 1, 2**64 - 10, 2**63])
def test_a_chunk_beyond_its_total_is_refused(offset: int) -> None:
    refused(ChunkOutOfRange, begun(), 1, len(PUSH), offset, 10)
    refused(ChunkOutOfRange, begun(), 2, len(PUSH), offset, 10)


@pytest.mark.rule("chunk.total_len.limit")
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_total_above_the_limit_is_refused(role: Role, dtype: Dtype) -> None:
    of = session(2000, 50, dtype=dtype)
    limit = chunk_total_limit(role, of)
    into = Reassembler(role, of)
    into.begin(0, limit, 0, 1)
    into.begin(1, limit - 1, 0, 1)
    error = refused(ChunkTotalTooLarge, into, 2, limit + 1, 0, 1)
    assert (error.rule, error.limit, error.seen) == ("chunk.total_len.limit", limit, limit + 1)
    refused(ChunkTotalTooLarge, into, 2, 2**63, 0, 1)
    refused(ChunkTotalTooLarge, into, 2, 2**64 - 1, 2**64 - 2, 1)


@pytest.mark.rule("chunk.total_len.must")
@pytest.mark.parametrize("role", list(Role))
def test_a_total_that_holds_no_header_is_refused(role: Role) -> None:
    into = Reassembler(role, S)
    refused(BadInnerFrame, into, 0, HEADER_BYTES - 1, 0, 1)
    into.begin(0, HEADER_BYTES, 0, 1)


@pytest.mark.rule("chunk.msg_id.partials")
@pytest.mark.parametrize("preset", [TINY, WIRE], ids=["tiny", "wire"])
def test_one_message_too_many_is_refused(preset: Preset) -> None:
    into = Reassembler(Role.SYNCER, S, preset)
    most = preset.max_partial_messages
    for number in range(most):
        put(into, number, len(PUSH), 0, PUSH[:-1])
    assert into.partials == most
    assert into.arrived == most * (len(PUSH) - 1)
    assert into.announced == most * len(PUSH)
    error = refused(TooManyPartials, into, most, len(PUSH), 0, 1)
    assert (error.limit, error.seen) == (most, most + 1)
    # A message that ends makes room.
    assert put(into, 3, len(PUSH), len(PUSH) - 1, PUSH[-1:]) is not None
    assert put(into, most, len(PUSH), 0, PUSH[:-1]) is None
    assert WIRE.max_partial_messages == MAX_PARTIAL_MESSAGES


@pytest.mark.rule("chunk.data.ranges")
@pytest.mark.parametrize("preset", [TINY, WIRE], ids=["tiny", "wire"])
def test_one_range_too_many_is_refused(preset: Preset) -> None:
    of = session(preset.max_ranges)
    total = chunk_total_limit(Role.SYNCER, of)
    into = Reassembler(Role.SYNCER, of, preset)
    for number in range(preset.max_ranges):
        into.begin(0, total, 2 * number, 1)
    error = refused(TooManyRanges, into, 0, total, 2 * preset.max_ranges, 1)
    assert (error.rule, error.limit, error.seen) == (
        "chunk.data.ranges",
        preset.max_ranges,
        preset.max_ranges + 1,
    )
    # A chunk that touches a range makes none, one between two ranges makes one less.
    into.begin(0, total, 2 * preset.max_ranges - 1, 1)
    into.begin(0, total, 1, 1)
    into.begin(0, total, 2 * preset.max_ranges + 5, 1)
    refused(TooManyRanges, into, 0, total, 2 * preset.max_ranges + 10, 1)
    assert WIRE.max_ranges == MAX_RANGES


def inner(frame_type: int, payload: bytes, length: int | None = None, magic: int = MAGIC) -> bytes:
    head = bytearray(header(frame_type, len(payload) if length is None else length))
    head[:4] = magic.to_bytes(4, "little")
    return bytes(head) + payload


@pytest.mark.rule("chunk.data.inner")
@pytest.mark.parametrize("early", [True, False], ids=["in the first chunk", "byte by byte"])
@pytest.mark.parametrize(
    ("content", "about"),
    [
        (inner(FrameType.HEARTBEAT, bytes(12), magic=MAGIC ^ 1), "magic"),
        (inner(FrameType.HEARTBEAT, bytes(12), length=11), "length"),
        (inner(FrameType.HEARTBEAT, bytes(12), length=2**64 - 1), "length"),
        (inner(FrameType.CHUNK, PUSH[:800]), "type"),
        (inner(FrameType.HELLO, bytes(90)), "type"),
        (inner(FrameType.DATA_HELLO, bytes(16)), "type"),
        (inner(FrameType.PULL_REQ, bytes(16)), "type"),
        (inner(99, bytes(16)), "type"),
    ],
)
def test_a_bad_inner_header_is_refused(content: bytes, about: str, early: bool) -> None:
    into = Reassembler(Role.SYNCER, S)
    if early:
        # As soon as the header is there, and again at the end, whichever socket brings that.
        with pytest.raises(BadInnerFrame) as caught:
            put(into, 0, len(content), 0, content[:-1])
        assert about in caught.value.detail
        with pytest.raises(BadInnerFrame) as caught:
            put(into, 0, len(content), len(content) - 1, content[-1:])
    else:
        for at in range(len(content) - 1):
            assert put(into, 0, len(content), at, content[at : at + 1]) is None
        with pytest.raises(BadInnerFrame) as caught:
            put(into, 0, len(content), len(content) - 1, content[-1:])
    assert about in caught.value.detail
    assert caught.value.rule == "chunk.data.inner"
    assert into.partials == 0


@pytest.mark.rule("chunk.data.inner")
def test_a_learner_takes_no_frame_of_a_learner_out_of_chunks() -> None:
    for message in received(Role.SYNCER, S):
        with pytest.raises(BadInnerFrame):
            put_all(Reassembler(Role.LEARNER, session(300)), slices(message, 0))


@pytest.mark.rule("header.len.limit")
def test_the_limits_of_bare_frames_hold_inside_chunks() -> None:
    of = session(100, 50, dtype=Dtype.Q4)  # INIT may have 204 bytes, a delta 180
    too_long = inner(FrameType.PUSH_FRAGMENT, bytes(181))
    with pytest.raises(FrameTooLarge) as caught:
        put(Reassembler(Role.SYNCER, of), 0, len(too_long), 0, too_long)
    assert (caught.value.limit, caught.value.seen) == (180, 181)


@pytest.mark.rule("init_params.tensor.length")
def test_a_complete_message_is_judged_like_a_bare_one() -> None:
    into = Reassembler(Role.SYNCER, S)
    with pytest.raises(BadLength):
        put(into, 0, 13 + 8, 0, inner(FrameType.INIT_PARAMS, bytes(8)))
    with pytest.raises(BadFragment):
        put(into, 0, 13 + 8, 0, inner(FrameType.INIT_PARAMS, bytes([2, 0, 0, 0]) + bytes(4)))
    assert into.partials == 0


def test_a_commit_without_a_begin_is_an_error_of_the_caller() -> None:
    with pytest.raises(BadArgument):
        Reassembler(Role.SYNCER, S).commit(0, 0, 1)


@pytest.mark.parametrize("msg_id", [-1, 1 << 64])
def test_a_message_id_that_is_no_u64_is_an_error_of_the_caller(msg_id: int) -> None:
    with pytest.raises(BadArgument, match="cannot be encoded"):
        next(slices(Heartbeat(1, 2), msg_id))


def test_clear_forgets_everything() -> None:
    into = begun()
    into.clear()
    assert (into.partials, into.arrived, into.announced) == (0, 0, 0)
    assert put(into, 1, len(PUSH), 0, PUSH) is not None


@pytest.mark.rule("chunk.total_len.limit")
def test_a_message_that_no_memory_can_hold_is_refused() -> None:
    def nothing_left(size: int) -> memoryview:
        raise MemoryError

    into = Reassembler(Role.SYNCER, S, allocate=nothing_left)
    assert "no memory" in refused(ChunkTotalTooLarge, into, 0, len(PUSH), 0, 1).detail
    # A session made by hand may have fragments that no HELLO could announce.
    beyond = Reassembler(Role.SYNCER, session(1 << 62))
    assert "no memory" in refused(ChunkTotalTooLarge, beyond, 0, 1 << 63, 0, 1).detail


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident size from /proc")
def test_memory_is_committed_as_bytes_arrive() -> None:
    of = session(1 << 28)  # 1 GiB
    into = Reassembler(Role.SYNCER, of)
    total = chunk_total_limit(Role.SYNCER, of)
    before = resident()
    for offset in (0, 1 << 29, total - 1):
        put(into, 0, total, offset, b"x")
    # A page, which may be a huge one, for each byte; far from the gigabyte announced.
    assert resident() - before < 16 << 20
    assert (into.announced, into.arrived) == (total, 3)


def test_a_bad_envelope_allocates_nothing() -> None:
    into = Reassembler(Role.SYNCER, session(1 << 28))
    tracemalloc.start()
    try:
        for total, offset, length in ((2**63, 0, 1), (1 << 30, 2**63, 1), (1 << 30, 0, 0), (12, 0, 1)):
            with pytest.raises(WireError):
                into.begin(0, total, offset, length)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
