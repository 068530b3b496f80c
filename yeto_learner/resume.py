"""How a learner is saved, comes back, and keeps its records told of what it pushes meanwhile."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from .core.boundary import Boundary
from .fragments import FragmentValues
from .journal import PushJournal, journal_of
from .record import ResumeRecord, read_record, with_later_pushes, write_record

__all__ = ["Resume"]

log = logging.getLogger(__name__)


class Resume:
    """The resume records of one learner.  fingerprint: of its layout."""

    def __init__(self, boundary: Boundary, values: FragmentValues, fingerprint: bytes) -> None:
        self._boundary, self._values, self._fingerprint = boundary, values, fingerprint
        self.journal = PushJournal()
        self.resumed = False
        self._source: tuple[Path, str, dict[int, int | None]] | None = None

    def save(self, path: str | os.PathLike[str] | None, *, anchors: bool) -> ResumeRecord:
        """The record of this step boundary, written to `path` if given.  Raises OSError."""
        boundary = self._boundary
        record = ResumeRecord(
            boundary.steps,
            boundary.tokens,
            boundary.global_step,
            tuple(boundary.record()),
            self._fingerprint,
            self._values.save_anchors() if anchors else {},
            None if path is None else secrets.token_hex(16),
            None if path is None else Path(path).absolute(),
        )
        if record.path is not None and record.identity is not None:
            with self.journal.saving(record.path, record.identity, record.pushed_from):
                write_record(record.path, record)
        return record

    def restore(self, resume: ResumeRecord | str | os.PathLike[str]) -> None:
        """Continue from a record, or not if it is of another layout.  Raises OSError and ValueError."""
        record = resume if isinstance(resume, ResumeRecord) else read_record(resume)
        count = self._values.num_fragments
        if record.fingerprint not in (None, self._fingerprint) or len(record.fragments) != count:
            log.warning(
                "the resume record is of another layout; this learner starts from the syncer's values"
            )
            return
        record, trusted = with_later_pushes(record)
        self._boundary.restore(record.steps, record.tokens, record.global_step, record.fragments)
        self._values.restore_anchors(record.anchors)
        if record.path is not None and record.identity is not None:
            if trusted:
                self._source = record.path, record.identity, record.pushed_from
            else:
                log.warning(
                    "%s does not tell what was pushed after its record was saved (it is missing, copied or "
                    "damaged); all local progress counts as pushed, and is dropped where the syncer went on",
                    journal_of(record.path),
                )
        self.resumed = True

    def open(self) -> None:
        """From now on the record that the learner came back from is told of pushes.  Raises OSError."""
        if self._source is not None:
            self.journal.follow(*self._source)
