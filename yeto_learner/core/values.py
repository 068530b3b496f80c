"""The arithmetic of a learner: anchors, deltas and installs, a cache-sized block at a time, always in f32.

`LocalValues` is what the arithmetic needs of the user's parameters; `Span` says where a tensor lies in its
fragment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from yeto_proto import dtypes
from yeto_proto._generated.errors import BadScale, NonFinite
from yeto_proto._generated.messages import Buffer
from yeto_proto._generated.types import Dtype

from .modes import InstallMode

__all__ = ["F32", "Anchor", "LocalValues", "Span", "blend", "blocks", "install", "overwrite", "write_delta"]

F32 = npt.NDArray[np.float32]

BLOCK = 1 << 18  # values in one pass: 1 MiB of f32, so that the passes over it meet in the cache


class LocalValues(Protocol):
    """The user's parameters, read as f32 and written back in their own dtype."""

    def read(self, name: str, start: int, stop: int) -> F32:
        """Values [start, stop) of the flattened tensor; may be a view and is not written to."""
        ...

    def write(self, name: str, start: int, values: F32) -> None:
        """Store values at [start, start + len(values)) of the flattened tensor."""
        ...


class Span(NamedTuple):
    """One tensor of a fragment: `numel` values from the fragment's value `first` on."""

    name: str
    first: int
    numel: int


def blocks(spans: Sequence[Span]) -> Iterator[tuple[str, int, int, int]]:
    """(tensor name, first value in the tensor, first in the fragment, number of values) of each block."""
    for name, first, numel in spans:
        for start in range(0, numel, BLOCK):
            yield name, start, first + start, min(BLOCK, numel - start)


class Anchor:
    """The raw global values of one fragment, as f32 or, where the broadcasts are bf16 anyway, as bf16.

    A bf16 anchor takes half the memory and loses nothing, because its values were bf16 on the wire.
    """

    __slots__ = ("_halves", "_values", "numel")

    def __init__(self, numel: int, dtype: Dtype) -> None:
        if dtype not in (Dtype.F32, Dtype.BF16):
            raise ValueError(f"an anchor is kept as f32 or bf16, not {dtype.name.lower()}")
        self.numel = numel
        self._values: F32 | None = np.empty(numel, np.float32) if dtype is Dtype.F32 else None
        self._halves = np.empty(0 if dtype is Dtype.F32 else numel, np.uint16)

    @property
    def dtype(self) -> Dtype:
        return Dtype.BF16 if self._values is None else Dtype.F32

    def read(self, start: int, count: int) -> F32:
        """Values [start, start + count); a view of an f32 anchor, not to be written to."""
        if self._values is not None:
            return self._values[start : start + count]
        return dtypes.decode(Dtype.BF16, self._halves[start : start + count].data, count)

    def load(self, start: int, count: int, dtype: Dtype, wire: Buffer) -> F32:
        """Store the values of wire bytes at [start, start + count), and return them as `read` does."""
        if self._values is not None:
            return dtypes.decode(dtype, wire, count, out=self._values[start : start + count])
        if dtype is Dtype.BF16:
            self._halves[start : start + count] = np.frombuffer(wire, np.uint16)
            return self.read(start, count)
        values = dtypes.decode(dtype, wire, count)
        self._halves[start : start + count] = np.frombuffer(dtypes.encode(Dtype.BF16, values), np.uint16)
        return values

    def stored(self) -> memoryview:
        """All stored bytes in the anchor's dtype, as `load` takes them again."""
        return (self._halves if self._values is None else self._values).view(np.uint8).data


def blend(local: F32, raw: F32, alpha: float, scratch: F32) -> F32:
    """alpha * local + (1 - alpha) * raw, in f32; `scratch` is two rows at least as long, the result is in the
    first.
    """
    mixed, share = scratch[0, : len(raw)], scratch[1, : len(raw)]
    np.multiply(local, np.float32(alpha), out=mixed)
    np.multiply(raw, np.float32(1.0 - alpha), out=share)
    return np.add(mixed, share, out=mixed)


def install(
    mode: InstallMode,
    spans: Sequence[Span],
    local: LocalValues,
    anchor: Anchor,
    data: Buffer,
    dtype: Dtype,
    alpha: float,
) -> None:
    """Install broadcast bytes (bulk dtype f32 or bf16): local values by `mode`, then the raw values as the
    anchor.

    For SHIFT the anchor must hold the values that the local progress started from.  Where the global did not
    change a SHIFT leaves local values as they are, bit for bit.
    """
    if mode is InstallMode.CONFIRM:
        return
    view = memoryview(data)
    width = len(view) // anchor.numel
    scratch = np.empty((2, min(BLOCK, anchor.numel)), np.float32)
    for name, start, first, count in blocks(spans):
        old = anchor.read(first, count).copy() if mode is InstallMode.SHIFT else None
        raw = anchor.load(first, count, dtype, view[first * width : (first + count) * width])
        if old is not None:
            if not np.array_equal(old, raw):
                progress = local.read(name, start, start + count) - old
                progress += raw
                local.write(name, start, progress)
        elif mode is InstallMode.BLEND and alpha > 0:
            local.write(name, start, blend(local.read(name, start, start + count), raw, alpha, scratch))
        elif mode is not InstallMode.ANCHOR_ONLY:
            local.write(name, start, raw)


def overwrite(spans: Sequence[Span], local: LocalValues, data: Buffer) -> None:
    """Write the f32 values of a FINAL_FRAGMENT over the local ones, without any blending."""
    values = np.frombuffer(data, "<f4")
    for name, start, first, count in blocks(spans):
        local.write(name, start, values[first : first + count].astype(np.float32, copy=False))


def write_delta(
    spans: Sequence[Span], local: LocalValues, anchor: Anchor, out: F32, dtype: Dtype = Dtype.F32
) -> str | None:
    """out = local - anchor in f32.  Returns the first tensor whose difference is not finite, if any, when it
    is sent in this dtype.
    """
    with np.errstate(all="ignore"):
        for name, start, first, count in blocks(spans):
            part = out[first : first + count]
            np.subtract(local.read(name, start, start + count), anchor.read(first, count), out=part)
            # The sum of squares is finite unless a value is far above anything that training makes, or not a
            # number at all; only then look at each.
            if not np.isfinite(np.dot(part, part)) and not _can_be_sent(part, dtype):
                return name
    return None


def _can_be_sent(values: F32, dtype: Dtype) -> bool:
    try:
        dtypes.check_finite(dtype, dtypes.encode(dtype, values))
    except (NonFinite, BadScale):
        return False
    return True
