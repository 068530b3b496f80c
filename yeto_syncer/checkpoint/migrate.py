"""`yeto-checkpoint migrate`: a V1 or V2 checkpoint as V3, with what only a person can know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import (
    LedgerEntry,
    Progress,
    SnapshotHead,
    SnapshotReader,
    SnapshotVersion,
    SnapshotWriter,
    Trailer,
    TrailerForm,
    check_backend,
    check_fingerprint,
    check_round_robin,
    check_trailer,
    marker_path,
    remove_marker,
    replace_file,
)
from yeto_proto.files.writer import snapshot_bytes
from yeto_syncer.checkpoint.contents import Contents, Kind, kind_of, opened, read_contents
from yeto_syncer.shell.lockfile import LockFile


class CannotMigrateError(Exception):
    """What is in the way, and what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Supplied:
    """What was given by hand. Digests have 32 bytes."""

    fingerprint: bytes
    iso_backend: IsoBackend | None
    contract: bytes | None


@dataclass(frozen=True, slots=True)
class Migrated:
    """What was written: `head` and `trailer` of the new file, and the version of the old one."""

    source: SnapshotVersion
    head: SnapshotHead
    trailer: Trailer
    backend_by_hand: bool
    contract_by_hand: bool


def migrate(path: Path, output: Path, supplied: Supplied, progress: Progress | None = None) -> Migrated:
    """Write `output` as V3, whole or not at all, under its lock; its old marker is removed first.

    Raises CannotMigrateError, NotAFileError, LockHeldError, OSError, and the errors of the reader and of the
    checks for a file that could not be resumed.
    """
    with opened(path) as stream:
        if kind_of(path, stream) is not Kind.SNAPSHOT:
            raise CannotMigrateError("it is no checkpoint", "give a V1 or V2 checkpoint")
        contents = read_contents(stream)
        head, trailer = _new(contents, supplied)
        stream.seek(0)
        with LockFile(output):
            # The marker of another checkpoint must not stand beside this one for a moment.
            if marker_path(output).exists():
                remove_marker(output)
            replace_file(output, lambda target: _copy(stream, target, contents, head, trailer, progress))
    old = contents.trailer
    return Migrated(
        contents.head.version, head, trailer, contents.head.iso_backend is None, old.contract is None
    )


def _new(contents: Contents, supplied: Supplied) -> tuple[SnapshotHead, Trailer]:
    old = contents.head
    if old.version is SnapshotVersion.V3:
        raise CannotMigrateError("it is V3 already", "use it as it is")
    if old.iso_backend is None and supplied.iso_backend is None:
        raise CannotMigrateError(
            "a V1 checkpoint does not record its iso backend", "give --iso-backend, if you know it"
        )
    backend = old.iso_backend
    if supplied.iso_backend is not None and backend is not None:
        check_backend(old, supplied.iso_backend)
    check_trailer(contents.trailer)
    check_fingerprint(contents.trailer.fingerprint, supplied.fingerprint)
    check_round_robin(contents.versions, old.global_step)
    ids = contents.ledger["learner_id"].tolist()
    if len(set(ids)) != len(ids):
        raise CannotMigrateError("a learner stands in its ledger twice", "see yeto-checkpoint verify")
    contract = contents.trailer.contract
    if contract is not None and supplied.contract not in (None, contract):
        raise CannotMigrateError(
            f"it records another session contract, {contract.hex()}", "leave --contract out"
        )
    contract = contract or supplied.contract
    form = TrailerForm.FINGERPRINT if contract is None else TrailerForm.CONTRACT
    return (
        SnapshotHead(
            SnapshotVersion.V3,
            backend if backend is not None else supplied.iso_backend,
            supplied.fingerprint,
            old.global_step,
            old.num_fragments,
        ),
        Trailer(form, supplied.fingerprint, contract),
    )


def _copy(
    stream: BinaryIO,
    target: BinaryIO,
    contents: Contents,
    head: SnapshotHead,
    trailer: Trailer,
    progress: Progress | None,
) -> None:
    ledger = {entry[0]: LedgerEntry(*entry[1:]) for entry in contents.ledger.tolist()}
    size = snapshot_bytes(head.version, contents.numels, len(ledger), trailer)
    writer = SnapshotWriter(target, head, size=size, progress=progress)
    for fragment in SnapshotReader(stream).fragments():
        writer.begin_fragment(fragment.version, fragment.numel)
        for piece in fragment.params_pieces():
            writer.write_params(piece)
        for piece in fragment.momentum_pieces():
            writer.write_momentum(piece)
    writer.finish(ledger, trailer)
