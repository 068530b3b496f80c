"""The q4 codec (E3M0): blocks of 256 values, each an f32 scale and 128 bytes of two nibbles.

A nibble is a sign bit and a level 0..7.  Level 0 is zero, level L is 2^(L-7) times the block's scale.  Which
level a value gets is decided on the bits of n = |x| / scale against a table of seven thresholds, so that
every implementation emits the same bytes; a logarithm would differ in the last place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._generated.constants import Q4_BLOCK, Q4_BLOCK_BYTES, Q4_THRESHOLDS

F32 = np.dtype("<f4")
U8 = np.dtype("u1")
U16 = np.dtype("<u2")
U32 = np.dtype("<u4")
_I32 = np.dtype("<i4")
_U64 = np.dtype("<u8")

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_SCALE_BYTES = F32.itemsize
_BLOCKS = 512  # blocks that one pass handles; their scratch stays in a core's cache
_DECODE_BLOCKS = 1024
_MANTISSA_BITS = 23

# Each threshold is one base plus a whole number of binades plus a few units: t(L) = base + (L << 23) + d(L),
# with 0 <= d(L) < span.  So (bits - base) >> 23 is the level, except for values whose remainder lies below
# span; those few are looked up in the table.
_TABLE = np.array(Q4_THRESHOLDS, U32)
_ABOVE_BINADE = [int(t) - (level << _MANTISSA_BITS) for level, t in enumerate(Q4_THRESHOLDS, start=1)]
_BASE = np.array(min(_ABOVE_BINADE), _I32)
_SPAN = max(_ABOVE_BINADE) - min(_ABOVE_BINADE)
_SPAN_SHIFTED = np.array(_SPAN << (32 - _MANTISSA_BITS), U32)

_SHIFT_LEVEL = np.array(_MANTISSA_BITS, _I32)
_SHIFT_REST = np.array(32 - _MANTISSA_BITS, U32)
_ZERO = np.array(0, F32)
_INFINITY = np.array(np.inf, F32).view(U32)
_SEVEN = np.array(7, U8)
_EIGHT = np.array(8, U8)  # the sign bit of a nibble, and one more than the highest level
_NIBBLE = np.array(4, U16)


def _levels() -> F32Array:
    """The value of each of the 16 nibbles for scale 1; nibble 8 is minus zero."""
    magnitudes = [0.0, *(2.0 ** (level - 7) for level in range(1, 8))]
    return np.array([*magnitudes, *(-value for value in magnitudes)], F32)


_LEVELS = _levels()
# For each byte its two values, kept as one 64-bit word so that one look-up moves both.
_PAIRS = (
    np.stack([_LEVELS[np.arange(256) & 15], _LEVELS[np.arange(256) >> 4]], axis=1).view(_U64).reshape(256)
)


def scales(raw: Bytes) -> F32Array:
    """The scale of each block, shape (blocks,)."""
    return np.ascontiguousarray(raw.reshape(-1, Q4_BLOCK_BYTES)[:, :_SCALE_BYTES]).view(F32).reshape(-1)


class Q4Encoder:
    """Scratch for one run over a tensor of `numel` values."""

    def __init__(self, numel: int) -> None:
        rows = min(_BLOCKS, -(-numel // Q4_BLOCK))
        self._magnitude = np.empty((rows, Q4_BLOCK), F32)
        self._word = np.empty((rows, Q4_BLOCK), U32)
        self._level = np.empty((rows, Q4_BLOCK), U8)
        self._flag = np.empty((rows, Q4_BLOCK), np.bool_)
        self._code = np.empty((rows, Q4_BLOCK), U8)
        self._pair = np.empty((rows, Q4_BLOCK // 2), U16)

    def encode(self, values: F32Array, raw: Bytes) -> None:
        """Encode `values` (flat) into `raw`, which holds exactly their blocks."""
        blocks = raw.reshape(-1, Q4_BLOCK_BYTES)
        whole = values.size // Q4_BLOCK
        rows = values[: whole * Q4_BLOCK].reshape(whole, Q4_BLOCK)
        with np.errstate(invalid="ignore", under="ignore"):
            for start in range(0, whole, _BLOCKS):
                stop = min(start + _BLOCKS, whole)
                self._encode(rows[start:stop], blocks[start:stop])
            if whole < len(blocks):
                padded = np.zeros((1, Q4_BLOCK), F32)
                padded[0, : values.size - whole * Q4_BLOCK] = values[whole * Q4_BLOCK :]
                self._encode(padded, blocks[whole:])

    def _encode(self, values: F32Array, blocks: Bytes) -> None:
        count = len(values)
        magnitude, word = self._magnitude[:count], self._word[:count]
        level, flag = self._level[:count], self._flag[:count]
        np.abs(values, magnitude)
        # The bits of magnitudes order as integers do, with NaN above infinity; integers reduce faster.
        scale = np.maximum.reduce(magnitude.view(U32), axis=1).view(F32)
        blocks[:, :_SCALE_BYTES] = scale.view(U8).reshape(count, _SCALE_BYTES)
        divisor = scale.copy()
        divisor[scale == 0] = 1
        np.divide(magnitude, divisor[:, None], magnitude)

        above = magnitude.view(_I32)
        np.subtract(above, _BASE, above)
        np.right_shift(above, _SHIFT_LEVEL, word.view(_I32))
        level[...] = word
        # What lies under the first threshold is negative here, so a large byte; it becomes level 0.
        np.less(level, _EIGHT, flag)
        np.multiply(level, flag.view(U8), level)
        np.left_shift(above.view(U32), _SHIFT_REST, word)
        if np.minimum.reduce(word, axis=None) < _SPAN_SHIFTED:
            self._look_up(np.flatnonzero(word.reshape(-1) < _SPAN_SHIFTED), above, level)
        finite = np.isfinite(scale)
        if not finite.all():
            self._not_finite(np.flatnonzero(~finite), values, scale, level)
        self._pack(values, level, blocks)

    @staticmethod
    def _look_up(where: npt.NDArray[np.intp], above: npt.NDArray[np.int32], level: Bytes) -> None:
        bits = (above.reshape(-1)[where] + _BASE).view(U32)
        level.reshape(-1)[where] = np.searchsorted(_TABLE, bits, side="right")

    @staticmethod
    def _not_finite(where: npt.NDArray[np.intp], values: F32Array, scale: F32Array, level: Bytes) -> None:
        """Blocks that a receiver will refuse: nothing / infinity is 0, a NaN scale divides by 1."""
        for row in where:
            ratio = np.abs(values[row]) / (np.float32(1) if np.isnan(scale[row]) else scale[row])
            found = np.searchsorted(_TABLE, ratio.view(U32), side="right")
            level[row] = np.where(np.isnan(ratio), 0, found)

    def _pack(self, values: F32Array, level: Bytes, blocks: Bytes) -> None:
        count = len(values)
        sign, code, pair = self._flag[:count], self._code[:count], self._pair[:count]
        np.less(values, _ZERO, sign)
        bits = sign.view(U8)
        np.multiply(bits, _EIGHT, bits)  # shifts of bytes are slow in numpy
        # level + 7 has bit 3 exactly when the level is not 0, so zero never gets a sign.
        np.add(level, _SEVEN, code)
        np.bitwise_and(code, bits, code)
        np.bitwise_or(code, level, code)
        # As a 16-bit word a pair is low | high << 8; folding it by 4 puts both nibbles into the low byte.
        words = code.view(U16)
        np.right_shift(words, _NIBBLE, pair)
        np.bitwise_or(words, pair, pair)
        blocks[:, _SCALE_BYTES:] = pair  # keeps the low byte


class Q4Decoder:
    """Scratch for one run that decodes `numel` values."""

    def __init__(self, numel: int) -> None:
        rows = min(_DECODE_BLOCKS, -(-numel // Q4_BLOCK))
        self._index = np.empty((rows, Q4_BLOCK // 2), np.intp)

    def decode(self, raw: Bytes, start: int, out: F32Array) -> None:
        """Decode the values from `start` on out of `raw` (whole blocks) until `out` is full."""
        blocks = raw.reshape(-1, Q4_BLOCK_BYTES)
        done = 0
        with np.errstate(invalid="ignore", under="ignore"):
            while done < out.size:
                block, inside = divmod(start + done, Q4_BLOCK)
                whole = (out.size - done) // Q4_BLOCK
                if inside or not whole:
                    count = min(Q4_BLOCK - inside, out.size - done)
                    values = np.empty((1, Q4_BLOCK), F32)
                    self._decode(blocks[block : block + 1], values)
                    out[done : done + count] = values[0, inside : inside + count]
                else:
                    rows = min(whole, _DECODE_BLOCKS)
                    count = rows * Q4_BLOCK
                    self._decode(
                        blocks[block : block + rows], out[done : done + count].reshape(rows, Q4_BLOCK)
                    )
                done += count

    def _decode(self, blocks: Bytes, out: F32Array) -> None:
        index = self._index[: len(blocks)]
        index[...] = blocks[:, _SCALE_BYTES:]
        np.take(_PAIRS, index, out=out.view(_U64), mode="clip")
        scale = np.ascontiguousarray(blocks[:, :_SCALE_BYTES]).view(F32)  # (blocks, 1)
        # A negative scale and an infinity have larger bits than any finite scale.
        if np.maximum.reduce(scale.view(U32), axis=None) < _INFINITY:
            np.multiply(out, scale, out)
        else:
            self._scale_carefully(out, scale)

    @staticmethod
    def _scale_carefully(out: F32Array, scale: F32Array) -> None:
        """For scales that a receiver refuses: level 0 is zero all the same, signed by its own bit alone."""
        zeros = out == 0
        signed = out[zeros]
        np.multiply(out, scale, out)
        out[zeros] = signed
