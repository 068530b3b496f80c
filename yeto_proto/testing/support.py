"""What the generated strategies are made of: sessions, bulk, and ways to break a payload.

Bulk is drawn as a seed and a length and made by numpy, since Hypothesis refuses draws of many bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from yeto_proto import codec
from yeto_proto._generated.constants import HEADER_BYTES
from yeto_proto._generated.messages import Message
from yeto_proto._generated.rules import DECODE, RULES
from yeto_proto._generated.structs import FRAMES
from yeto_proto._generated.types import Dtype, FrameType, MergeMode
from yeto_proto._judge import first_of
from yeto_proto._wire import FixedRun, Optional
from yeto_proto.errors_base import YetoError
from yeto_proto.session import Session, WireLayout

U8: Final = (1 << 8) - 1
U16: Final = (1 << 16) - 1
U32: Final = (1 << 32) - 1
U64: Final = (1 << 64) - 1
#: Longest bulk that is drawn when nothing else bounds it.
SHORT: Final = 1500
_BEYOND = 300

Span = tuple[int, int]
Ranges = Callable[[Any, int], list[Span]]
M = TypeVar("M", bound=Message)
Breaker = Callable[[st.DrawFn, Any, bytes], bytes]


class Broken(NamedTuple):
    """A payload that breaks one rule: `decode` must raise one of `allowed`, with `rule` as its rule."""

    frame_type: FrameType
    payload: bytes
    allowed: tuple[type[YetoError], ...]
    rule: str


# -- drawing ---------------------------------------------------------------------------------------


def integers(low: int, high: int) -> st.SearchStrategy[int]:
    """Integers in a range, its ends more often than others. An empty range gives up the example."""
    if low > high:
        return st.nothing()
    return st.one_of(st.sampled_from((low, high)), st.integers(low, high))


@st.composite
def blobs(draw: st.DrawFn, length: int) -> memoryview:
    """`length` bytes from a seed. Read as f32 or bf16 they may hold NaN and infinities."""
    seed = draw(st.integers(0, U32))
    return memoryview(np.random.default_rng(seed).bytes(length))


def digests() -> st.SearchStrategy[bytes]:
    """32 bytes."""
    return st.binary(min_size=32, max_size=32)


def texts() -> st.SearchStrategy[str]:
    """Text of an ERROR, in any script."""
    return st.text(max_size=200)


def several(element: st.SearchStrategy[int], count: int) -> st.SearchStrategy[list[int]]:
    """Exactly `count` elements."""
    return st.lists(element, min_size=count, max_size=count)


@st.composite
def layouts(draw: st.DrawFn, max_fragments: int = 4, max_numel: int = 700) -> WireLayout:
    """Numeric layouts of every merge mode, with numels around the edges of q4 blocks."""
    edges = [edge for edge in (1, 255, 256, 257, 512) if edge <= max_numel]
    fragments: list[tuple[int, list[int], list[tuple[int, int]] | None]] = []
    for _ in range(draw(st.integers(1, max_fragments))):
        mode = draw(st.sampled_from(MergeMode))
        count = draw(st.integers(1, 3))
        if mode is MergeMode.ISO:
            side = st.integers(1, max(1, int(max_numel**0.5)))
            shapes = [(draw(side), draw(side)) for _ in range(count)]
            fragments.append((mode, [rows * cols for rows, cols in shapes], shapes))
        else:
            numel = st.one_of(st.sampled_from(edges), st.integers(1, max_numel))
            fragments.append((mode, [draw(numel) for _ in range(count)], None))
    return WireLayout.build(fragments)


@st.composite
def sessions(draw: st.DrawFn, max_fragments: int = 4, max_numel: int = 700) -> Session:
    """Sessions of every dtype, with and without a profile."""
    return Session(
        draw(st.sampled_from(Dtype)),
        draw(layouts(max_fragments, max_numel)),
        draw(digests()),
        draw(digests()),
        draw(st.none() | digests()),
    )


def kept(message: M, session: Session) -> M:
    """The message, if it keeps every rule of time `decode` that a session can tell; else no example."""
    context = {"session": session, "left": None, "total_limit": None}
    assume(first_of(DECODE[message.frame_type.name], message, context) is None)
    return message


# -- breaking --------------------------------------------------------------------------------------


def at_least(low: int, high: int | None = None) -> list[Span]:
    """Values from `low` up."""
    return [(max(low, 0), low + _BEYOND if high is None else high)]


def at_most(high: int) -> list[Span]:
    """Values from 0 up to `high`."""
    return [(0, high)]


def apart_from(value: int, high: int | None = None) -> list[Span]:
    """Values other than one."""
    return [(0, value - 1), (value + 1, value + _BEYOND if high is None else high)]


def exactly(value: int) -> list[Span]:
    """One value."""
    return [(value, value)]


def none_of(values: tuple[int, ...], high: int) -> list[Span]:
    """Values from 0 to `high` that are not listed."""
    edges = [-1, *sorted(values), high + 1]
    return [(low + 1, top - 1) for low, top in pairwise(edges)]


def _in(draw: st.DrawFn, ranges: list[Span]) -> int:
    usable = [each for each in ranges if each[0] <= each[1]]
    assume(usable)
    return draw(integers(*draw(st.sampled_from(usable))))


def number(field: str, ranges: Ranges) -> Breaker:
    """Overwrites a field with a value of the ranges."""

    def apply(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
        offset, run, index = _place(message, payload, field)
        size = FixedRun(run.formats[index], (field,)).size
        value = _in(draw, ranges(message, len(payload) - offset - size))
        return payload[:offset] + value.to_bytes(size, "little") + payload[offset + size :]

    return apply


def length(ranges: Ranges) -> Breaker:
    """Gives the bulk another length."""

    def apply(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
        run = FRAMES[message.frame_type].fixed
        assert run is not None
        return payload[: run.size] + bytes(draw(blobs(_in(draw, ranges(message, 0)))))

    return apply


def tail(field: str) -> Breaker:
    """Replaces everything from a field on by bytes of a length that the rule before the field refuses."""

    def apply(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
        offset, _, _ = _place(message, payload, field)
        rules = [each for each in DECODE[message.frame_type.name] if each.field == field and each.before]
        refused = [
            left
            for left in range(100)
            if any(each.check is not None and not each.check(message, left) for each in rules)
        ]
        return payload[:offset] + bytes(draw(blobs(draw(st.sampled_from(refused)))))

    return apply


def cut(head: int) -> Breaker:
    """Cuts the payload inside its fixed fields."""

    def apply(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
        return payload[: draw(integers(0, head - 1))]

    return apply


def extended() -> Breaker:
    """Appends bytes."""

    def apply(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
        return payload + draw(st.binary(min_size=1, max_size=40))

    return apply


def payload_of(message: Message) -> bytes:
    """The payload of a message as one byte string."""
    head, *bulk = codec.encode(message)
    return b"".join([bytes(head)[HEADER_BYTES:], *map(bytes, bulk)])


def _place(message: Any, payload: bytes, field: str) -> tuple[int, FixedRun, int]:
    """Offset of a field, and the run that holds it with its place there."""
    frame = FRAMES[message.frame_type]
    offsets: dict[str, int] = {}

    def note(name: str, before: bool, values: Any, left: int, offset: int) -> None:
        offsets[name] = offset

    body = payload if frame.bulk is None else payload[: frame.fixed.size if frame.fixed else 0]
    frame.body.read(body, note, None)
    for part in frame.body.parts:
        run = part.run if isinstance(part, Optional) else part
        if isinstance(run, FixedRun) and field in run.names:
            return offsets[field], run, run.names.index(field)
    raise AssertionError(f"{frame.name} has no fixed field {field}")


@st.composite
def broken(
    draw: st.DrawFn,
    valid: st.SearchStrategy[Any],
    breakers: Mapping[str, Breaker],
    only: str | None,
) -> Broken:
    """A valid payload after one of the breakers."""
    rule = draw(st.sampled_from(sorted(breakers))) if only is None else only
    message = draw(valid)
    payload = breakers[rule](draw, message, payload_of(message))
    return Broken(message.frame_type, payload, (RULES[rule].error,), rule)
