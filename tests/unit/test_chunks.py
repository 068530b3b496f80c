"""Putting CHUNKs together again."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.chunk_samples import chunk, put, put_all
from tests.unit.wire_samples import bcast, bulk, push, received, session, wire
from yeto_proto._generated.constants import (
    TINY,
)
from yeto_proto._generated.messages import Chunk, Heartbeat, Message, PushFragment
from yeto_proto._generated.types import Dtype, Role
from yeto_proto.chunks import Reassembler, slices

S = session(200, 50)
SIDES = [(role, message) for role in Role for message in received(role, session(200, 50))]
SIDE_IDS = [f"{role.value}-{message.frame_type.name}" for role, message in SIDES]


@pytest.mark.parametrize(("role", "message"), SIDES, ids=SIDE_IDS)
@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_type_of_a_side_comes_out_of_chunks(role: Role, message: Message, dtype: Dtype) -> None:
    of = session(200, 50, dtype=dtype)
    (message,) = (each for each in received(role, of) if type(each) is type(message))
    into = Reassembler(role, of, TINY)
    assert put_all(into, slices(message, 5, TINY)) == [message]
    assert into.partials == 0


@given(st.data())
def test_any_slicing_in_any_order_gives_the_message(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from([push(S, 0), push(S, 1), Heartbeat(0, 3)]))
    inner = wire([message])
    edges = sorted({0, len(inner), *data.draw(st.lists(st.integers(0, len(inner)), max_size=14))})
    pieces = data.draw(st.permutations([(a, inner[a:b]) for a, b in pairwise(edges)]))
    into = Reassembler(Role.SYNCER, S, TINY)
    results = [put(into, 1, len(inner), offset, piece) for offset, piece in pieces]
    assert results == [None] * (len(pieces) - 1) + [message]
    assert (into.partials, into.arrived, into.announced) == (0, 0, 0)


@given(st.data())
def test_messages_interleave_over_several_sockets(data: st.DataObject) -> None:
    """Each socket announces a chunk, is interrupted by the others, and then commits it."""
    messages = [push(S, number % 2, number) for number in range(4)]
    frames = [
        chunk(frame) for number, message in enumerate(messages) for frame in slices(message, number, TINY)
    ]
    random.Random(data.draw(st.integers(0, 999))).shuffle(frames)
    into = Reassembler(Role.SYNCER, S, TINY)
    sockets: list[tuple[Chunk, memoryview] | None] = [None] * 3
    done = []
    while frames or any(sockets):
        number = data.draw(st.integers(0, 2))
        open_chunk = sockets[number]
        if open_chunk is not None:
            each, place = open_chunk
            place[:] = each.data
            message = into.commit(each.msg_id, each.offset, len(each.data))
            if message is not None:
                done.append(message)
            sockets[number] = None
        elif frames:
            each = frames.pop()
            sockets[number] = each, into.begin(each.msg_id, each.total_len, each.offset, len(each.data))
    assert sorted(done, key=messages.index) == messages


def test_the_bulk_is_a_view_of_the_reassembly_buffer() -> None:
    message = push(S)
    inner = wire([message])
    into = Reassembler(Role.SYNCER, S, TINY)
    place = into.begin(0, len(inner), 0, len(inner))
    place[:] = inner
    got = into.commit(0, 0, len(inner))
    assert isinstance(got, PushFragment)
    place[-1] ^= 255
    assert got.delta[-1] == inner[-1] ^ 255


@pytest.mark.parametrize(("role", "message"), SIDES, ids=SIDE_IDS)
def test_f32_bulk_is_aligned(role: Role, message: Message) -> None:
    into = Reassembler(role, S, TINY)
    (got,) = put_all(into, slices(message, 0, TINY))
    for name in ("tensor", "delta"):
        view = getattr(got, name, None)
        if view is not None:
            array = np.frombuffer(view, "<f4")
            assert array.flags.aligned and array.ctypes.data % 4 == 0


def test_an_id_may_be_used_again_after_its_message() -> None:
    into = Reassembler(Role.SYNCER, S, TINY)
    for number in range(3):
        assert put_all(into, slices(push(S, 0, number), 7, TINY)) == [push(S, 0, number)]


def test_single_bytes_at_scattered_offsets_are_fine() -> None:
    message = push(S)
    inner = wire([message])
    into = Reassembler(Role.SYNCER, S)
    order = list(range(len(inner)))
    random.Random(1).shuffle(order)
    results = [put(into, 0, len(inner), at, inner[at : at + 1]) for at in order]
    assert results == [None] * (len(inner) - 1) + [message]


def test_bulk_in_q4_sessions_is_what_the_dtype_says() -> None:
    of = session(300, dtype=Dtype.Q4)
    into = Reassembler(Role.LEARNER, of, TINY)
    assert put_all(into, slices(bcast(of), 0, TINY)) == [bcast(of)]
    assert len(bulk(of.bulk_bytes(0))) == 600
