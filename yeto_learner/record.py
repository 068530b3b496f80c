"""The resume record: what a learner must save beside its own checkpoint to come back without losing local
progress.

A record is one `.npz` file: `meta`, the UTF-8 bytes of a JSON object, and with saved anchors one array
`anchor_<f>` of each fragment's anchor bytes.  It belongs to the model checkpoint of the same step boundary.
What is pushed after it was saved stands in the journal beside it (`yeto_learner.journal`).
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
import numpy.typing as npt

from yeto_proto._generated.types import Dtype
from yeto_proto.files.paths import replace_file

from .core.boundary import RecordedFragment
from .journal import pushed_since

__all__ = ["ResumeRecord", "SavedAnchor", "read_record", "with_later_pushes", "write_record"]

RECORD_VERSION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class SavedAnchor:
    """The raw bytes of one anchor, in the dtype it was kept in (f32 or bf16)."""

    dtype: Dtype
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ResumeRecord:
    """Counters, versions and, if saved, anchors of a learner at a step boundary.

    `fingerprint` is that of the layout, None in a record that does not say; `fragments` has None for a
    fragment that had no anchor yet.  `identity` ties the journal of later pushes to it; None in a record that
    has no journal.  `path` is where it was saved or read.
    """

    steps: int
    tokens: int
    global_step: int
    fragments: tuple[RecordedFragment | None, ...]
    fingerprint: bytes | None
    anchors: dict[int, SavedAnchor] = field(default_factory=dict)
    identity: str | None = None
    path: Path | None = field(default=None, compare=False)

    @property
    def unpushed(self) -> set[int]:
        """The fragments that have an anchor nothing was pushed from."""
        return {number for number, each in enumerate(self.fragments) if each is not None and not each.pushed}

    @property
    def pushed_from(self) -> dict[int, int | None]:
        """Of each fragment that has an anchor, the lowest version that it is known to be pushed from."""
        known: dict[int, int | None] = {}
        for number, each in enumerate(self.fragments):
            if each is not None:
                bases = [each.version] if each.pushed else []
                bases += [] if each.pushed_from is None else [each.pushed_from]
                known[number] = min(bases, default=None)
        return known


def write_record(path: str | os.PathLike[str], record: ResumeRecord) -> None:
    """Write a record so that the file is either the old or the new one as a whole.  Raises OSError."""
    meta = {
        "record_version": RECORD_VERSION,
        "steps": record.steps,
        "tokens": record.tokens,
        "global_step": record.global_step,
        "fingerprint": None if record.fingerprint is None else record.fingerprint.hex(),
        "fragments": [None if each is None else asdict(each) for each in record.fragments],
        "identity": record.identity,
        "anchor_dtypes": {number: anchor.dtype.name for number, anchor in record.anchors.items()},
    }
    arrays = {f"anchor_{number}": anchor.data for number, anchor in record.anchors.items()}
    encoded = np.frombuffer(json.dumps(meta).encode(), np.uint8)

    def write(stream: BinaryIO) -> None:
        # A raw stream may take less than it is given, and zipfile does not look.
        buffered = io.BufferedWriter(cast(io.RawIOBase, stream))
        np.savez(buffered, allow_pickle=False, meta=encoded, **arrays)
        buffered.flush()
        buffered.detach()

    replace_file(path, write)


def read_record(path: str | os.PathLike[str]) -> ResumeRecord:
    """Read a record.  Raises OSError when the file cannot be read and ValueError when it is not a record."""
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(bytes(file["meta"]).decode())
            if meta["record_version"] != RECORD_VERSION:
                raise ValueError(
                    f"record version {meta['record_version']}, this program reads {RECORD_VERSION}"
                )
            return ResumeRecord(
                meta["steps"],
                meta["tokens"],
                meta["global_step"],
                tuple(_fragments(meta["fragments"])),
                None if meta["fingerprint"] is None else bytes.fromhex(meta["fingerprint"]),
                {
                    int(number): SavedAnchor(Dtype[dtype], file[f"anchor_{number}"])
                    for number, dtype in meta["anchor_dtypes"].items()
                },
                meta.get("identity"),
                Path(path).absolute(),
            )
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{os.fspath(path)} is not a resume record: {error}") from error


def with_later_pushes(record: ResumeRecord) -> tuple[ResumeRecord, bool]:
    """The record with what its journal adds, and whether that could be trusted: if not, every fragment counts
    as pushed.  Raises OSError.
    """
    if record.identity is None or record.path is None:
        return record, True
    later = pushed_since(record.path, record.identity)
    fragments = list(record.fragments)
    for number, each in enumerate(record.fragments):
        if each is not None and (later is None or number in later):
            bases = [] if later is None else [later[number]]
            bases += [] if each.pushed_from is None else [each.pushed_from]
            lowest = min(bases, default=each.version)
            fragments[number] = replace(
                each, pushed=each.pushed or lowest <= each.version, pushed_from=lowest
            )
    return replace(record, fragments=tuple(fragments)), later is not None


def _fragments(entries: Iterable[dict[str, Any] | None]) -> Iterator[RecordedFragment | None]:
    for entry in entries:
        yield None if entry is None else RecordedFragment(**entry)
