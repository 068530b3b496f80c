"""Breakers for rules that no arithmetic on one field can break: those of HELLO's layout, and text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st

from yeto_proto._generated.constants import MAX_ALLOC
from yeto_proto._generated.sizes import HELLO_BYTES
from yeto_proto._generated.structs import LAYOUT_HEAD
from yeto_proto._generated.types import MergeMode
from yeto_proto.session import WireLayout

from .support import U8, U32, U64, Breaker, integers, payload_of

_WORD = 8


def _with_layout(payload: bytes, message: Any, layout: bytes) -> bytes:
    return payload[:HELLO_BYTES] + layout + payload[HELLO_BYTES + len(message.layout.data) :]


def _fragment(draw: st.DrawFn, message: Any) -> int:
    """The number of some fragment."""
    return draw(st.integers(0, message.layout.num_fragments - 1))


def _with_fragment(draw: st.DrawFn, message: Any, iso: bool) -> tuple[Any, bytes, int]:
    """The message with one more fragment, of two or three tensors; its payload and the fragment's number.

    A fragment of the kind that a breaker needs may not be there, and waiting for one would waste most draws.
    """
    count = draw(st.integers(2, 3))
    numels = [draw(st.integers(1, 50)) for _ in range(count)]
    shapes = [(numel, 1) for numel in numels]
    mode = MergeMode.ISO if iso else draw(st.sampled_from((MergeMode.AVG, MergeMode.RDA)))
    data = message.layout.data + WireLayout.build([(mode, numels, shapes if iso else None)]).data
    layout, _ = WireLayout.parse(data, message.layout.num_fragments + 1)
    longer = replace(message, layout=layout)
    return longer, payload_of(longer), layout.num_fragments - 1


def _bytes(message: Any, payload: bytes, fragment: int, at: int, new: bytes) -> bytes:
    """The payload with bytes written over the layout, counted from a fragment's head."""
    data = bytearray(message.layout.data)
    start = int(message.layout.offsets[fragment]) + at
    data[start : start + len(new)] = new
    return _with_layout(payload, message, bytes(data))


def _merge_mode(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
    mode = draw(integers(max(MergeMode) + 1, U8))
    return _bytes(message, payload, _fragment(draw, message), 0, bytes([mode]))


def _no_tensors(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
    return _bytes(message, payload, _fragment(draw, message), 1, bytes(4))


def _too_many_tensors(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
    fragment = _fragment(draw, message)
    end = HELLO_BYTES + int(message.layout.offsets[fragment]) + LAYOUT_HEAD.size
    most = (len(payload) - end) // _WORD
    return _bytes(message, payload, fragment, 1, draw(integers(most + 1, U32)).to_bytes(4, "little"))


def _numel(draw: st.DrawFn, message: Any, payload: bytes, fragment: int, value: int) -> bytes:
    tensor = draw(st.integers(0, len(message.layout.numels(fragment)) - 1))
    at = LAYOUT_HEAD.size + _WORD * tensor
    return _bytes(message, payload, fragment, at, value.to_bytes(_WORD, "little"))


def _no_values(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
    return _numel(draw, message, payload, _fragment(draw, message), 0)


def _huge(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
    message, payload, fragment = _with_fragment(draw, message, iso=False)
    # One tensor alone never overflows 64 bits here, and its f32 form is larger than every size may be.
    return _numel(draw, message, payload, fragment, draw(integers(MAX_ALLOC // 4 + 1, U64 - U32)))


def _overflowing(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
    """Two numels whose sum is above 64 bits."""
    message, payload, fragment = _with_fragment(draw, message, iso=False)
    first = draw(integers(1, U64))
    second = draw(integers(U64 + 1 - first, U64))
    pair = first.to_bytes(_WORD, "little") + second.to_bytes(_WORD, "little")
    return _bytes(message, payload, fragment, LAYOUT_HEAD.size, pair)


def _cut_shapes(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
    """A payload that ends inside the shapes of its last fragment: the counts fit, the bytes are not there."""
    message, payload, fragment = _with_fragment(draw, message, iso=True)
    pairs = 2 * _WORD * len(message.layout.numels(fragment))
    return payload[: HELLO_BYTES + len(message.layout.data) - draw(st.integers(1, pairs))]


def _shape(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
    message, payload, fragment = _with_fragment(draw, message, iso=True)
    count = len(message.layout.numels(fragment))
    tensor = draw(st.integers(0, count - 1))
    numel = int(message.layout.numels(fragment)[tensor])
    # The last two products are right, or nearly so, modulo 2^64.
    wrong = ((0, numel), (numel, 0), (numel + 1, 1), (1, numel + 1), (1 << 63, 2), (U64, U64 - numel + 1))
    rows, cols = draw(st.sampled_from(wrong))
    pair = rows.to_bytes(_WORD, "little") + cols.to_bytes(_WORD, "little")
    at = LAYOUT_HEAD.size + _WORD * count + 2 * _WORD * tensor
    return _bytes(message, payload, fragment, at, pair)


def _not_utf8(draw: st.DrawFn, message: Any, payload: bytes) -> bytes:
    at = draw(st.integers(0, len(message.text)))
    wrong = draw(st.sampled_from((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80")))
    text: str = message.text
    return text[:at].encode() + wrong + text[at:].encode()


#: By rule.
SPECIAL: Final[dict[str, Breaker]] = {
    "hello.layout.alloc": _huge,
    "hello.merge_mode.must": _merge_mode,
    "hello.num_tensors.must": _no_tensors,
    "hello.num_tensors.fits": _too_many_tensors,
    "hello.numels.must": _no_values,
    "hello.numels.total": _overflowing,
    "hello.numels.complete": _cut_shapes,
    "hello.shapes.must": _shape,
    "error.text.utf8": _not_utf8,
}
