"""The numeric layout of HELLO, exactly as it stands on the wire.

One HELLO may hold more than a million fragments in 16 MiB.  So the bytes stay as they are, the interpreter
walks over the fragment heads only, and numpy reads and judges the values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ._generated.errors import BadArgument
from ._generated.rules import RULES
from ._generated.structs import LAYOUT_HEAD
from ._generated.types import MergeMode
from .errors_base import YetoError

Bools = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_WORD = np.dtype("<u8")
_COUNT_AT = struct.calcsize(LAYOUT_HEAD.format[:2])  # behind the merge mode
# Bytes that one tensor takes, by merge mode: its numel, for iso also rows and cols.
_PER_TENSOR = tuple(_WORD.itemsize * (3 if mode is MergeMode.ISO else 1) for mode in MergeMode)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WireLayout:
    """Per fragment a merge mode and the numel of each tensor, for iso fragments also (rows, cols).

    Equality is equality of `data`, the layout's bytes on the wire.  All arrays are read-only.
    """

    data: bytes
    num_fragments: int
    merge_modes: U8  # (num_fragments,)
    fragment_numels: U64  # (num_fragments,): values of each fragment, all its tensors together
    offsets: I64  # (num_fragments,): where each fragment starts in `data`
    _numels: U64  # (tensors of all fragments,)
    _first: I64  # (num_fragments + 1,): where a fragment's tensors start in `_numels`
    _shapes: U64  # (tensors of all iso fragments, 2)
    _first_shape: I64  # (num_fragments + 1,): where a fragment's rows start in `_shapes`

    @classmethod
    def parse(
        cls, buffer: bytes | memoryview, num_fragments: int, *, base: int = 0, known: WireLayout | None = None
    ) -> tuple[WireLayout, int]:
        """Read `num_fragments` fragments from the start of `buffer`; return the layout and the bytes used.

        `buffer` is everything that follows HELLO's num_fragments (counts are judged against what is left of
        the whole payload) and `base` is its offset in the payload, for the errors.  When `known` has the
        same number of fragments and the buffer begins with its bytes, `known` itself comes back and nothing
        is parsed.

        Raises BadMergeMode, BadTensorCount, BadNumel, BadIsoShape, LayoutOverflow or Truncated for the first
        fault in reading order.  Whether `num_fragments` is possible at all is judged by the caller; any value
        is safe here.
        """
        if known is not None and num_fragments == known.num_fragments:
            used = len(known.data)
            if bytes(buffer[:used]) == known.data:
                return known, used
        # Copies, since bytes are compared, and read by the interpreter, much faster than a memoryview.
        return _Parsed(bytes(buffer), num_fragments, base).layout()

    @classmethod
    def build(
        cls, fragments: Iterable[tuple[int, Sequence[int], Sequence[tuple[int, int]] | None]]
    ) -> WireLayout:
        """Make a layout from (merge mode, numels, shapes) of each fragment; shapes are for iso, else None.

        Raises BadArgument for what cannot be written, else what `parse` raises.
        """
        data = bytearray()
        count = 0
        for mode, numels, shapes in fragments:
            try:
                data += LAYOUT_HEAD.pack(mode, len(numels)) + np.array(numels, _WORD).tobytes()
                if mode == MergeMode.ISO:
                    data += np.array(shapes, _WORD).reshape(len(numels), 2).tobytes()
            except (struct.error, OverflowError, TypeError, ValueError) as error:
                raise BadArgument(field="layout", detail=f"fragment {count}: {error}") from None
            count += 1
        return cls.parse(bytes(data), count)[0]

    def numels(self, fragment_id: int) -> U64:
        """Number of values of each tensor of the fragment, in wire order: (tensors,) u64."""
        return self._numels[self._first[fragment_id] : self._first[fragment_id + 1]]

    def shapes(self, fragment_id: int) -> U64 | None:
        """(rows, cols) of each tensor of an iso fragment: (tensors, 2) u64; None for avg and rda."""
        if self.merge_modes[fragment_id] != MergeMode.ISO:
            return None
        return self._shapes[self._first_shape[fragment_id] : self._first_shape[fragment_id + 1]]

    def merge_mode(self, fragment_id: int) -> MergeMode:
        """How the deltas of this fragment are merged."""
        return MergeMode(int(self.merge_modes[fragment_id]))

    @property
    def max_numel(self) -> int:
        """Values of the largest fragment."""
        return int(self.fragment_numels.max(initial=0))

    @property
    def num_tensors(self) -> int:
        """Tensors of all fragments together."""
        return len(self._numels)

    def to_bytes(self) -> bytes:
        """The layout as HELLO carries it."""
        return self.data

    def difference(self, other: WireLayout) -> str | None:
        """Name the first fragment of `other` that differs, what differs and both values; None when equal."""
        if self.data == other.data:
            return None
        if self.num_fragments != other.num_fragments:
            return differs("num_fragments", self.num_fragments, other.num_fragments)
        size = min(len(self.data), len(other.data))
        unequal = np.frombuffer(self.data, np.uint8, size) != np.frombuffer(other.data, np.uint8, size)
        # Up to the first unequal byte the two are one, so both have that byte in the same fragment.
        index = int(np.searchsorted(self.offsets, int(np.argmax(unequal)), side="right")) - 1
        return f"fragment {index}: {self._fragment_difference(other, index)}"

    def _fragment_difference(self, other: WireLayout, index: int) -> str:
        if self.merge_modes[index] != other.merge_modes[index]:
            return differs(
                "merge_mode", self.merge_mode(index).name.lower(), other.merge_mode(index).name.lower()
            )
        ours, theirs = self.numels(index), other.numels(index)
        if len(ours) != len(theirs):
            return differs("num_tensors", len(ours), len(theirs))
        if not np.array_equal(ours, theirs):
            tensor = int(np.argmax(ours != theirs))
            return differs(f"numel of tensor {tensor}", ours[tensor], theirs[tensor])
        # What is left are the shapes of an iso fragment.
        our_pairs = self._shapes[self._first_shape[index] : self._first_shape[index + 1]]
        their_pairs = other._shapes[other._first_shape[index] : other._first_shape[index + 1]]
        tensor = int(np.argmax((our_pairs != their_pairs).any(axis=1)))
        return differs(f"shape of tensor {tensor}", _times(our_pairs[tensor]), _times(their_pairs[tensor]))

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, WireLayout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"WireLayout({self.num_fragments} fragments, {self.num_tensors} tensors)"


def differs(what: str, ours: object, theirs: object) -> str:
    """The sentence of every session difference, layouts included."""
    return f"{what}: the session has {ours}, this HELLO has {theirs}"


def _times(pair: U64) -> str:
    return f"{pair[0]}x{pair[1]}"


def _fault(rule: str, offset: int, detail: str, limit: int, seen: object) -> YetoError:
    """The error of a rule of the layout; `offset` counts from the start of HELLO's payload."""
    return RULES[f"hello.{rule}"].error_at(offset=offset, detail=detail, limit=limit, seen=seen)


def _walk(data: bytes, num_fragments: int) -> tuple[list[int], int]:
    """Follow the fragment heads; return where each head stands and where the next one would.

    The one interpreted loop over fragments.  It stops behind a head that it cannot follow (beyond the end,
    an unknown mode, no tensors), which is then the last one returned; `_walk_fault` says what is wrong.
    """
    heads: list[int] = []
    append, unpack, size, per_tensor = heads.append, LAYOUT_HEAD.unpack_from, LAYOUT_HEAD.size, _PER_TENSOR
    at = 0
    try:
        for _ in range(num_fragments):
            append(at)
            mode, tensors = unpack(data, at)
            if not tensors:
                break
            at += size + per_tensor[mode] * tensors
    except (struct.error, IndexError):
        pass
    if heads and heads[-1] > len(data):
        # The fragment before ends beyond the data, so its successor's head was not even worth a look.
        at = heads.pop()
    return heads, at


def _walk_fault(data: bytes, at: int, index: int, base: int) -> YetoError | None:
    """Why the last fragment reached, whose head stands at `at`, cannot be read; None when it can."""
    left = len(data) - at - LAYOUT_HEAD.size
    if left < 0:
        what = f"the layout ends before fragment {index}"
        return _fault(
            "numels.complete", base + len(data), what, LAYOUT_HEAD.size, max(left + LAYOUT_HEAD.size, 0)
        )
    mode, tensors = LAYOUT_HEAD.unpack_from(data, at)
    if mode >= len(_PER_TENSOR):
        what = f"merge mode of fragment {index}"
        return _fault("merge_mode.must", base + at, what, len(_PER_TENSOR) - 1, mode)
    most = left // _WORD.itemsize
    if not 1 <= tensors <= most:
        rule, limit = ("num_tensors.fits", most) if tensors else ("num_tensors.must", 1)
        return _fault(rule, base + at + _COUNT_AT, f"tensor count of fragment {index}", limit, tensors)
    if tensors * _PER_TENSOR[mode] > left:
        what = f"the layout ends inside the shapes of fragment {index}"
        return _fault("numels.complete", base + len(data), what, tensors * _PER_TENSOR[mode], left)
    return None


class _Parsed:
    """The values of a layout as numpy reads them, and their judgement; lives for one `parse` only."""

    def __init__(self, data: bytes, num_fragments: int, base: int) -> None:
        heads, used = _walk(data, num_fragments)
        self.last_fault = _walk_fault(data, heads[-1], len(heads) - 1, base) if heads else None
        if self.last_fault is not None:
            used = heads.pop()
        self.data, self.used, self.base, self.num_fragments = data, used, base, num_fragments
        raw = np.frombuffer(data, np.uint8)
        self.offsets = np.array(heads, np.int64)
        self.modes = raw[self.offsets]
        lengths = np.diff(self.offsets, append=used) - LAYOUT_HEAD.size
        counts = lengths // np.array(_PER_TENSOR)[self.modes]
        self.is_iso = self.modes == MergeMode.ISO
        numels_at = self.offsets + LAYOUT_HEAD.size
        self.first, self.at_numels = _runs(numels_at, counts, _WORD.itemsize)
        shapes_at = numels_at + counts * _WORD.itemsize
        iso_counts = np.where(self.is_iso, counts, 0)
        self.first_shape, self.at_rows = _runs(shapes_at, iso_counts, 2 * _WORD.itemsize)
        self.numels = _gather(raw, self.at_numels)
        self.shapes = np.stack(
            (_gather(raw, self.at_rows), _gather(raw, self.at_rows + _WORD.itemsize)), axis=1
        )
        self.iso_numels = self.numels[np.repeat(self.is_iso, counts)]

    def layout(self) -> tuple[WireLayout, int]:
        # Each check finds its first fault.  The one to raise stands in the earliest fragment; inside a
        # fragment the order of the checks is the order of this tuple.
        checks = (self._zero_numel(), self._bad_shape(), self._overflow())
        faults = [found for found in checks if found is not None]
        if faults:
            raise min(faults, key=lambda found: found[0])[1]
        if self.last_fault is not None:
            raise self.last_fault
        fragment_numels = np.add.reduceat(self.numels, self.first[:-1]) if len(self.numels) else self.numels
        arrays = (self.modes, fragment_numels, self.offsets, self.numels, self.first)
        for array in (*arrays, self.shapes, self.first_shape):
            array.setflags(write=False)
        return WireLayout(
            self.data[: self.used], self.num_fragments, *arrays, self.shapes, self.first_shape
        ), self.used

    def _zero_numel(self) -> tuple[int, YetoError] | None:
        tensor = _first_true(self.numels == 0)
        if tensor is None:
            return None
        index, inside = _locate(self.first, tensor)
        what = f"numel of tensor {inside} of fragment {index}"
        return index, _fault("numels.must", self.base + int(self.at_numels[tensor]), what, 1, 0)

    def _bad_shape(self) -> tuple[int, YetoError] | None:
        rows, cols, numels = self.shapes[:, 0], self.shapes[:, 1], self.iso_numels
        divisor = np.maximum(rows, np.uint64(1))
        # rows * cols == numel without a product that could wrap.
        bad = (rows == 0) | (cols == 0) | (numels // divisor != cols) | (numels % divisor != 0)
        tensor = _first_true(bad)
        if tensor is None:
            return None
        index, inside = _locate(self.first_shape, tensor)
        what = f"rows x cols of tensor {inside} of fragment {index} must be its numel"
        offset = self.base + int(self.at_rows[tensor])
        seen = _times(self.shapes[tensor])
        return index, _fault("shapes.must", offset, what, int(numels[tensor]), seen)

    def _overflow(self) -> tuple[int, YetoError] | None:
        if not len(self.offsets):
            return None
        # Sums of upper and lower halves.  No payload has room for 2^32 tensors, so neither wraps.
        half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
        high = np.add.reduceat(self.numels >> half, self.first[:-1])
        low = np.add.reduceat(self.numels & mask, self.first[:-1])
        high += low >> half
        index = _first_true(high > mask)
        if index is None:
            return None
        seen = (int(high[index]) << 32) + int(low[index] & mask)
        what = f"values of fragment {index}"
        offset = self.base + int(self.offsets[index])
        return index, _fault("numels.total", offset, what, 2**64 - 1, seen)


def _first_true(flags: Bools) -> int | None:
    index = int(flags.argmax()) if len(flags) else 0
    return index if len(flags) and flags[index] else None


def _locate(first: I64, tensor: int) -> tuple[int, int]:
    """The fragment that holds this tensor, and the tensor's number inside it."""
    index = int(np.searchsorted(first, tensor, side="right")) - 1
    return index, tensor - int(first[index])


def _runs(starts: I64, counts: I64, width: int) -> tuple[I64, I64]:
    """Runs of `counts` elements of `width` bytes, one from each of `starts`, numbered through.

    Returns the number of each run's first element, with the sum at the end, and the position of each element.
    """
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    return first, np.repeat(starts - width * first[:-1], counts) + width * np.arange(first[-1])


def _gather(raw: U8, positions: I64) -> U64:
    """The 64-bit integers at these byte positions, which need not be aligned."""
    if not len(positions):
        return np.zeros(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(raw, _WORD.itemsize)
    return windows[positions].view(_WORD).ravel().astype(np.uint64, copy=False)
