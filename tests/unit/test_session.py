"""What a HELLO fixes: the numeric layout as it stands on the wire, and the comparison with later HELLOs."""

from __future__ import annotations

import json
import pickle
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from time import thread_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire_samples import hello, layout, session
from yeto_proto._generated.constants import HELLO_MAX
from yeto_proto._generated.errors import (
    BadArgument,
    BadIsoShape,
    BadMergeMode,
    BadNumel,
    BadTensorCount,
    LayoutOverflow,
    Truncated,
    WireError,
)
from yeto_proto._generated.types import Dtype, FrameType, MergeMode, Role
from yeto_proto.codec import decode
from yeto_proto.session import Session, WireLayout

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "frames.json").read_text())["messages"]
AVG, RDA, ISO = MergeMode
# What follows a layout in a HELLO: two hashes and the number of streams.
TAIL = bytes(66)
U64 = 2**64 - 1

Fragment = tuple[int, list[int], list[tuple[int, int]] | None]


def written(*fragments: Fragment) -> bytes:
    """A layout, field by field, with nothing judged."""
    out = b""
    for mode, numels, shapes in fragments:
        out += struct.pack(f"<BI{len(numels)}Q", mode, len(numels), *numels)
        for pair in shapes or ():
            out += struct.pack("<QQ", *pair)
    return out


def slow(data: bytes, num_fragments: int) -> tuple[type[WireError] | None, list[Fragment]]:
    """The obvious parser, one field after the other: the first fault, or the fragments."""
    at = 0
    found: list[Fragment] = []

    def take(form: str) -> int | None:
        nonlocal at
        if at + struct.calcsize(form) > len(data):
            return None
        (value,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return int(value)

    for _ in range(num_fragments):
        if len(data) - at < 5:
            return Truncated, []
        mode, count = take("<B"), take("<I")
        assert mode is not None and count is not None
        if mode > 2:
            return BadMergeMode, []
        if not 1 <= count <= (len(data) - at) // 8:
            return BadTensorCount, []
        # Both runs are complete before a value of the second one is looked at; see the order of the rules.
        numels = [take("<Q") for _ in range(count)]
        if len(data) - at < 16 * count * (mode == ISO):
            return Truncated, []
        shapes = [(take("<Q"), take("<Q")) for _ in range(count)] if mode == ISO else None
        if 0 in numels:
            return BadNumel, []
        if shapes is not None and any(
            not rows or not cols or rows * cols != numel
            for (rows, cols), numel in zip(shapes, numels, strict=True)
        ):
            return BadIsoShape, []
        if sum(numels) > U64:  # type: ignore[arg-type]
            return LayoutOverflow, []
        found.append((mode, numels, shapes))  # type: ignore[arg-type]
    return None, found


def shown(parsed: WireLayout) -> list[Fragment]:
    fragments: list[Fragment] = []
    for index in range(parsed.num_fragments):
        shapes = parsed.shapes(index)
        pairs = None if shapes is None else [(int(rows), int(cols)) for rows, cols in shapes]
        fragments.append((int(parsed.merge_modes[index]), parsed.numels(index).tolist(), pairs))
    return fragments


@st.composite
def fragments(draw: st.DrawFn) -> Fragment:
    mode = draw(st.sampled_from(MergeMode))
    if mode == ISO:
        pairs = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2**40)), min_size=1, max_size=4))
        return mode, [rows * cols for rows, cols in pairs], pairs
    return mode, draw(st.lists(st.integers(1, 2**40), min_size=1, max_size=5)), None


layouts = st.lists(fragments(), min_size=1, max_size=6)


@given(layouts)
def test_a_layout_reads_back(parts: list[Fragment]) -> None:
    data = written(*parts)
    parsed, used = WireLayout.parse(data + TAIL, len(parts))
    assert used == len(data)
    assert parsed.data == parsed.to_bytes() == data
    assert shown(parsed) == parts
    assert parsed == WireLayout.build(parts)
    assert parsed.num_tensors == sum(len(numels) for _, numels, _ in parts)
    assert parsed.fragment_numels.tolist() == [sum(numels) for _, numels, _ in parts]
    assert parsed.max_numel == max(sum(numels) for _, numels, _ in parts)
    assert [parsed.merge_mode(index) for index in range(len(parts))] == [mode for mode, _, _ in parts]
    assert [int(offset) for offset in parsed.offsets] == [
        len(written(*parts[:index])) for index in range(len(parts))
    ]


@given(layouts, st.data())
def test_the_first_fault_is_the_one_that_reading_in_order_finds(
    parts: list[Fragment], data: st.DataObject
) -> None:
    whole = bytearray(written(*parts) + data.draw(st.binary(max_size=20)))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.sampled_from([0, 1, 2, 3, 255]))
    content = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    count = data.draw(st.integers(0, len(parts) + 1))
    error, found = slow(content, count)
    if error is None:
        assert shown(WireLayout.parse(content, count)[0]) == found
    else:
        with pytest.raises(error) as caught:
            WireLayout.parse(content, count)
        assert caught.value.frame == "HELLO"


def fault(error: type[WireError], *parts: Fragment, count: int | None = None, cut: int = 0) -> WireError:
    data = written(*parts)
    with pytest.raises(error) as caught:
        WireLayout.parse(
            memoryview(data)[: len(data) - cut], len(parts) if count is None else count, base=1000
        )
    return caught.value


GOOD: Fragment = (RDA, [4, 5], None)


@pytest.mark.rule("hello.merge_mode.must")
def test_an_unknown_merge_mode_is_refused() -> None:
    error = fault(BadMergeMode, GOOD, (3, [1], None))
    assert (error.rule, error.field, error.offset) == ("hello.merge_mode.must", "merge_mode", 1021)
    assert (error.seen, error.limit) == (3, 2)
    assert str(error).startswith("invalid HELLO: unknown merge mode")


@pytest.mark.rule("hello.num_tensors.must")
def test_a_fragment_without_tensors_is_refused() -> None:
    error = fault(BadTensorCount, GOOD, (AVG, [], None), GOOD)
    assert (error.rule, error.offset, error.seen) == ("hello.num_tensors.must", 1022, 0)


@pytest.mark.rule("hello.num_tensors.fits")
def test_more_tensors_than_bytes_are_refused() -> None:
    one_too_many = struct.pack("<BI", AVG, 3) + bytes([1] * 16)
    with pytest.raises(BadTensorCount) as caught:
        WireLayout.parse(one_too_many, 1)
    assert (caught.value.rule, caught.value.limit, caught.value.seen) == ("hello.num_tensors.fits", 2, 3)
    exact, _ = WireLayout.parse(struct.pack("<BI", AVG, 2) + bytes([1] * 16), 1)
    assert exact.num_tensors == 2


@pytest.mark.rule("hello.num_tensors.fits")
@pytest.mark.parametrize("mode", list(MergeMode))
def test_a_count_of_four_billion_costs_nothing(mode: MergeMode) -> None:
    data = struct.pack("<BI", mode, 2**32 - 1) + TAIL
    tracemalloc.start()
    try:
        with pytest.raises(BadTensorCount):
            WireLayout.parse(data, 1)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.rule("hello.numels.must")
def test_a_tensor_without_values_is_refused() -> None:
    error = fault(BadNumel, GOOD, (AVG, [7, 0, 0], None))
    assert (error.rule, error.offset, error.seen, error.limit) == ("hello.numels.must", 1021 + 5 + 8, 0, 1)
    assert "tensor 1 of fragment 1" in error.detail


@pytest.mark.rule("hello.numels.complete")
@pytest.mark.parametrize("cut", [1, 16, 31])
def test_missing_shapes_are_refused(cut: int) -> None:
    error = fault(Truncated, GOOD, (ISO, [6, 4], [(2, 3), (2, 2)]), cut=cut)
    assert error.rule == "hello.numels.complete"


@pytest.mark.rule("hello.numels.complete")
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_a_missing_fragment_is_refused(cut: int) -> None:
    data = written(GOOD) + written(GOOD)[: 5 - 1 - cut]
    with pytest.raises(Truncated) as caught:
        WireLayout.parse(data, 2)
    assert caught.value.offset == len(data)


@pytest.mark.rule("hello.numels.total")
@pytest.mark.parametrize(
    "values", [[U64, 1], [2**63, 2**63], [2**64 - 2**32, 2**32], [U64, U64, 2], [1, 2**63, 2**63 - 1]]
)
def test_a_fragment_of_two_to_the_64_values_is_refused(values: list[int]) -> None:
    error = fault(LayoutOverflow, GOOD, (AVG, values, None))
    assert (error.rule, error.seen, error.limit) == ("hello.numels.total", sum(values), U64)


@pytest.mark.rule("hello.numels.total")
def test_the_largest_sum_is_exact() -> None:
    parsed, _ = WireLayout.parse(written((AVG, [U64], None), (RDA, [2**63, 2**63 - 1], None)), 2)
    assert parsed.fragment_numels.tolist() == [U64, U64]
    assert parsed.max_numel == U64


@pytest.mark.rule("hello.shapes.must")
@pytest.mark.parametrize(
    ("numel", "shape"),
    [
        (6, (2, 2)),
        (6, (0, 6)),
        (6, (6, 0)),
        (1, (0, 0)),
        (7, (2, 3)),
        (1, (2**63, 2)),  # wraps to 0
        (4, (2**62 + 1, 4)),  # wraps to 4
        (1, (U64, U64)),  # wraps to 1
    ],
)
def test_a_shape_that_is_not_its_numel_is_refused(numel: int, shape: tuple[int, int]) -> None:
    error = fault(BadIsoShape, (AVG, [9], None), (ISO, [6, numel], [(3, 2), shape]), GOOD)
    assert error.rule == "hello.shapes.must"
    assert error.offset == 1000 + 13 + 5 + 16 + 16
    assert (error.seen, error.limit) == (f"{shape[0]}x{shape[1]}", numel)
    assert "tensor 1 of fragment 1" in error.detail


@pytest.mark.rule("hello.shapes.must")
def test_shapes_as_large_as_numbers_go() -> None:
    parsed, _ = WireLayout.parse(written((ISO, [U64], [(U64, 1)]), (ISO, [2**63], [(2**31, 2**32)])), 2)
    assert shown(parsed)[0] == (ISO, [U64], [(U64, 1)])


def test_an_earlier_fragment_is_judged_before_a_later_one_that_cannot_be_read() -> None:
    assert fault(BadNumel, (AVG, [0], None), (9, [1], None)).rule == "hello.numels.must"
    assert fault(BadIsoShape, (ISO, [6], [(1, 1)]), (AVG, [], None)).rule == "hello.shapes.must"
    assert fault(BadNumel, (AVG, [1, 0], None), (ISO, [6], [(1, 1)])).rule == "hello.numels.must"
    assert fault(BadIsoShape, (ISO, [6], [(1, 1)]), (AVG, [1, 0], None)).rule == "hello.shapes.must"


def test_a_known_layout_is_compared_and_not_parsed() -> None:
    known = layout(4, 9)
    data = known.data + TAIL
    for buffer in (data, memoryview(data), memoryview(bytearray(data))):
        parsed, used = WireLayout.parse(buffer, 2, known=known)
        assert parsed is known
        assert used == len(known.data)
    assert WireLayout.parse(data, 1, known=known)[0] == layout(4)
    other = layout(4, 8)
    assert WireLayout.parse(other.data + TAIL, 2, known=known)[0] == other
    assert WireLayout.parse(memoryview(layout(4).data), 1, known=known)[0] == layout(4)


def test_no_array_of_a_layout_can_be_changed() -> None:
    parsed = WireLayout.build([(ISO, [6], [(2, 3)])])
    shapes = parsed.shapes(0)
    assert shapes is not None
    for array in (parsed.merge_modes, parsed.fragment_numels, parsed.offsets, parsed.numels(0), shapes):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_layouts_compare_and_hash_by_their_bytes() -> None:
    one, same, other = layout(4, 9), layout(4, 9), layout(9, 4)
    assert one == same and hash(one) == hash(same) and one != other
    assert one != one.data
    assert repr(one) == "WireLayout(2 fragments, 2 tensors)"
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    "part",
    [
        (ISO, [6], None),
        (ISO, [6], [(2, 3), (1, 1)]),
        (ISO, [6], [(6,)]),
        (AVG, [-1], None),
        (AVG, [2**64], None),
        (300, [1], None),
        (AVG, ["x"], None),
    ],
)
def test_what_cannot_be_written_is_an_error_of_the_caller(part: Fragment) -> None:
    with pytest.raises(BadArgument):
        WireLayout.build([GOOD, part])


def test_build_refuses_what_no_hello_may_carry() -> None:
    with pytest.raises(BadNumel):
        WireLayout.build([(AVG, [0], None)])
    assert WireLayout.build([]).num_fragments == 0
    assert WireLayout.build([]).max_numel == 0


@pytest.mark.parametrize(
    ("record", "fields"),
    [(13, (RDA, 1, 7)), (29, (ISO, 1, 6, 2, 3)), (HELLO_MAX - 8, None)],
    ids=["a million small fragments", "iso fragments", "one fragment of two million tensors"],
)
def test_the_largest_hello_is_parsed_in_well_under_a_second(
    record: int, fields: tuple[int, ...] | None
) -> None:
    count = HELLO_MAX // record
    if fields is None:
        numels = (HELLO_MAX - 8) // 8
        data = struct.pack("<BI", AVG, numels) + np.full(numels, 3, "<u8").tobytes()
    else:
        data = struct.pack("<BI" + "Q" * (len(fields) - 2), *fields) * count
    assert len(data) > HELLO_MAX - 100
    started = thread_time()
    parsed, used = WireLayout.parse(data, count)
    # Around 0.5 s of this thread's own time; the bound only tells numpy from an interpreted parser.
    assert thread_time() - started < 10
    assert (used, parsed.num_fragments) == (len(data), count)
    assert int(parsed.fragment_numels.sum()) == (3 * numels if fields is None else count * fields[2])


# The session.

OTHER = WireLayout.build([(RDA, [6], None), (RDA, [3], None), (RDA, [1], None)])


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([GOOD], [GOOD, GOOD], "num_fragments: the session has 1, this HELLO has 2"),
        ([GOOD, GOOD], [GOOD, (AVG, [4, 5], None)], "fragment 1: merge_mode: the session has rda"),
        (
            [GOOD, GOOD],
            [(RDA, [4], None), GOOD],
            "fragment 0: num_tensors: the session has 2, this HELLO has 1",
        ),
        (
            [GOOD, GOOD, GOOD],
            [GOOD, GOOD, (RDA, [4, 70000], None)],
            "fragment 2: numel of tensor 1: the session has 5, this HELLO has 70000",
        ),
        (
            [GOOD, (ISO, [6, 6], [(2, 3), (2, 3)])],
            [GOOD, (ISO, [6, 6], [(2, 3), (3, 2)])],
            "fragment 1: shape of tensor 1: the session has 2x3, this HELLO has 3x2",
        ),
        (
            [(ISO, [6], [(2, 3)]), GOOD],
            [(AVG, [6], None), GOOD],
            "fragment 0: merge_mode: the session has iso, this HELLO has avg",
        ),
    ],
)
def test_a_layout_difference_names_fragment_and_both_values(
    ours: list[Fragment], theirs: list[Fragment], expected: str
) -> None:
    said = WireLayout.build(ours).difference(WireLayout.build(theirs))
    assert said is not None
    assert said.startswith(expected)


@given(layouts, layouts)
def test_layouts_differ_exactly_when_their_bytes_do(ours: list[Fragment], theirs: list[Fragment]) -> None:
    one, other = WireLayout.build(ours), WireLayout.build(theirs)
    assert (one.difference(other) is None) == (one == other) == (one.data == other.data)


def test_a_hello_that_agrees_has_no_difference() -> None:
    of = replace(session(), profile=b"p" * 32)
    assert of.difference(hello(of, learner_id=3, num_streams=9)) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dtype": Dtype.BF16}, "dtype: the session has f32, this HELLO has bf16"),
        ({"layout": OTHER}, "num_fragments: the session has 2, this HELLO has 3"),
        (
            {"layout_fingerprint": b"x" * 32},
            f"layout_fingerprint: the session has {'66' * 32}, this HELLO has 7878",
        ),
        ({"session_contract_hash": b"x" * 32}, "session_contract_hash: the session has 6363"),
        (
            {"syncer_profile_hash": b"x" * 32},
            f"syncer_profile_hash: the session has none, this HELLO has {'78' * 32}",
        ),
    ],
)
def test_the_first_field_that_differs_is_named(change: dict[str, object], expected: str) -> None:
    of = session()
    said = of.difference(replace(hello(of), **change))  # type: ignore[arg-type]
    assert said is not None
    assert said.startswith(expected)


def test_differences_come_in_the_order_of_the_wire() -> None:
    of = session()
    changes: list[dict[str, object]] = [
        {"syncer_profile_hash": b"x" * 32},
        {"session_contract_hash": b"x" * 32},
        {"layout_fingerprint": b"x" * 32},
        {"layout": OTHER},
        {"dtype": Dtype.Q4},
    ]
    message = hello(of)
    for change in changes:
        message = replace(message, **change)  # type: ignore[arg-type]
        said = of.difference(message)
        assert said is not None
        assert said.startswith("num_fragments" if "layout" in change else next(iter(change)))


def test_a_profile_is_missed_too() -> None:
    of = replace(session(), profile=b"p" * 32)
    said = of.difference(replace(hello(of), syncer_profile_hash=None))
    assert said == f"syncer_profile_hash: the session has {'70' * 32}, this HELLO has none"


@pytest.mark.parametrize(
    ("dtype", "bulk", "push"),
    [(Dtype.F32, 4 * 300, 4 * 300), (Dtype.BF16, 600, 600), (Dtype.Q4, 600, 2 * 132)],
)
def test_sizes_follow_from_dtype_and_numel(dtype: Dtype, bulk: int, push: int) -> None:
    of = session(5, 300, dtype=dtype)
    assert (of.num_fragments, of.numel(0), of.numel(1), of.max_numel) == (2, 5, 300, 300)
    assert (of.bulk_bytes(1), of.push_bytes(1), of.final_bytes(1)) == (bulk, push, 1200)


@pytest.mark.parametrize(
    "vector", [each for each in VECTORS if each["type"] == FrameType.HELLO], ids=lambda each: each["name"]
)
def test_a_session_is_what_the_first_hello_says(vector: dict[str, str]) -> None:
    message = decode(FrameType.HELLO, bytes.fromhex(vector["payload_hex"]), None, Role.SYNCER)
    of = Session.from_hello(message)  # type: ignore[arg-type]
    assert of.difference(message) is None  # type: ignore[arg-type]
    assert of == Session.from_hello(message)  # type: ignore[arg-type]
    again = decode(FrameType.HELLO, bytes.fromhex(vector["payload_hex"]), of, Role.SYNCER)
    assert again.layout is of.layout  # type: ignore[union-attr]
