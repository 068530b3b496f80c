"""What a file of a run is, and what it says besides its values; the values themselves are skipped."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from yeto_proto._generated.files import COUNT, LEDGER_ENTRY, MAGIC, MAGICS, MARKER_LINES, NUMEL
from yeto_proto.files import FinalStateReader, SnapshotHead, SnapshotReader, Trailer, marker_path, open_raw

LEDGER_COLUMNS: Final = tuple(LEDGER_ENTRY.names or ())
MARKER_ENDING: Final = marker_path("").name


class Kind(Enum):
    """The files that a run writes beside its tape."""

    SNAPSHOT = "snapshot"
    FINAL_STATE = "final state"
    MARKER = "final marker"


class NotAFileError(Exception):
    """The path is a folder, a pipe or a device: nothing that can be read twice."""


class NoValuesError(Exception):
    """The file holds no such values."""


@dataclass(slots=True)
class Contents:
    """A snapshot without its values. `versions` and `numels` have one number a fragment, `ledger` is an array
    of `LEDGER_ENTRY`."""

    size: int
    head: SnapshotHead
    versions: array[int]
    numels: array[int]
    ledger: npt.NDArray[np.void]
    trailer: Trailer

    @property
    def numel(self) -> int:
        """Values of all fragments together."""
        return sum(self.numels)

    @property
    def fingerprint(self) -> bytes | None:
        """The layout fingerprint, wherever the file records it."""
        return self.head.fingerprint or self.trailer.fingerprint


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file of a run, unbuffered. Raises NotAFileError, OSError."""
    mode = path.stat().st_mode  # before it is opened: that would wait for the other end of a pipe
    if not stat.S_ISREG(mode):
        raise NotAFileError("it is a folder" if stat.S_ISDIR(mode) else "it is a device, a pipe or a socket")
    with open_raw(path) as stream:
        yield stream


def kind_of(path: Path, stream: BinaryIO) -> Kind:
    """What a file is meant to be, by its name and first bytes; the stream is back at its start then.

    A file that is nothing of all this counts as a snapshot: its reader says what is wrong.
    """
    size = os.fstat(stream.fileno()).st_size
    head = stream.read(64)
    stream.seek(0)
    if path.name.endswith(MARKER_ENDING) or head.startswith(MARKER_LINES[0].encode()):
        return Kind.MARKER
    first = COUNT.sizeof()
    if len(head) < first + NUMEL.sizeof() or int(MAGIC.parse(head)) in MAGICS.values():
        return Kind.SNAPSHOT
    # A final state starts with a count of fragments that its length allows. Damage cannot make that of a
    # magic: it would claim gigabytes of fragments.
    count, numel = int(COUNT.parse(head)), int(NUMEL.parse(head[first:]))
    if 0 < count * NUMEL.sizeof() <= size and numel:
        return Kind.FINAL_STATE
    return Kind.SNAPSHOT


def read_contents(stream: BinaryIO) -> Contents:
    """Everything in a snapshot but its values. Raises the errors of `SnapshotReader`."""
    reader = SnapshotReader(stream)
    versions, numels = array("Q"), array("Q")
    for fragment in reader.fragments():
        versions.append(fragment.version)
        numels.append(fragment.numel)
    ledger = read_ledger(reader)
    return Contents(reader.size, reader.head, versions, numels, ledger, reader.trailer())


def read_ledger(reader: SnapshotReader) -> npt.NDArray[np.void]:
    """The whole ledger, 28 bytes an entry. Ids may occur twice in it."""
    data = bytearray()
    for entries in reader.ledger_pieces():
        data += entries.tobytes()
    return np.frombuffer(data, LEDGER_ENTRY)


def read_numels(stream: BinaryIO) -> list[int]:
    """Values of each fragment of a final state. Raises the errors of `FinalStateReader`."""
    return [fragment.numel for fragment in FinalStateReader(stream).fragments()]


def count_fragments(path: Path) -> int:
    """Fragments of a snapshot or final state, from its first bytes; 1 for a marker. Raises as
    `read_contents`."""
    with opened(path) as stream:
        kind = kind_of(path, stream)
        if kind is Kind.MARKER:
            return 1
        if kind is Kind.FINAL_STATE:
            return FinalStateReader(stream).num_fragments
        return SnapshotReader(stream).head.num_fragments
