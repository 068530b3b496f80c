"""Fragments and their tensors: the layout builder, the layout fingerprint and the numeric layout of HELLO.

A model's tensors are dealt out over fragments once, on the learner.  The numeric part (merge modes, numels)
goes into HELLO and drives decoding; the fingerprint also covers names and shapes, so that two learners whose
tensors have equal sizes but another order or meaning cannot enter one session.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias

from ._generated.constants import FINGERPRINT_DOMAIN, MAX_ALLOC
from ._generated.errors import BadArgument
from ._generated.types import MergeMode
from .session import WireLayout

__all__ = ["Fragment", "Layout", "Pattern", "Shapes", "Tensor", "build_layout"]

Pattern: TypeAlias = Literal["binpack", "strided"]
Size: TypeAlias = SupportsIndex | tuple[SupportsIndex, ...] | list[SupportsIndex]
"""Number of values of a tensor, or its shape."""
Shapes: TypeAlias = Literal["full", "iso", "flat"]

# Tensors with one of these in their lower-cased name share the avg fragment: every learner moves all of them.
_AVG_NAMES = ("embed", "wte", "wpe", "lm_head", "shared.weight")
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.([0-9]+)\.")
_MATRIX_MODES = {"rda": MergeMode.RDA, "iso": MergeMode.ISO}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named tensor: `numel` values, and its full shape where that is known (`()` is a scalar)."""

    name: str
    numel: int
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Fragment:
    """The unit that is pulled, merged and broadcast: tensors in wire order and how their deltas are
    merged."""

    merge_mode: MergeMode
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "merge_mode", MergeMode(self.merge_mode))
        object.__setattr__(self, "tensors", tuple(self.tensors))
        _check_fragment(self)

    @cached_property
    def numel(self) -> int:
        """Values of all tensors together."""
        return sum(tensor.numel for tensor in self.tensors)


@dataclass(frozen=True)
class Layout:
    """All fragments of a model, in wire order; at least one.

    Raises BadArgument for no fragments, a fragment without tensors, a tensor without values or with a shape
    that does not make its numel, an iso fragment with a tensor that is not a matrix, and a name used twice.
    """

    fragments: tuple[Fragment, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fragments", tuple(self.fragments))
        if not self.fragments:
            raise _bad("fragments", "at least one", 0, "a layout must contain at least one fragment")
        names = Counter(self.tensor_names())
        if len(names) != sum(names.values()):
            raise _bad("name", "names used once", names.most_common(1)[0][0], "two tensors share a name")

    @property
    def num_fragments(self) -> int:
        return len(self.fragments)

    @cached_property
    def numel(self) -> int:
        """Values of all fragments together."""
        return sum(fragment.numel for fragment in self.fragments)

    def tensor_names(self) -> list[str]:
        """Names in wire order, fragment by fragment."""
        return [tensor.name for fragment in self.fragments for tensor in fragment.tensors]

    def fingerprint(self, *, shapes: Shapes = "full") -> bytes:
        """SHA-256 (32 bytes) over merge modes and every tensor's name, order, numel and shape.

        A tensor without a known shape counts as flat, (numel,).  `shapes="full"` is what the protocol
        demands; "flat" and "iso" (shapes of iso tensors only) give the digests of older clients that do not
        know them.
        """
        return hashlib.sha256(self.fingerprint_preimage(shapes=shapes)).digest()

    def fingerprint_preimage(self, *, shapes: Shapes = "full") -> bytes:
        """The bytes that the fingerprint hashes: `yeto-layout-v1` NUL, then counts, names and shapes."""
        data = bytearray(FINGERPRINT_DOMAIN)
        data += _u32(self.num_fragments)
        for fragment in self.fragments:
            mode = fragment.merge_mode
            known = shapes == "full" or (shapes == "iso" and mode is MergeMode.ISO)
            data += mode.to_bytes(1, "little") + _u32(len(fragment.tensors))
            for tensor in fragment.tensors:
                name = tensor.name.encode()
                shape = tensor.shape if known and tensor.shape is not None else (tensor.numel,)
                data += _u32(len(name)) + name + _u64(tensor.numel) + _u32(len(shape))
                for dimension in shape:
                    data += _u64(dimension)
        return bytes(data)

    def to_json(self, *, task: str = "", backend_version: str = "1", **extra: Any) -> str:
        """The text of a layout metadata file (`layout_meta`) for this layout."""
        from .layout_meta import to_json  # that module needs this one

        return to_json(self, task=task, backend_version=backend_version, **extra)

    @classmethod
    def from_json(cls, text: str | bytes) -> Layout:
        """The layout of a metadata file's text.  Raises BadArgument naming the first fault."""
        from .layout_meta import from_json

        return from_json(text)

    def wire(self) -> WireLayout:
        """The numeric layout, as HELLO carries it."""
        return WireLayout.build(
            (
                fragment.merge_mode,
                [tensor.numel for tensor in fragment.tensors],
                _matrices(fragment) if fragment.merge_mode is MergeMode.ISO else None,
            )
            for fragment in self.fragments
        )


def build_layout(
    tensors: Mapping[str, Size],
    num_fragments: int,
    pattern: Pattern = "binpack",
    *,
    matrix_merge: Literal["rda", "iso"] = "rda",
    avg_name_regex: str | None = None,
) -> Layout:
    """Deal the tensors of a model out over fragments; the order of `tensors` never matters.

    tensors: full shape of each tensor by its name, or its plain number of values.
    num_fragments: how many to aim at.  Fewer come out when there are fewer tensors; embeddings and heads
        always have one fragment of their own, so that 1 with embeddings gives two.
    pattern: "binpack" balances by size; "strided" deals whole layers out in turn.
    matrix_merge: "rda", or "iso" for matrices; with "iso" what is not a matrix joins the avg fragment.
    avg_name_regex: further names (found anywhere, case-sensitive) for the avg fragment.

    Raises BadArgument for num_fragments under 1, an unknown pattern or matrix_merge, "iso" without any shape,
    no tensors, an empty tensor, a name that is no text, or a regular expression that does not compile.
    """
    if not isinstance(num_fragments, SupportsIndex) or num_fragments < 1:
        raise _bad(
            "num_fragments",
            "at least 1",
            num_fragments,
            "there must be a whole number of fragments, at least one",
        )
    if pattern not in ("binpack", "strided"):
        raise _bad("pattern", "binpack or strided", pattern, "unknown pattern")
    if matrix_merge not in tuple(_MATRIX_MODES):
        raise _bad("matrix_merge", "rda or iso", matrix_merge, "unknown merge mode for matrices")
    if not tensors:
        raise _bad("tensors", "at least one", 0, "there is nothing to lay out")
    every = [_tensor(name, size) for name, size in tensors.items()]
    if matrix_merge == "iso" and all(tensor.shape is None for tensor in every):
        raise _bad("tensors", "shapes", "numels only", "iso needs the shapes of the tensors")
    every.sort(key=lambda tensor: (-tensor.numel, tensor.name))

    is_avg = _AvgTest(matrix_merge, avg_name_regex)
    averaged: list[Tensor] = []
    others: list[Tensor] = []
    for tensor in every:
        (averaged if is_avg(tensor) else others).append(tensor)
    fragments = [Fragment(MergeMode.AVG, tuple(averaged))] if averaged else []
    if others:
        bins = max(1, min(num_fragments - len(fragments), len(others)))
        placed = _binpack(others, bins) if pattern == "binpack" else _strided(others, bins)
        mode = _MATRIX_MODES[matrix_merge]
        fragments += [Fragment(mode, tuple(content)) for content in placed if content]
    return Layout(tuple(fragments))


class _AvgTest:
    """Whether a tensor belongs into the avg fragment."""

    def __init__(self, matrix_merge: str, regex: str | None) -> None:
        self._needs_matrix = matrix_merge == "iso"
        if regex is not None and not isinstance(regex, str):
            raise _bad("avg_name_regex", "a regular expression", regex, "it must be text")
        try:
            self._regex = re.compile(regex) if regex else None
        except (re.error, OverflowError, RecursionError) as error:
            raise _bad("avg_name_regex", "a regular expression", regex, str(error)) from error

    def __call__(self, tensor: Tensor) -> bool:
        name = tensor.name.lower()
        if any(part in name for part in _AVG_NAMES):
            return True
        if self._regex is not None and self._regex.search(tensor.name):
            return True
        return self._needs_matrix and (tensor.shape is None or len(tensor.shape) != 2)


def _binpack(tensors: Iterable[Tensor], bins: int, totals: list[int] | None = None) -> list[list[Tensor]]:
    """Each tensor, in order, goes to the bin with the smallest total; the lowest bin number wins ties.

    A heap of (total, bin) keeps that rule and costs a logarithm per tensor, where adding up every bin each
    time took minutes for a large model.
    """
    content: list[list[Tensor]] = [[] for _ in range(bins)]
    heap = list(zip(totals or [0] * bins, range(bins), strict=True))
    heapq.heapify(heap)
    for tensor in tensors:
        total, index = heap[0]
        content[index].append(tensor)
        heapq.heapreplace(heap, (total + tensor.numel, index))
    return content


def _strided(tensors: list[Tensor], bins: int) -> list[list[Tensor]]:
    """The i-th distinct layer goes to bin i mod bins; what has no layer is packed on top by size."""
    layered: list[tuple[int, str, Tensor]] = []
    loose: list[Tensor] = []
    for tensor in tensors:
        match = _LAYER.search(tensor.name)
        if match:
            layered.append((int(match[1]), tensor.name, tensor))
        else:
            loose.append(tensor)
    layered.sort(key=lambda entry: entry[:2])
    rank = {layer: place for place, layer in enumerate(sorted({layer for layer, _, _ in layered}))}
    content: list[list[Tensor]] = [[] for _ in range(bins)]
    for layer, _, tensor in layered:
        content[rank[layer] % bins].append(tensor)
    totals = [sum(tensor.numel for tensor in column) for column in content]
    on_top = _binpack(loose, bins, totals)
    return [column + more for column, more in zip(content, on_top, strict=True)]


def _tensor(name: str, size: Size) -> Tensor:
    _check_name(name)
    try:
        if isinstance(size, tuple | list):
            shape = tuple(index(dimension) for dimension in size)
            return Tensor(name, prod(shape), shape)
        return Tensor(name, index(size))
    except TypeError as error:
        raise _bad("tensors", "a shape or a number of values", size, f"tensor {name!r}") from error


def _matrices(fragment: Fragment) -> list[tuple[int, int]]:
    return [(tensor.shape[0], tensor.shape[1]) for tensor in fragment.tensors if tensor.shape is not None]


def _check_fragment(fragment: Fragment) -> None:
    if not fragment.tensors:
        raise _bad("tensors", "at least one", 0, "a fragment must contain at least one tensor")
    for tensor in fragment.tensors:
        shape = tensor.shape
        _check_name(tensor.name)
        if not 1 <= tensor.numel <= MAX_ALLOC:
            raise _bad(
                "numel",
                f"1..{MAX_ALLOC}",
                tensor.numel,
                f"tensor {tensor.name!r} cannot have this many values",
            )
        if shape is not None and (prod(shape) != tensor.numel or min(shape, default=1) < 1):
            raise _bad("shape", tensor.numel, shape, f"tensor {tensor.name!r} has a shape of another size")
        if fragment.merge_mode is MergeMode.ISO and (shape is None or len(shape) != 2):
            raise _bad("shape", "(rows, cols)", shape, f"tensor {tensor.name!r} is in an iso fragment")


def _check_name(name: object) -> None:
    try:
        if isinstance(name, str):
            name.encode()
            return
    except UnicodeEncodeError:  # half of a surrogate pair
        pass
    raise _bad("name", "text that UTF-8 can hold", repr(name), "a tensor cannot have this name")


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _bad(field: str, limit: object, seen: object, detail: str) -> BadArgument:
    return BadArgument(field=field, limit=limit, seen=seen, detail=detail)
