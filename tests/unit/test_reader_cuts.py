"""However a stream is cut into receives, a reader says the same: messages, and the refusal that ends them."""

from __future__ import annotations

import random
import socket
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire_samples import bcast, bulk, cut_at, events, first, joined, push, received, session, wire
from yeto_proto._generated.constants import HEADER_BYTES, TINY, WIRE, Preset
from yeto_proto._generated.messages import Chunk, FinalFragment, InitParams, Message, PushFragment
from yeto_proto._generated.types import Role
from yeto_proto.chunks import Reassembler, slices
from yeto_proto.codec import header
from yeto_proto.errors_base import YetoError
from yeto_proto.reader import FrameReader

# The larger fragment does not fit in a reader's scratch buffer, nor do the slices of MIDDLE.
S = session(5000, 40)
MIDDLE = replace(TINY, chunk_slice=9000)


@st.composite
def streams(draw: st.DrawFn, role: Role, preset: Preset) -> bytes:
    """Frames of one socket in a row, some in chunks, perhaps one fault in them or the end cut off."""
    bulky: list[Message] = (
        [push(S, 0), push(S, 1), InitParams(0, bulk(20_000))]
        if role is Role.SYNCER
        else [bcast(S, 0), bcast(S, 1), FinalFragment(0, 9, bulk(20_000))]
    )
    pool = received(role, S) + bulky
    messages = draw(st.lists(st.sampled_from(pool), max_size=5))
    frames = [wire([message]) for message in messages]
    for msg_id, message in enumerate(draw(st.lists(st.sampled_from(pool), max_size=2))):
        parts = [joined(each) for each in slices(message, msg_id, preset)]
        draw(st.randoms(use_true_random=False)).shuffle(parts)
        frames += parts
    if draw(st.booleans()):
        draw(st.randoms(use_true_random=False)).shuffle(frames)
    content = bytearray(b"".join(frames))
    fault = draw(st.sampled_from(["none", "none", "byte", "header", "overlap", "end"]))
    if fault == "byte" and content:
        content[draw(st.integers(0, len(content) - 1))] ^= draw(st.integers(1, 255))
    if fault == "header":
        content += header(draw(st.integers(0, 20)), draw(st.integers(0, 2**64 - 1))) + bytes(40)
    if fault == "overlap":
        content += wire([Chunk(77, 500, 0, bytes(60)), Chunk(77, 500, draw(st.integers(0, 70)), bytes(60))])
    if fault == "end" and content:
        del content[draw(st.integers(0, len(content) - 1)) :]
    return bytes(content)


@pytest.mark.parametrize("preset", [TINY, MIDDLE], ids=["tiny", "middle"])
@pytest.mark.parametrize("role", list(Role))
@given(st.data())
def test_any_cut_gives_the_same_events(role: Role, preset: Preset, data: st.DataObject) -> None:
    content = data.draw(streams(role, preset))
    cuts = data.draw(st.lists(st.integers(0, 1 << 16), max_size=25))
    whole = events(FrameReader(role, S, preset=preset), [content])
    assert events(FrameReader(role, S, preset=preset), cut_at(content, cuts)) == whole
    if len(content) < 4096:
        singles = [content[at : at + 1] for at in range(len(content))]
        assert events(FrameReader(role, S, preset=preset), singles) == whole


@pytest.mark.parametrize("role", list(Role))
def test_every_single_cut_of_a_stream(role: Role) -> None:
    messages = received(role, S)[-3:]
    parts = [joined(each) for each in slices((push if role is Role.SYNCER else bcast)(S, 1), 0, TINY)]
    content = wire(messages) + b"".join(parts) + wire(messages[:1]) + header(99, 1)
    whole = events(FrameReader(role, S, preset=TINY), [content])
    assert len(whole) == len(messages) + 3
    for at in range(len(content) + 1):
        assert events(FrameReader(role, S, preset=TINY), [content[:at], content[at:]]) == whole


@given(st.integers(0, 1), st.lists(st.integers(0, 400), max_size=20), st.integers(0, 60))
def test_any_cut_around_the_first_frame(which: int, cuts: list[int], broken: int) -> None:
    content = bytearray(wire([first(S)[which], *received(Role.SYNCER, S)[2:]]))
    if broken < 30:
        content[broken] ^= 64

    def told(pieces: list[bytes]) -> list[object]:
        into = FrameReader(Role.SYNCER, preset=TINY)
        seen: list[object] = []
        try:
            for piece in pieces:
                seen += into.feed(piece)
                if into.paused:
                    seen += into.open(S)
            into.eof()
        except YetoError as error:
            seen.append((type(error), error.rule, str(error), into.frame_offset))
        return seen

    assert told(cut_at(bytes(content), cuts)) == told([bytes(content)])


@given(st.data())
def test_readers_of_a_group_in_any_order(data: st.DataObject) -> None:
    """Chunks of several messages over several sockets, each socket advancing by any number of bytes."""
    messages = [push(S, 1, seed) for seed in range(3)] + [push(S, 0, 9)]
    sockets = [bytearray() for _ in range(3)]
    for number, message in enumerate(messages):
        parts = [joined(each) for each in slices(message, number, replace(TINY, chunk_slice=150))]
        for turn, part in enumerate(parts):
            sockets[(number + turn) % 3] += part
    shared = Reassembler(Role.SYNCER, S, replace(TINY, max_ranges=1000))
    readers = [
        FrameReader(Role.SYNCER, S, reassembler=shared, preset=replace(TINY, chunk_slice=150))
        for _ in sockets
    ]
    rng = random.Random(data.draw(st.integers(0, 10_000)))
    got: list[Message] = []
    while any(sockets):
        number = rng.randrange(3)
        step = rng.choice([1, 7, 150, 4000])
        got += readers[number].feed(bytes(sockets[number][:step]))
        del sockets[number][:step]
    assert sorted(got, key=messages.index) == messages
    assert shared.partials == 0


@given(st.binary(max_size=600), st.sampled_from(list(Role)), st.booleans())
def test_only_typed_errors_come_out_of_any_bytes(noise: bytes, role: Role, framed: bool) -> None:
    content = header(noise[0] % 16, len(noise) - 1) + noise[1:] if framed and noise else noise
    for into in (FrameReader(role, S, preset=TINY), FrameReader(Role.SYNCER, preset=TINY)):
        seen = events(into, [content])
        for each in seen[:-1]:
            assert not isinstance(each, tuple)


@pytest.mark.parametrize("streams_open", [1, 4])
def test_threads_receive_into_the_same_message(streams_open: int) -> None:
    """As a learner may do it: a thread a socket, a lock around the reader's calls, none around receiving."""
    of = session(1 << 21)
    message = push(of)
    shared = Reassembler(Role.SYNCER, of)
    pairs = [socket.socketpair() for _ in range(streams_open)]
    lock = threading.Lock()
    got: list[Message] = []

    def receive(number: int) -> None:
        into = FrameReader(Role.SYNCER, of, reassembler=shared)
        while True:
            with lock:
                room = into.get_buffer()
            count = pairs[number][1].recv_into(room)
            if not count:
                into.eof()
                return
            with lock:
                got.extend(into.buffer_updated(count))

    threads = [threading.Thread(target=receive, args=(number,)) for number in range(streams_open)]
    for thread in threads:
        thread.start()
    for number, part in enumerate(slices(message, 0, replace(WIRE, chunk_slice=1 << 18))):
        pairs[number % streams_open][0].sendall(joined(part))
    for left, _ in pairs:
        left.close()
    for thread, (_, right) in zip(threads, pairs, strict=True):
        thread.join(120)
        assert not thread.is_alive()
        right.close()
    assert got == [message]
    assert isinstance(got[0], PushFragment)


def test_the_scratch_buffer_holds_a_frame_of_any_size_around_its_own() -> None:
    """Sizes at which a frame just fits in the scratch buffer, or just does not."""
    for size in range(8192 - 2 * HEADER_BYTES - 60, 8192 + 60):
        numel = size // 4
        of = session(numel)
        message = push(of)
        content = wire([message]) * 2
        for step in (1 << 20, 4000):
            pieces = [content[at : at + step] for at in range(0, len(content), step)]
            assert events(FrameReader(Role.SYNCER, of), pieces) == [message] * 2


@pytest.mark.parametrize("size", [8191, 8192, 8193, 8192 - 37, 8192 - 36])
def test_chunks_around_the_size_of_the_scratch_buffer(size: int) -> None:
    message = push(S)
    parts = [joined(each) for each in slices(message, 0, replace(WIRE, chunk_slice=size))]
    content = b"".join(parts) * 2
    for step in (1 << 20, 5000, 37, size):
        pieces = [content[at : at + step] for at in range(0, len(content), step)]
        assert events(FrameReader(Role.SYNCER, S), pieces) == [message] * 2
