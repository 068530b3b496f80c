"""The journal beside a resume record: which fragments were pushed after the record was saved.

A record cannot know what its learner pushes later.  Coming back from it, such a learner would add progress to
a global that already holds it, and have it merged a second time.  So, before the first byte of a push leaves,
a line in `<record>.pushed` says that the fragment counts as pushed for that record, and from which anchor.

Each line names the record it is of, so a line that is left over never counts for another one.  A record may
be renamed together with its journal while the learner runs; a copy of the two is not told any more.  What
cannot be trusted (no journal, a copy, one of another record, a damaged line) counts as a push of everything.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["JournaledRecord", "PushJournal", "journal_of", "pushed_since"]

Known = Mapping[int, int | None]

SUFFIX: Final = ".pushed"
SAVED: Final = "saved"
PUSHED: Final = "pushed"
MAX_RECORDS: Final = 64  # each holds an open file; during an outage no push ends their need for it


def journal_of(record: str | os.PathLike[str]) -> Path:
    """The path of the journal of the record at this path."""
    path = Path(record)
    return path.with_name(path.name + SUFFIX)


def pushed_since(record: str | os.PathLike[str], identity: str) -> dict[int, int] | None:
    """The fragments that were pushed after the record `identity` was saved at this path, each with the lowest
    version that it was pushed from.

    None when the journal cannot tell.  Raises OSError when it is there and cannot be read.
    """
    try:
        with journal_of(record).open("rb") as file:
            lines = file.read().splitlines()
            original = os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return None
    found: dict[int, int] = {}
    saved = False
    for line in filter(None, lines):
        entry = _parse(line)
        if entry is None:
            return None
        of, what, number, base = entry
        if of == identity and what == SAVED:
            saved = number == original
        elif of == identity:
            found[number] = min(base, found.get(number, base))
    return found if saved else None


class JournaledRecord:
    """A record on disk, and from which version it knows each of its fragments to be pushed, if it is.

    Its journal stays open, so that it is found under every name that it gets.  Raises OSError.
    """

    def __init__(self, record: str | os.PathLike[str], identity: str, known: Known, *, create: bool) -> None:
        self.identity = identity
        self.known = dict(known)
        self.path = journal_of(record)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._file = os.fdopen(os.open(self.path, flags, 0o666), "r+b", buffering=0)

    def begin(self) -> None:
        """Say that this is the journal of the record, behind what an older record at its path has there.

        The entry of a new file in its folder becomes durable with that of the record.
        """
        self._append(SAVED, os.fstat(self._file.fileno()).st_ino, 0)

    def note(self, fragment_id: int, base: int) -> None:
        """Make durable that this fragment is pushed from version `base`; nothing to do if that, or a lower
        one, is known."""
        if fragment_id in self.known:
            lowest = self.known[fragment_id]
            if lowest is None or base < lowest:
                self._append(PUSHED, fragment_id, base)
                self.known[fragment_id] = base

    def restart(self) -> None:
        """Forget all lines but the one that begins this journal.

        In the same file: the name of a new one would have to be durable before its next line.  A crash in
        between leaves no valid beginning, which counts as a push of everything.
        """
        self._file.truncate(0)
        self.begin()

    def _append(self, what: str, number: int, base: int) -> None:
        descriptor = self._file.fileno()
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = b"\n" * torn + _line(self.identity, what, number, base)
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)

    def shares_file(self, other: JournaledRecord) -> bool:
        """Whether both have the same journal, because one record replaced the other."""
        return os.path.samestat(os.fstat(self._file.fileno()), os.fstat(other._file.fileno()))

    @property
    def removed(self) -> bool:
        """Whether the journal was removed; then its record, if it is still there, counts as pushed."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def close(self) -> None:
        self.known.clear()
        self._file.close()


class PushJournal:
    """Keeps the journals of all records that a learner may be brought back from.

    `follow`, `saving` and `records` are for the thread that steps, `note` for whoever sends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # over the files and what every record knows
        self._records: tuple[JournaledRecord, ...] = ()
        self._closed = False

    @property
    def records(self) -> tuple[JournaledRecord, ...]:
        """The records that do not know of a push that is handed out now."""
        return self._records

    def follow(self, record: str | os.PathLike[str], identity: str, known: Known) -> None:
        """From now on, tell this record, which the learner came back from.  Raises OSError."""
        try:
            self._records = (*self._records, JournaledRecord(record, identity, known, create=False))
        except OSError as error:
            raise OSError(
                error.errno,
                f"{journal_of(record)}: cannot be written ({error.strerror}), so a learner that comes back "
                f"from this record again could have its progress merged twice. Make it writable, or resume "
                f"from a copy of the record (without this file), which counts all progress as pushed",
            ) from error

    @contextmanager
    def saving(self, record: str | os.PathLike[str], identity: str, known: Known) -> Iterator[None]:
        """Around the write of a record, which may replace an older one at the same path.

        At each moment the journal serves the old record and the new one.  Raises OSError.
        """
        with self._lock:
            self._let_go()
            new = JournaledRecord(record, identity, known, create=True)
            try:
                new.begin()
            except OSError:
                new.close()
                raise
            # Before the write: one that fails in its last moment may have replaced the old record all the
            # same.
            self._records = (*self._records, new)
        yield
        with self._lock:
            for each in self._records:
                if each is not new and each.shares_file(new):
                    each.known.clear()  # it is gone from the disk for good
            new.restart()
            self._let_go()

    def _let_go(self) -> None:
        """Close what needs to be told nothing any more."""
        for each in self._records[:-MAX_RECORDS]:
            for fragment_id in sorted(each.known):
                each.note(fragment_id, 0)
            each.known.clear()
        over = [each for each in self._records if self._closed or not each.known or each.removed]
        self._records = tuple(each for each in self._records if each not in over)
        for each in over:
            each.close()

    def note(self, records: Collection[JournaledRecord], fragment_id: int, base: int) -> None:
        """Make durable that this fragment is pushed from version `base`, before anything of it is sent.

        Writes nothing that a record knows.  Raises OSError; then the push must not be sent.
        """
        with self._lock:
            for record in records:
                try:
                    record.note(fragment_id, base)
                except OSError as error:
                    raise OSError(
                        error.errno,
                        f"{record.path}: cannot note that fragment {fragment_id} is pushed "
                        f"({error.strerror}); nothing of it was sent, for a learner that comes back from "
                        f"this record would have it merged twice. Make room for it, then start this learner "
                        f"again from its last record",
                    ) from error

    def close(self) -> None:
        """Close all files; nothing is pushed any more.  May be called again."""
        with self._lock:
            self._closed = True
            for each in self._records:
                each.close()
            self._records = ()


def _line(identity: str, what: str, number: int, base: int) -> bytes:
    text = f"{identity} {what} {number} {base}".encode()
    return text + f" {zlib.crc32(text):08x}\n".encode()


def _parse(line: bytes) -> tuple[str, str, int, int] | None:
    """Identity, kind, number and base of a line; None when it is damaged."""
    text, _, check = line.rpartition(b" ")
    if check != f"{zlib.crc32(text):08x}".encode():
        return None
    try:
        identity, what, number, base = text.decode("ascii").split(" ")
        return (identity, what, int(number), int(base)) if what in (SAVED, PUSHED) else None
    except ValueError:
        return None
