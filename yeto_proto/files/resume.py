"""Loading a snapshot for a resume: every check stands before what it saves is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from yeto_proto._generated.types import IsoBackend

from ._stream import Progress
from .checks import (
    NumericLayout,
    check_backend,
    check_fingerprint,
    check_fragment_count,
    check_numel,
    check_round_robin,
    check_session,
    check_trailer,
    check_version,
)
from .model import Snapshot
from .reader import FragmentReader, SnapshotReader


def load_for_resume(
    stream: BinaryIO,
    iso_backend: IsoBackend,
    *,
    layout: NumericLayout | None = None,
    fingerprint: bytes | None = None,
    contract: bytes | None = None,
    size: int | None = None,
    progress: Progress | None = None,
) -> Snapshot:
    """Read a snapshot and make every check that is possible now, each before what it saves is read.

    Without layout, fingerprint and contract these are the checks of `check_file`; `check_session` must follow
    when a HELLO is there.  With them, all checks are made, and no array is allocated that a check refuses.

    Raises WireError classes naming the first broken rule; OSError of the stream passes through.
    """
    reader = SnapshotReader(stream, size=size, progress=progress)
    head = reader.head
    check_version(head)
    check_backend(head, iso_backend)
    if fingerprint is not None:
        check_fingerprint(head.fingerprint, fingerprint)
    if layout is not None:
        check_fragment_count(head.num_fragments, layout)
    snapshot = reader.read(_numel_check(layout))
    check_trailer(snapshot.actual_trailer())
    if layout is not None and fingerprint is not None and contract is not None:
        check_session(snapshot, layout, fingerprint, contract)
    check_round_robin(snapshot.versions, snapshot.global_step)
    return snapshot


def _numel_check(layout: NumericLayout | None) -> Callable[[FragmentReader], None] | None:
    if layout is None:
        return None
    return lambda fragment: check_numel(fragment.fragment_id, fragment.numel, layout)
