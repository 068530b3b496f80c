"""`yeto-checkpoint verify`: everything that can be wrong with a file, each with its place.

The files carry no checksum. What can be proven is that the structure is whole, that versions fit the step,
that every value is a finite number, that fingerprints agree, and that the marker belongs to the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from yeto_proto._generated.constants import HASH_BYTES
from yeto_proto._generated.files import F32, LEDGER_ENTRY, MAGIC, NUMEL, PREFIX_BYTES, TRAILERS
from yeto_proto._generated.types import IsoBackend
from yeto_proto.errors_base import YetoError
from yeto_proto.files import (
    FinalStateReader,
    Progress,
    SnapshotHead,
    SnapshotReader,
    SnapshotVersion,
    Trailer,
    check_backend,
    check_fingerprint,
    check_fragment_count,
    check_numel,
    expected_version,
    marker_path,
    parse_marker,
    read_checkpoint_step,
)
from yeto_proto.files.checks import NumericLayout
from yeto_proto.files.model import F32Array
from yeto_syncer.checkpoint.contents import MARKER_ENDING, Kind, kind_of, opened, read_ledger
from yeto_syncer.checkpoint.faults import Fault
from yeto_syncer.checkpoint.inspect import MARKER_MOST

MOST_FAULTS: Final = 1000  # of one kind: who has a million wants to know that, and not each


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the file should be, as far as somebody has said it. Digests have 32 bytes."""

    layout: NumericLayout | None = None
    fingerprint: bytes | None = None
    contract: bytes | None = None
    iso_backend: IsoBackend | None = None


@dataclass(slots=True)
class Verdict:
    """What was found. `about` says what the file is, `notes` what is odd without being wrong."""

    kind: Kind
    about: str = ""
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def check(self, work: Callable[[], object], offset: int | None = None) -> None:
        """Keep what a check refuses."""
        try:
            work()
        except YetoError as error:
            self.faults.append(Fault.of(error, offset=offset))

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "ok": not self.faults,
            "kind": self.kind.value.replace(" ", "_"),
            "about": self.about,
            "faults": [fault.as_dict() for fault in self.faults],
            "notes": self.notes,
        }


def verify(path: Path, wanted: Wanted, progress: Progress | None = None) -> Verdict:
    """Judge a snapshot, final state or marker. Raises NotAFileError, OSError."""
    with opened(path) as stream:
        verdict = Verdict(kind_of(path, stream))
        if verdict.kind is Kind.MARKER:
            _marker(path, stream, verdict)
        elif verdict.kind is Kind.FINAL_STATE:
            verdict.check(lambda: _final_state(stream, wanted, verdict, progress))
        else:
            verdict.check(lambda: _snapshot(path, stream, wanted, verdict, progress))
    return verdict


def _snapshot(
    path: Path, stream: BinaryIO, wanted: Wanted, verdict: Verdict, progress: Progress | None
) -> None:
    reader = SnapshotReader(stream, progress=progress)
    head = reader.head
    verdict.about = f"V{int(head.version)} checkpoint of step {head.global_step}, {reader.size:,} bytes"
    _marker_beside(path, head.global_step, verdict)
    _head(head, wanted, verdict)
    values = _Values(verdict)
    wrong_versions = 0
    for fragment in reader.fragments():
        number = fragment.fragment_id
        version = expected_version(head.global_step, number, head.num_fragments)
        if fragment.version != version:
            wrong_versions += 1
            if wrong_versions <= MOST_FAULTS:
                verdict.faults.append(_version(fragment.start, number, fragment.version, version))
        layout = wanted.layout
        if layout is not None and number < layout.num_fragments:
            _numel(number, fragment.numel, layout, reader.offset - NUMEL.sizeof(), verdict)
        values.look(number, "params", fragment.params_pieces(), reader.offset)
        values.look(number, "momentum", fragment.momentum_pieces(), reader.offset)
    values.say()
    ledger = read_ledger(reader)
    _ledger(ledger, reader.offset - ledger.nbytes, head, verdict)
    start = reader.offset
    _trailer(reader.trailer(), start, wanted, head, verdict)
    verdict.about += f", {head.num_fragments} fragments, {values.numel // 2:,} values, {ledger.size} learners"


def _head(head: SnapshotHead, wanted: Wanted, verdict: Verdict) -> None:
    if wanted.iso_backend is not None:
        backend = wanted.iso_backend
        verdict.check(lambda: check_backend(head, backend), MAGIC.sizeof())
    if head.version is SnapshotVersion.V1:
        verdict.notes.append("a V1 checkpoint is never resumed: migrate it")
    at = PREFIX_BYTES[head.version]
    if head.fingerprint is not None and wanted.fingerprint is not None:
        fingerprint = wanted.fingerprint
        verdict.check(
            lambda: check_fingerprint(head.fingerprint, fingerprint), at - NUMEL.sizeof() - HASH_BYTES
        )
    if wanted.layout is not None:
        layout = wanted.layout
        verdict.check(lambda: check_fragment_count(head.num_fragments, layout), at)
        grouped = [each for each in range(layout.num_fragments) if len(layout.numels(each)) != 1]
        if head.version is SnapshotVersion.V2 and grouped:
            verdict.notes.append(
                "a V2 checkpoint is resumed only where each fragment is one tensor, and fragment "
                f"{grouped[0]} is not: migrate it"
            )


def _numel(number: int, numel: int, layout: NumericLayout, offset: int, verdict: Verdict) -> None:
    verdict.check(lambda: check_numel(number, numel, layout), offset)


def _version(offset: int, number: int, seen: int, expected: int) -> Fault:
    what = f"fragment {number} has not the version that follows from the global step"
    return Fault(what, "version", offset, str(expected), str(seen), "snapshot.version.contiguous")


def _ledger(ledger: npt.NDArray[np.void], start: int, head: SnapshotHead, verdict: Verdict) -> None:
    ids = ledger["learner_id"]
    order = np.argsort(ids, kind="stable")
    twice = order[1:][np.diff(ids[order]) == 0]
    for place in np.sort(twice)[:MOST_FAULTS].tolist():
        offset = start + place * LEDGER_ENTRY.itemsize
        what = "this learner stands in the ledger twice"
        verdict.faults.append(
            Fault(
                what, "ledger.learner_id", offset, "each id once", str(ids[place]), "snapshot.ledger.unique"
            )
        )
    if not twice.size and ids.size > 1 and not np.all(ids[1:] > ids[:-1]):
        verdict.notes.append("the ledger is not in ascending order of learner ids, as every writer makes it")
    for column, odd, why in (
        ("merges", ledger["merges"] > head.global_step, f"more than the {head.global_step} steps of the run"),
        ("steps", ledger["steps"] < ledger["merges"], "fewer than its merges"),
    ):
        for place in np.flatnonzero(odd)[:MOST_FAULTS].tolist():
            verdict.notes.append(f"learner {ids[place]} has {ledger[column][place]} {column}, {why}")


def _trailer(trailer: Trailer, start: int, wanted: Wanted, head: SnapshotHead, verdict: Verdict) -> None:
    if wanted.fingerprint is not None and head.fingerprint is None and trailer.fingerprint is not None:
        fingerprint = wanted.fingerprint
        verdict.check(lambda: check_fingerprint(trailer.fingerprint, fingerprint), start)
    if wanted.fingerprint is not None and head.fingerprint is None and trailer.fingerprint is None:
        verdict.notes.append("nothing in the file proves its layout: only sizes were compared")
    if wanted.contract is not None and trailer.contract != wanted.contract:
        seen = "none" if trailer.contract is None else trailer.contract.hex()
        offset = start + int(trailer.form) - (HASH_BYTES if trailer.contract is not None else 0)
        what = "not the session contract that was asked for"
        verdict.faults.append(
            Fault(what, "contract", offset, wanted.contract.hex(), seen, "snapshot.contract.session")
        )
    if head.version is SnapshotVersion.V3 and trailer.contract is None:
        verdict.notes.append("it has no session contract: only a session without one of its own resumes it")
    if not TRAILERS[trailer.form].resume:
        verdict.notes.append(f"a policy sweep of {trailer.sweep_fragments} fragments is never resumed")


class _Values:
    """Looks for what is not a finite number."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._arrays = 0
        self.numel = 0

    def look(self, fragment: int, name: str, pieces: Iterable[F32Array], start: int) -> None:
        """Read one array, whose first byte is `start`."""
        done = count = first = 0
        seen = ""
        for piece in pieces:
            finite = np.isfinite(piece)
            found = finite.size - int(np.count_nonzero(finite))
            if found and not count:
                place = int(finite.argmin())
                first, seen = done + place, str(piece[place])
            count += found
            done += piece.size
        self.numel += done
        if not count:
            return
        self._arrays += 1
        if self._arrays <= MOST_FAULTS:
            what = f"fragment {fragment}: {count} of {done} values are not finite, the first is value {first}"
            offset = start + first * F32.itemsize
            self._verdict.faults.append(Fault(what, name, offset, "finite numbers", seen))

    def say(self) -> None:
        """After the last array."""
        if self._arrays > MOST_FAULTS:
            self._verdict.notes.append(f"{self._arrays} arrays hold values that are not finite")


def _final_state(stream: BinaryIO, wanted: Wanted, verdict: Verdict, progress: Progress | None) -> None:
    reader = FinalStateReader(stream, progress=progress)
    layout = wanted.layout
    if layout is not None:
        verdict.check(lambda: check_fragment_count(reader.num_fragments, layout), 0)
    values = _Values(verdict)
    for fragment in reader.fragments():
        if layout is not None and fragment.fragment_id < layout.num_fragments:
            _numel(fragment.fragment_id, fragment.numel, layout, fragment.start, verdict)
        start = fragment.start + NUMEL.sizeof()
        values.look(fragment.fragment_id, "params", fragment.params_pieces(), start)
    values.say()
    verdict.about = f"final state, {reader.num_fragments} fragments, {values.numel:,} values"
    verdict.notes.append("a final state records neither step nor layout: diff it with its checkpoint")


def _marker(path: Path, stream: BinaryIO, verdict: Verdict) -> None:
    try:
        step = parse_marker(stream.read(MARKER_MOST))
    except YetoError as error:
        verdict.faults.append(Fault.of(error))
        return
    verdict.about = f"final marker of step {step}"
    if not path.name.endswith(MARKER_ENDING):
        verdict.notes.append("its name does not say which checkpoint it belongs to")
        return
    checkpoint = path.with_name(path.name.removesuffix(MARKER_ENDING))
    try:
        seen = read_checkpoint_step(checkpoint)
    except FileNotFoundError:
        verdict.faults.append(_orphan(str(checkpoint)))
    except YetoError as error:
        verdict.faults.append(Fault(f"its checkpoint {checkpoint} cannot be read: {error}", "file"))
    else:
        if seen != step:
            verdict.faults.append(_other_step(step, seen, 0))


def _marker_beside(path: Path, step: int, verdict: Verdict) -> None:
    try:
        data = marker_path(path).read_bytes()[:MARKER_MOST]
        marked = parse_marker(data)
    except FileNotFoundError:
        return
    except YetoError as error:
        fault = Fault.of(error)
        verdict.faults.append(Fault(f"{marker_path(path).name}: {fault.what}", "final marker", fault.offset))
    else:
        if marked != step:
            verdict.faults.append(_other_step(marked, step, None))


def _orphan(checkpoint: str) -> Fault:
    return Fault(f"there is no checkpoint {checkpoint} beside it", "file")


def _other_step(marked: int, step: int, offset: int | None) -> Fault:
    return Fault(
        "the final marker is of another step than the checkpoint",
        "final marker",
        offset,
        str(step),
        str(marked),
        "final_marker.global_step.checkpoint",
    )
