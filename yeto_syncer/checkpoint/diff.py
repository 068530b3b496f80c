"""`yeto-checkpoint diff`: what two files of runs say differently, down to the bits of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from math import sqrt
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from yeto_proto.files import FinalStateFragment, FinalStateReader, FragmentReader, Progress, SnapshotReader
from yeto_proto.files.model import F32Array
from yeto_syncer.checkpoint.contents import (
    LEDGER_COLUMNS,
    Contents,
    Kind,
    NoValuesError,
    kind_of,
    opened,
    read_contents,
)
from yeto_syncer.checkpoint.inspect import backend_name


@dataclass(frozen=True, slots=True)
class ArrayDifference:
    """How far two arrays of equal size are apart. `differing` counts values with other bits; the distances
    leave out places where a value is not finite. `relative` is distance / norm of the first, None at 0."""

    fragment: int
    array: str
    numel: int
    differing: int
    largest: float
    distance: float
    relative: float | None

    def line(self) -> str:
        """For people."""
        relative = "" if self.relative is None else f" ({self.relative:.3g} of the first)"
        return (
            f"fragment {self.fragment} {self.array}: {self.differing:,} of {self.numel:,} values differ, "
            f"largest {self.largest:.6g}, distance {self.distance:.6g}{relative}"
        )


@dataclass(slots=True)
class Difference:
    """Everything that differs. `fields` are sentences' parts: name, first, second. `compared` says what was
    compared at all."""

    fields: list[tuple[str, Any, Any]] = field(default_factory=list)
    arrays: list[ArrayDifference] = field(default_factory=list)
    compared: str = ""

    @property
    def equal(self) -> bool:
        return not self.fields and not self.arrays

    def lines(self) -> Iterator[str]:
        """For people."""
        for name, one, other in self.fields:
            yield f"{name}: {_shown(one)}, {_shown(other)}"
        for each in self.arrays:
            yield each.line()

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "equal": self.equal,
            "compared": self.compared,
            "fields": [{"name": name, "first": one, "second": other} for name, one, other in self.fields],
            "arrays": [asdict(each) for each in self.arrays],
        }


def diff(one: Path, other: Path, progress: Progress | None = None) -> Difference:
    """Compare two snapshots, or the parameters of a snapshot and a final state, or two final states.

    Raises NotAFileError, NoValuesError, OSError and the errors of the readers.
    """
    with ExitStack() as stack:
        streams = [stack.enter_context(opened(path)) for path in (one, other)]
        kinds = [kind_of(path, stream) for path, stream in zip((one, other), streams, strict=True)]
        if Kind.MARKER in kinds:
            raise NoValuesError("a final marker holds no values to compare")
        found = Difference()
        whole = kinds == [Kind.SNAPSHOT, Kind.SNAPSHOT]
        found.compared = "all that they hold" if whole else "the parameters (a final state has no more)"
        if whole:
            first, second = (read_contents(stream) for stream in streams)
            _contents(first, second, found)
            for stream in streams:
                stream.seek(0)
        _values(streams, kinds, whole, found, progress)
    return found


def _contents(first: Contents, second: Contents, found: Difference) -> None:
    def compare(name: str, of: Callable[[Contents], Any]) -> None:
        one, other = of(first), of(second)
        if one != other:
            found.fields.append((name, one, other))

    compare("version", lambda each: int(each.head.version))
    compare("iso backend", lambda each: backend_name(each.head.iso_backend))
    compare("fingerprint", lambda each: _hex(each.fingerprint))
    compare("contract", lambda each: _hex(each.trailer.contract))
    compare("global step", lambda each: each.head.global_step)
    compare("fragments", lambda each: each.head.num_fragments)
    compare("trailer bytes", lambda each: int(each.trailer.form))
    compare("sweep fragments", lambda each: each.trailer.sweep_fragments)
    for number, (one, other) in enumerate(zip(first.versions, second.versions, strict=False)):
        if one != other:
            found.fields.append((f"fragment {number} version", one, other))
    if np.array_equal(first.ledger, second.ledger):
        return
    ledgers = [{entry[0]: entry[1:] for entry in each.ledger.tolist()} for each in (first, second)]
    for learner in sorted({*ledgers[0], *ledgers[1]}):
        entries = [ledger.get(learner) for ledger in ledgers]
        if entries[0] != entries[1]:
            told = [None if entry is None else _counts(entry) for entry in entries]
            found.fields.append((f"ledger of learner {learner}", told[0], told[1]))


def _values(
    streams: list[BinaryIO], kinds: list[Kind], whole: bool, found: Difference, progress: Progress | None
) -> None:
    sides = (
        _fragments(stream, kind, progress if place == 0 else None)
        for place, (stream, kind) in enumerate(zip(streams, kinds, strict=True))
    )
    for number, (one, other) in enumerate(zip_longest(*sides)):
        sizes = [None if side is None else side.numel for side in (one, other)]
        if one is None or other is None or one.numel != other.numel:
            found.fields.append((f"fragment {number} values", sizes[0], sizes[1]))
            continue
        _array(number, "params", one.params_pieces(), other.params_pieces(), found)
        if whole:
            assert isinstance(one, FragmentReader) and isinstance(other, FragmentReader)
            _array(number, "momentum", one.momentum_pieces(), other.momentum_pieces(), found)


def _fragments(
    stream: BinaryIO, kind: Kind, progress: Progress | None
) -> Iterator[FragmentReader | FinalStateFragment]:
    if kind is Kind.SNAPSHOT:
        return SnapshotReader(stream, progress=progress).fragments()
    return FinalStateReader(stream, progress=progress).fragments()


def _array(
    fragment: int, name: str, one: Iterator[F32Array], other: Iterator[F32Array], found: Difference
) -> None:
    differing = numel = 0
    largest = squares = norm = 0.0
    for mine, yours in zip(one, other, strict=True):
        numel += mine.size
        same = mine.view(np.uint32) == yours.view(np.uint32)
        if same.all():
            norm += _squares(mine)
            continue
        differing += mine.size - int(np.count_nonzero(same))
        finite = np.isfinite(mine) & np.isfinite(yours)
        gap = np.where(finite, mine, 0).astype(np.float64) - np.where(finite, yours, 0)
        largest = max(largest, float(np.abs(gap).max()))
        squares += float(gap @ gap)
        norm += _squares(np.where(finite, mine, 0))
    if differing:
        distance = sqrt(squares)
        relative = distance / sqrt(norm) if norm else None
        found.arrays.append(ArrayDifference(fragment, name, numel, differing, largest, distance, relative))


def _squares(values: F32Array) -> float:
    wide = np.where(np.isfinite(values), values, 0).astype(np.float64)
    return float(wide @ wide)


def _counts(entry: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(LEDGER_COLUMNS[1:], entry, strict=True))


def _hex(digest: bytes | None) -> str | None:
    return None if digest is None else digest.hex()


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return " ".join(f"{name} {count}" for name, count in value.items())
    return str(value)
