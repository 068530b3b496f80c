"""Frames as buffers for vectored sends."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire_samples import bcast, joined, received, session, wire
from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.types import Role
from yeto_proto.writer import advance, frame, size


def test_bulk_is_the_callers_memory() -> None:
    tensor = bytearray(24)
    buffers = frame(bcast(session()))
    assert len(buffers) == 2
    message = bcast(session())
    object.__setattr__(message, "tensor", memoryview(tensor))
    view = frame(message)[1]
    tensor[3] = 99
    assert view[3] == 99


@given(st.lists(st.binary(max_size=9), max_size=6), st.lists(st.integers(0, 12), max_size=12))
def test_advance_drops_exactly_what_was_sent(parts: list[bytes], steps: list[int]) -> None:
    buffers = list[bytes | bytearray | memoryview](parts)
    rest = b"".join(parts)
    for step in steps:
        step = min(step, len(rest))
        done = advance(buffers, step)
        rest = rest[step:]
        assert joined(buffers) == rest
        assert size(buffers) == len(rest)
        if step:
            assert done == (not rest)


def test_advance_says_when_all_is_sent() -> None:
    buffers = list[bytes | bytearray | memoryview]([b"ab", b"c"])
    assert not advance(buffers, 0)
    assert not advance(buffers, 2)
    assert advance(buffers, 1)
    assert advance(buffers, 0)


def test_a_socket_cannot_take_more_than_there_was() -> None:
    buffers = list[bytes | bytearray | memoryview]([b"ab"])
    with pytest.raises(BadArgument):
        advance(buffers, 3)


@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.value)
def test_sendmsg_takes_the_buffers_as_they_are(role: Role) -> None:
    messages = received(role, session())
    left, right = socket.socketpair()
    with left, right:
        for message in messages:
            buffers = frame(message)
            while not advance(buffers, left.sendmsg(buffers)):
                pass
        left.close()
        with right.makefile("rb") as stream:
            assert stream.read() == wire(messages)
