"""Tensor codecs of the wire: f32, bf16 and q4, to and from little-endian float32 arrays.

`encode` and `decode` work on the values of a whole fragment, `decode_range` on any part of one, and
`check_finite` judges received bytes.  No function starts a thread or keeps a buffer, so a caller may run
several of them side by side.

The work goes over blocks that stay in a core's cache, with scratch arrays that are reused from block to
block: numpy then runs at the speed of the cache instead of the speed of memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._generated.constants import Q4_BLOCK, Q4_BLOCK_BYTES
from ._generated.errors import BadArgument, BadLength, BadScale, NonFinite
from ._generated.sizes import push_bytes
from ._generated.types import Dtype
from ._q4 import F32, U8, U16, U32, Q4Decoder, Q4Encoder, scales

__all__ = ["Buffer", "F32Array", "check_finite", "decode", "decode_range", "encode", "encoded_bytes"]

F32Array = npt.NDArray[np.float32]
Buffer = Any  # anything with the buffer protocol; collections.abc.Buffer needs Python 3.12

# Values that one pass handles.  Smaller blocks pay more for the interpreter than they gain from the cache.
_BLOCK = 1 << 16
_WIDE = (
    1 << 18
)  # where a pass is one or two calls, so that threads side by side seldom wait for the interpreter
_FEW = 4  # ties of one block that are fixed one by one

# numpy converts a Python number anew in each call; an array without dimensions costs less than half.
_SHIFT16 = np.array(16, U32)
_HALF = np.array(0x8000, U32)  # half a unit in the last place of a bf16, as seen from the f32 bits
_QUIET = np.array(0x0040, U16)  # the bit that makes a bf16 NaN a quiet one
_EXPONENT16 = np.array(0x7F80, U16)  # all ones: an infinity or a NaN


def encoded_bytes(dtype: Dtype, numel: int) -> int:
    """Bytes of `numel` values in this dtype: 4, 2, or 132 for each begun block of 256."""
    return push_bytes(dtype, numel)


def encode(dtype: Dtype, array: npt.ArrayLike, out: Buffer | None = None) -> memoryview:
    """Encode all values of `array`, row-major, as wire bytes.

    Any float or integer array is taken as float32 first.  bf16 rounds to nearest, ties to even: finite values
    may become infinite, subnormals stay, a NaN stays a NaN with its sign.  q4 stores the largest magnitude of
    each block of 256 as its scale and never emits a negative zero.  Non-finite values are encoded like any
    other (the receiver refuses them).

    `out`, when given, is a writable buffer of exactly `encoded_bytes` bytes.  Without it the result is fresh
    memory, except for f32, where it is the array's own memory if that is contiguous little-endian float32.

    Raises BadArgument when `out` does not fit or `array` holds no real numbers.
    """
    values = _flat(array)
    size = encoded_bytes(dtype, values.size)
    if dtype == Dtype.F32 and out is None:
        return values.view(U8).data
    raw = np.empty(size, U8) if out is None else _writable(out, size)
    if dtype == Dtype.F32:
        raw.view(F32)[...] = values
    elif dtype == Dtype.BF16:
        _encode_bf16(values, raw.view(U16))
    else:
        Q4Encoder(values.size).encode(values, raw)
    return raw.data


def decode(dtype: Dtype, buffer: Buffer, numel: int, out: F32Array | None = None) -> F32Array:
    """Decode the wire bytes of `numel` values to a float32 array of one dimension.

    Without `out`, f32 comes back as a view of `buffer` (read-only when the buffer is), the others as a new
    array.  `out` must be a writable contiguous float32 array of `numel` values; it is returned flat.

    Values are not judged here (`check_finite` does that).  Raises BadLength when the buffer is not exactly as
    long as `numel` values are.
    """
    raw = _payload(dtype, buffer, numel)
    if dtype == Dtype.F32 and out is None:
        return raw.view(F32)
    values = np.empty(numel, F32) if out is None else _target(out, numel)
    _decode_into(dtype, raw, 0, values)
    return values


def decode_range(
    dtype: Dtype, buffer: Buffer, numel: int, start: int, stop: int, out: F32Array | None = None
) -> F32Array:
    """Decode the values `start` to `stop` (exclusive) out of the wire bytes of `numel` values.

    The result equals `decode(...)[start:stop]` without the memory of the whole: a merge decodes block by
    block. For q4 a `start` on a multiple of 256 is fastest.  `out` as in `decode`, with `stop - start`
    values.

    Raises BadLength as `decode` does, BadArgument when the range is not inside 0..numel.
    """
    raw = _payload(dtype, buffer, numel)
    if not 0 <= start <= stop <= numel:
        raise _bad(
            "range", f"0 <= start <= stop <= {numel}", f"{start}..{stop}", "the range leaves the tensor"
        )
    if dtype == Dtype.F32 and out is None:
        return raw.view(F32)[start:stop]
    values = np.empty(stop - start, F32) if out is None else _target(out, stop - start)
    _decode_into(dtype, raw, start, values)
    return values


def check_finite(dtype: Dtype, buffer: Buffer) -> None:
    """Refuse wire bytes that hold a NaN or an infinity; for q4, a scale that is negative or not finite.

    Raises NonFinite or BadScale for the first such value; the error's offset is its byte offset in `buffer`.
    Raises BadLength when the buffer cannot be a whole number of values (for q4, of blocks).
    """
    raw = np.frombuffer(buffer, U8)
    unit = encoded_bytes(dtype, 1)
    if raw.size % unit:
        raise _length(dtype, f"a multiple of {unit} bytes", raw.size)
    if dtype == Dtype.Q4:
        _check_scales(scales(raw))
    elif dtype == Dtype.BF16:
        _check_bf16(raw.view(U16))
    else:
        _check_f32(raw.view(F32))


# ------------------------------------------------------------------------------------------------ bf16


def _encode_bf16(values: F32Array, out: npt.NDArray[np.uint16]) -> None:
    """Round to nearest by adding half a unit to the f32 bits and keeping the upper 16.

    That rounds ties up, so ties are looked for and pulled back to even.  A NaN could run over into zero that
    way and is set apart.
    """
    size = min(values.size, _BLOCK)
    scratch = np.empty(size + 1, U32)
    low_ = np.empty(size, U16)
    # Read two bytes further on, each word begins with the upper half of a sum: dropping its other half takes
    # half the time of a shift.
    upper = np.ndarray((size,), U32, scratch.data, U16.itemsize)
    bits = values.view(U32)
    for start in range(0, values.size, _BLOCK):
        stop = min(start + _BLOCK, values.size)
        count = stop - start
        low, target = low_[:count], out[start:stop]
        largest = np.maximum.reduce(values[start:stop])  # NaN if there is one; also fills the cache
        wide = scratch[:count]
        np.add(bits[start:stop], _HALF, wide)
        low[...] = wide
        target[...] = upper[:count]
        _to_even(low, target)
        if largest != largest:
            _keep_nans(values[start:stop], target)


def _to_even(low: npt.NDArray[np.uint16], target: npt.NDArray[np.uint16]) -> None:
    """Where nothing is left below, the value stood just between two and was rounded up: clear the last bit.

    Random values tie once in 65,536; values computed from bf16 tie often.  Both kinds are kept cheap.
    """
    for _ in range(_FEW):
        index = low.argmin()
        if low[index]:
            return
        target[index] &= 0xFFFE
        low[index] = 1
    target -= target & (low == 0).view(U8)


def _keep_nans(values: F32Array, target: npt.NDArray[np.uint16]) -> None:
    """A NaN keeps its sign and upper payload bits and becomes quiet, so that it cannot turn into infinity."""
    where = np.flatnonzero(np.isnan(values))
    upper = (values.view(U32)[where] >> _SHIFT16).astype(U16)
    target[where] = upper | _QUIET


def _decode_bf16(raw: npt.NDArray[np.uint16], out: F32Array) -> None:
    bits = out.view(U32)
    for start in range(0, out.size, _WIDE):
        stop = min(start + _WIDE, out.size)
        block = bits[start:stop]
        block[...] = raw[start:stop]
        np.left_shift(block, _SHIFT16, block)


# ------------------------------------------------------------------------------------------------ checks


def _check_f32(values: F32Array) -> None:
    flags_ = np.empty(min(values.size, _WIDE), np.bool_)
    for start in range(0, values.size, _WIDE):
        block = values[start : start + _WIDE]
        flags = flags_[: block.size]
        np.isfinite(block, flags)
        if np.count_nonzero(flags) != block.size:
            index = start + int(np.argmin(flags))
            raise _not_finite(Dtype.F32, index, float(values[index]))


def _check_bf16(raw: npt.NDArray[np.uint16]) -> None:
    exponents_ = np.empty(min(raw.size, _WIDE), U16)
    for start in range(0, raw.size, _WIDE):
        block = raw[start : start + _WIDE]
        exponents = exponents_[: block.size]
        np.bitwise_and(block, _EXPONENT16, exponents)
        if np.maximum.reduce(exponents) == _EXPONENT16:
            index = start + int(np.argmax(exponents))
            value = np.empty(1, F32)
            _decode_bf16(raw[index : index + 1], value)
            raise _not_finite(Dtype.BF16, index, float(value[0]))


def _check_scales(values: F32Array) -> None:
    # -0.0 is no negative number: it decodes to zeros.
    good = np.isfinite(values) & (values >= 0)
    if not good.all():
        block = int(np.argmin(good))
        scale = float(values[block])
        raise BadScale(
            field="scale",
            offset=block * Q4_BLOCK_BYTES,
            limit="finite and not negative",
            seen=scale,
            detail=f"scale of block {block}, which holds the values from {block * Q4_BLOCK} on",
        )


# ------------------------------------------------------------------------------------------------ arguments


def _decode_into(dtype: Dtype, raw: npt.NDArray[np.uint8], start: int, out: F32Array) -> None:
    stop = start + out.size
    if dtype == Dtype.F32:
        out[...] = raw.view(F32)[start:stop]
    elif dtype == Dtype.BF16:
        _decode_bf16(raw.view(U16)[start:stop], out)
    else:
        Q4Decoder(out.size).decode(raw, start, out)


def _flat(array: npt.ArrayLike) -> F32Array:
    given = np.asarray(array)
    if given.dtype.kind not in "fiub":
        raise _bad("array", "an array of real numbers", str(given.dtype), "this array cannot be a tensor")
    if given.dtype != F32:
        with np.errstate(over="ignore"):  # a float64 beyond the f32 range is an infinity, as on any cast
            given = given.astype(F32)
    return np.ascontiguousarray(given).reshape(-1)


def _writable(out: Buffer, size: int) -> npt.NDArray[np.uint8]:
    raw = np.frombuffer(out, U8)
    if raw.size != size or not raw.flags.writeable:
        what = "a buffer" if raw.flags.writeable else "a read-only buffer"
        raise _bad(
            "out", f"a writable buffer of {size} bytes", f"{what} of {raw.size} bytes", "out does not fit"
        )
    return raw


def _target(out: F32Array, numel: int) -> F32Array:
    flags = out.flags
    if out.dtype != F32 or out.size != numel or not flags.c_contiguous or not flags.writeable:
        limit = f"a writable contiguous float32 array of {numel} values"
        raise _bad("out", limit, f"{out.dtype} of shape {out.shape}", "out does not fit")
    return out.reshape(-1)


def _payload(dtype: Dtype, buffer: Buffer, numel: int) -> npt.NDArray[np.uint8]:
    if numel < 0:
        raise _bad("numel", "0 or more", numel, "a tensor cannot have a negative number of values")
    raw = np.frombuffer(buffer, U8)
    size = encoded_bytes(dtype, numel)
    if raw.size != size:
        raise _length(dtype, size, raw.size, f" for {numel} values")
    return raw


def _bad(field: str, limit: int | str, seen: object, detail: str) -> BadArgument:
    return BadArgument(field=field, limit=limit, seen=seen, detail=detail)


def _length(dtype: Dtype, limit: int | str, seen: int, detail: str = "") -> BadLength:
    return BadLength(
        field="tensor",
        limit=limit,
        seen=seen,
        detail=f"bytes of a {Dtype(dtype).name.lower()} tensor{detail}",
    )


def _not_finite(dtype: Dtype, index: int, value: float) -> NonFinite:
    offset = index * encoded_bytes(dtype, 1)
    return NonFinite(field="tensor", offset=offset, seen=value, detail=f"{dtype.name.lower()} value {index}")
