"""Slicing messages into CHUNKs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.unit.chunk_samples import chunk
from tests.unit.wire_samples import joined, push, session, wire
from yeto_proto._generated.constants import (
    CHUNK_HEAD_BYTES,
    CHUNK_SLICE,
    HEADER_BYTES,
    TINY,
)
from yeto_proto._generated.errors import (
    BadArgument,
)
from yeto_proto._generated.messages import Error, PushFragment
from yeto_proto.chunks import cut, slices

S = session(200, 50)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129, 500])
def test_the_inner_frame_is_cut_at_each_multiple_of_the_slice(size: int) -> None:
    message = Error("x" * size)
    inner = wire([message])
    got = [chunk(frame) for frame in slices(message, 9, TINY)]
    assert [each.offset for each in got] == list(range(0, len(inner), TINY.chunk_slice))
    assert [each.data for each in got] == [
        inner[at : at + TINY.chunk_slice] for at in range(0, len(inner), TINY.chunk_slice)
    ]
    assert {(each.msg_id, each.total_len) for each in got} == {(9, len(inner))}


def test_the_wire_preset_cuts_every_4_mib() -> None:
    of = session(3 * CHUNK_SLICE // 4)
    frames = list(slices(push(of), 0))
    assert [len(each[0]) for each in frames] == [HEADER_BYTES + CHUNK_HEAD_BYTES] * 4
    assert [sum(map(len, each)) for each in frames] == [HEADER_BYTES + CHUNK_HEAD_BYTES + CHUNK_SLICE] * 3 + [
        HEADER_BYTES + CHUNK_HEAD_BYTES + 61
    ]


def test_chunks_are_views_of_the_bulk() -> None:
    delta = bytearray(800)
    frames = list(slices(PushFragment(0, 0, 5, 1, 4, 10, 3, 300, delta), 0, TINY))
    for place in range(800):
        delta[place] = place % 251
    inner = b"".join(joined(each[1:]) for each in frames)
    assert inner[-800:] == bytes(delta)


def test_parts_may_be_produced_one_by_one() -> None:
    asked = []

    def parts() -> Iterator[bytes]:
        yield wire([push(S)])[:61]
        for start in range(0, 800, 40):
            asked.append(start)
            yield push(S).delta[start : start + 40]  # type: ignore[misc]
            yield b""

    got = []
    for number, frame in enumerate(cut(parts(), 861, 3, TINY)):
        assert len(asked) <= number * 64 // 40 + 2
        got.append(frame)
    assert [joined(each) for each in got] == [joined(each) for each in slices(push(S), 3, TINY)]


@pytest.mark.parametrize(
    "parts", [[b"x" * 99], [b"x" * 50, b"y" * 49], [b"", b"x" * 64, b"", b"x" * 35, b""], []]
)
def test_too_few_bytes_are_an_error_of_the_caller(parts: list[bytes]) -> None:
    with pytest.raises(BadArgument):
        list(cut(parts, 100, 0, TINY))


@pytest.mark.parametrize("parts", [[b"x" * 101], [b"x" * 100, b"", b"y"], [b"x" * 64, b"x" * 37]])
def test_too_many_bytes_are_found_before_the_message_is_complete(parts: list[bytes]) -> None:
    got = []
    with pytest.raises(BadArgument):
        for frame in cut(parts, 100, 0, TINY):
            got.append(chunk(frame))
    assert [each.offset for each in got] == [0]


def test_parts_must_be_bytes() -> None:
    with pytest.raises(BadArgument):
        list(cut(["text"], 4, 0, TINY))  # type: ignore[list-item]
    with pytest.raises(BadArgument):
        list(cut([np.zeros((4, 4), np.uint8)[:, 1:].data], 12, 0, TINY))  # type: ignore[list-item]


def test_any_contiguous_buffer_will_do() -> None:
    frames = list(cut([np.arange(16, dtype="<f4").data], 64, 0, TINY))
    assert joined(frames[0])[HEADER_BYTES + CHUNK_HEAD_BYTES :] == np.arange(16, dtype="<f4").tobytes()
