"""The tensor codecs against slow, obvious versions of themselves, and their edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yeto_proto import dtypes
from yeto_proto._generated.constants import Q4_BLOCK, Q4_BLOCK_BYTES, Q4_THRESHOLDS
from yeto_proto._generated.errors import BadArgument, BadLength, BadScale, NonFinite, YetoError
from yeto_proto._generated.types import Dtype

Array = np.ndarray[Any, Any]

# Sizes around a q4 block and around the passes of the codecs.
SIZES = [1, 2, 255, 256, 257, 511, 512, 65535, 65536, 65537, 131072 + 300]
sizes = st.one_of(st.sampled_from(SIZES), st.integers(1, 3000))
seeds = st.integers(0, 2**32 - 1)


def some_values(seed: int, count: int, kind: str) -> Array:
    rng = np.random.default_rng(seed)
    if kind == "bits":  # any f32 at all: subnormals, infinities, NaN of every kind
        return rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    if kind == "ties":  # half of them exactly between two bf16
        bits = rng.integers(0, 2**32, count, dtype=np.uint32) & 0x7F7FFFFF
        return np.where(rng.random(count) < 0.5, bits & 0xFFFF8000 | 0x8000, bits).view(np.float32)
    if kind == "thresholds":  # q4: values within three units of a threshold, for scale 1
        bits = np.array(Q4_THRESHOLDS, np.int64)[rng.integers(0, 7, count)] + rng.integers(-3, 4, count)
        values = bits.astype(np.uint32).view(np.float32) * rng.choice(np.float32([-1, 1]), count)
        values[::Q4_BLOCK] = 1
        return values
    if kind == "sparse":
        return np.where(rng.random(count) < 0.01, rng.standard_normal(count), 0).astype(np.float32)
    return rng.standard_normal(count).astype(np.float32)


kinds = st.sampled_from(["normal", "bits", "ties", "thresholds", "sparse"])


def plain_bf16(values: Array) -> bytes:
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    nan = np.isnan(values)
    rounded[nan] = (values.view(np.uint32)[nan] >> 16) | 0x40
    return rounded.tobytes()


def plain_q4(values: Array) -> bytes:
    data = b""
    for start in range(0, values.size, Q4_BLOCK):
        block = np.zeros(Q4_BLOCK, np.float32)
        block[: min(Q4_BLOCK, values.size - start)] = values[start : start + Q4_BLOCK]
        magnitude = np.abs(block)
        scale = magnitude.view(np.uint32).max(keepdims=True).view(np.float32)
        with np.errstate(invalid="ignore"):
            ratio = magnitude / (scale if scale[0] > 0 else np.float32(1))
        codes = []
        for value, bits, n in zip(block, ratio.view(np.uint32).tolist(), ratio, strict=True):
            level = 0 if math.isnan(n) else sum(bits >= threshold for threshold in Q4_THRESHOLDS)
            codes.append(level + (8 if value < 0 and level else 0))
        data += scale.tobytes() + bytes(
            low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)
        )
    return data


def plain_q4_decode(wire: bytes, numel: int) -> Array:
    values = []
    for start in range(0, len(wire), Q4_BLOCK_BYTES):
        scale = np.frombuffer(wire, "<f4", 1, start)[0]
        for byte in wire[start + 4 : start + Q4_BLOCK_BYTES]:
            for nibble in (byte & 15, byte >> 4):
                level = nibble & 7
                value = np.float32(2.0 ** (level - 7)) * scale if level else np.float32(0)
                values.append(-value if nibble & 8 else value)
    return np.array(values[:numel], np.float32)


def same_bits(one: Array, other: Array) -> bool:
    nan = np.isnan(one)
    equal = one.view(np.uint32)[~nan] == other.view(np.uint32)[~nan]
    return bool(np.array_equal(nan, np.isnan(other)) and equal.all())


# ------------------------------------------------------------------------------------------- bf16, f32


@given(seed=seeds, count=sizes, kind=kinds)
def test_bf16_equals_the_formula(seed: int, count: int, kind: str) -> None:
    values = some_values(seed, count, kind)
    kept = values.copy()
    wire = dtypes.encode(Dtype.BF16, values)
    assert wire == plain_bf16(values)
    assert values.tobytes() == kept.tobytes()
    decoded = dtypes.decode(Dtype.BF16, wire, count)
    assert (decoded.view(np.uint32) >> 16).astype("<u2").tobytes() == wire
    assert not (decoded.view(np.uint32) & 0xFFFF).any()


def test_every_bf16_survives_the_way_there_and_back() -> None:
    every = np.arange(1 << 16, dtype="<u2")
    values = dtypes.decode(Dtype.BF16, every, every.size)
    back = np.frombuffer(dtypes.encode(Dtype.BF16, values), "<u2")
    nan = np.isnan(values)
    assert np.array_equal(back[~nan], every[~nan])
    assert np.array_equal(back[nan], every[nan] | 0x40)


def test_no_nan_becomes_a_number_or_an_infinity() -> None:
    payloads = np.array([1, 0x7FFF, 0x8000, 0xFFFF, 0x400000, 0x7F8000, 0x7FFFFF], np.uint32)
    bits = np.concatenate([payloads | 0x7F800000, payloads | 0xFF800000])
    wire = dtypes.encode(Dtype.BF16, bits.view(np.float32))
    decoded = dtypes.decode(Dtype.BF16, wire, bits.size)
    assert np.isnan(decoded).all()
    assert np.array_equal(np.signbit(decoded), np.signbit(bits.view(np.float32)))


@given(seed=seeds, count=sizes, kind=kinds)
def test_f32_is_the_memory_itself(seed: int, count: int, kind: str) -> None:
    values = some_values(seed, count, kind)
    wire = dtypes.encode(Dtype.F32, values)
    assert np.shares_memory(np.frombuffer(wire, np.uint8), values)
    decoded = dtypes.decode(Dtype.F32, wire, count)
    assert np.shares_memory(decoded, values)
    assert dtypes.decode(Dtype.F32, bytes(wire), count).flags.writeable is False


# ------------------------------------------------------------------------------------------------- q4


@given(seed=seeds, count=st.integers(1, 1200), kind=kinds)
def test_q4_equals_the_formula(seed: int, count: int, kind: str) -> None:
    values = some_values(seed, count, kind)
    kept = values.copy()
    wire = bytes(dtypes.encode(Dtype.Q4, values))
    assert wire == plain_q4(values)
    assert values.tobytes() == kept.tobytes()


@given(seed=seeds, count=st.integers(1, 1200))
def test_q4_decodes_any_bytes_by_the_formula(seed: int, count: int) -> None:
    size = dtypes.encoded_bytes(Dtype.Q4, count)
    wire = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()
    with np.errstate(invalid="ignore", over="ignore"):
        expected = plain_q4_decode(wire, count)
    assert same_bits(dtypes.decode(Dtype.Q4, wire, count), expected)


@pytest.mark.parametrize("count", SIZES)
def test_q4_error_is_at_most_a_factor_of_root_two(count: int) -> None:
    values = some_values(5, count, "normal")
    decoded = dtypes.decode(Dtype.Q4, dtypes.encode(Dtype.Q4, values), count)
    kept = decoded != 0
    ratio = np.abs(decoded[kept] / values[kept])
    assert ratio.max() <= math.sqrt(2) + 1e-6
    assert ratio.min() >= 1 / math.sqrt(2) - 1e-6
    assert np.array_equal(np.sign(decoded[kept]), np.sign(values[kept]))


def test_q4_levels_are_exact_at_each_threshold() -> None:
    for level, threshold in enumerate(Q4_THRESHOLDS, start=1):
        for step, expected in ((-1, level - 1), (0, level)):
            value = np.array([threshold + step], np.uint32).view(np.float32)[0]
            wire = bytes(dtypes.encode(Dtype.Q4, np.float32([1, value, -value])))
            negative = expected | 8 if expected else 0
            assert wire[4:6] == bytes([7 | expected << 4, negative])


def test_q4_zeros_have_no_sign_and_minus_zero_decodes() -> None:
    tiny = np.float32(1e-6)
    wire = bytes(dtypes.encode(Dtype.Q4, np.float32([1, -0.0, -tiny, tiny])))
    assert wire[4:6] == b"\x07\x00"
    decoded = dtypes.decode(Dtype.Q4, wire[:4] + b"\x80" + bytes(127), 2)
    assert (decoded[1], np.signbit(decoded[1])) == (0, True)


def test_q4_level_zero_is_zero_under_every_scale() -> None:
    for scale in (math.inf, math.nan, -1.0, -0.0):
        wire = np.array([scale], "<f4").tobytes() + b"\x80" + bytes(127)
        decoded = dtypes.decode(Dtype.Q4, wire, 2)
        assert decoded.tobytes() == np.float32([0.0, -0.0]).tobytes()


def test_q4_padding_is_ignored() -> None:
    wire = bytearray(dtypes.encode(Dtype.Q4, np.float32([1, -0.5, 0.25])))
    expected = dtypes.decode(Dtype.Q4, wire, 3)
    wire[5] |= 0xF0
    wire[6:] = b"\xff" * len(wire[6:])
    assert np.array_equal(dtypes.decode(Dtype.Q4, wire, 3), expected)


# ------------------------------------------------------------------------------------------- all three


@given(seed=seeds, count=sizes, dtype=st.sampled_from(Dtype), data=st.data())
def test_a_range_is_a_slice_of_the_whole(seed: int, count: int, dtype: Dtype, data: st.DataObject) -> None:
    wire = bytes(dtypes.encode(dtype, some_values(seed, count, "normal")))
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    whole = dtypes.decode(dtype, wire, count)
    assert np.array_equal(dtypes.decode_range(dtype, wire, count, start, stop), whole[start:stop])
    out = np.full(stop - start, 9, np.float32)
    assert dtypes.decode_range(dtype, wire, count, start, stop, out) is not whole
    assert np.array_equal(out, whole[start:stop])


@given(seed=seeds, count=sizes, dtype=st.sampled_from(Dtype))
def test_out_receives_the_same_bytes(seed: int, count: int, dtype: Dtype) -> None:
    values = some_values(seed, count, "normal")
    wire = bytes(dtypes.encode(dtype, values))
    target = bytearray(b"\xaa" * len(wire))
    assert dtypes.encode(dtype, values, target) == wire
    assert target == wire
    out = np.full(count, 9, np.float32)
    assert np.shares_memory(dtypes.decode(dtype, wire, count, out), out)
    assert np.array_equal(out, dtypes.decode(dtype, wire, count))


@pytest.mark.parametrize("dtype", Dtype)
def test_any_shape_stride_and_number_type_is_taken_row_major(dtype: Dtype) -> None:
    values = some_values(1, 600, "normal").reshape(20, 30)
    expected = bytes(dtypes.encode(dtype, values.T.copy()))
    assert dtypes.encode(dtype, values.T) == expected
    assert dtypes.encode(dtype, values.T.astype(np.float64)) == expected
    assert dtypes.encode(dtype, values.T.astype(">f4")) == expected
    assert dtypes.encode(dtype, [1, 2]) == bytes(dtypes.encode(dtype, np.float32([1, 2])))


@pytest.mark.parametrize("dtype", Dtype)
def test_buffers_at_odd_addresses_decode(dtype: Dtype) -> None:
    values = some_values(2, 700, "normal")
    wire = bytes(dtypes.encode(dtype, values))
    shifted = memoryview(b"\0" + wire)[1:]
    assert np.array_equal(dtypes.decode(dtype, shifted, 700), dtypes.decode(dtype, wire, 700))
    dtypes.check_finite(dtype, shifted)


@pytest.mark.parametrize("dtype", Dtype)
def test_a_tensor_of_no_values(dtype: Dtype) -> None:
    assert dtypes.encode(dtype, np.empty(0, np.float32)) == b""
    assert dtypes.decode(dtype, b"", 0).shape == (0,)
    dtypes.check_finite(dtype, b"")


def test_float64_beyond_the_range_is_an_infinity() -> None:
    assert dtypes.decode(Dtype.F32, dtypes.encode(Dtype.F32, [1e300]), 1)[0] == math.inf


# --------------------------------------------------------------------------------------------- refusals


@pytest.mark.rule("push_fragment.delta.length")
@pytest.mark.parametrize("dtype", Dtype)
def test_wrong_lengths_are_named(dtype: Dtype) -> None:
    size = dtypes.encoded_bytes(dtype, 300)
    for wrong in (0, size - 1, size + 1):
        with pytest.raises(BadLength, match=str(wrong)) as caught:
            dtypes.decode(dtype, bytes(wrong), 300)
        assert (caught.value.limit, caught.value.seen) == (size, wrong)
    with pytest.raises(BadLength):
        dtypes.check_finite(dtype, bytes(size + 1))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: dtypes.encode(Dtype.F32, ["a"]), "array"),
        (lambda: dtypes.encode(Dtype.F32, [1j]), "array"),
        (lambda: dtypes.encode(9, [1.0]), "dtype"),
        (lambda: dtypes.encode(Dtype.BF16, [1.0], bytearray(3)), "out"),
        (lambda: dtypes.encode(Dtype.BF16, [1.0], bytes(2)), "out"),
        (lambda: dtypes.decode(Dtype.F32, b"", -1), "numel"),
        (lambda: dtypes.decode(Dtype.BF16, bytes(4), 2, np.empty(3, np.float32)), "out"),
        (lambda: dtypes.decode(Dtype.BF16, bytes(4), 2, np.empty(2, np.float64)), "out"),
        (lambda: dtypes.decode(Dtype.BF16, bytes(4), 2, np.empty(4, np.float32)[::2]), "out"),
        (lambda: dtypes.decode(Dtype.F32, bytes(8), 2, np.frombuffer(bytes(8), np.float32)), "out"),
        (lambda: dtypes.decode_range(Dtype.F32, bytes(8), 2, 1, 3), "range"),
        (lambda: dtypes.decode_range(Dtype.F32, bytes(8), 2, 2, 1), "range"),
        (lambda: dtypes.decode_range(Dtype.F32, bytes(8), 2, -1, 1), "range"),
    ],
)
def test_misuse_is_an_error_of_the_caller(call: Any, field: str) -> None:
    with pytest.raises(BadArgument) as caught:
        call()
    assert caught.value.field == field


@pytest.mark.rule("push_fragment.delta.finite")
@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.BF16])
@pytest.mark.parametrize("index", [0, 1, 65535, 65536, 70000, 131071])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_non_finite_value_is_named(dtype: Dtype, index: int, value: float) -> None:
    values = some_values(3, 131072, "normal")
    wire = bytes(dtypes.encode(dtype, values))
    dtypes.check_finite(dtype, wire)
    values[index:] = value
    with pytest.raises(NonFinite, match=str(index)) as caught:
        dtypes.check_finite(dtype, dtypes.encode(dtype, values))
    assert caught.value.offset == index * dtypes.encoded_bytes(dtype, 1)
    assert str(caught.value.seen) == str(value)


@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.BF16])
def test_the_largest_and_smallest_finite_values_pass(dtype: Dtype) -> None:
    largest = dtypes.decode(Dtype.BF16, b"\x7f\x7f\x7f\xff", 2)
    dtypes.check_finite(dtype, dtypes.encode(dtype, [*largest, 1e-45, -1e-45, 0.0, -0.0]))


@pytest.mark.parametrize("block", [0, 1, 700])
@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, -1.0, -1e-45])
def test_the_first_bad_scale_is_named(block: int, scale: float) -> None:
    wire = bytearray(Q4_BLOCK_BYTES * 701)
    dtypes.check_finite(Dtype.Q4, wire)
    at = block * Q4_BLOCK_BYTES
    wire[at : at + 4] = np.array([scale], "<f4").tobytes()
    with pytest.raises(BadScale, match=f"block {block}") as caught:
        dtypes.check_finite(Dtype.Q4, wire)
    assert caught.value.offset == at


def test_a_scale_of_minus_zero_is_not_negative() -> None:
    dtypes.check_finite(Dtype.Q4, np.array([-0.0], "<f4").tobytes() + bytes(128))


@given(dtype=st.sampled_from(Dtype), data=st.binary(max_size=600), numel=st.integers(-5, 600))
def test_any_bytes_give_values_or_a_yeto_error(dtype: Dtype, data: bytes, numel: int) -> None:
    try:
        assert dtypes.decode(dtype, data, numel).shape == (numel,)
        dtypes.check_finite(dtype, data)
    except YetoError as error:
        assert "\n" not in str(error)
