"""Snapshots on disk: whole files that are replaced atomically and durably."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.files import SnapshotVersion
from yeto_proto._generated.types import IsoBackend

from ._stream import Progress
from .model import Snapshot
from .reader import SnapshotReader, read_global_step
from .resume import load_for_resume
from .writer import write_to

FilePath: TypeAlias = str | os.PathLike[str]
Passed: TypeAlias = Callable[[str], None]
"""Called with the name of each stage of a replacement that is over: created, written, synced, renamed,
durable; of a removal: unlinked, removed."""


def read_snapshot(path: FilePath, *, progress: Progress | None = None) -> Snapshot:
    """Read a checkpoint V1, V2 or V3 whole, as `SnapshotReader` does.

    Raises OSError, and the errors of `SnapshotReader` for a file that is no snapshot.
    """
    with open_raw(path) as stream:
        return SnapshotReader(stream, progress=progress).read()


def write_snapshot(
    path: FilePath,
    snapshot: Snapshot,
    *,
    progress: Progress | None = None,
    passed: Passed | None = None,
    consume: bool = False,
) -> None:
    """Replace the checkpoint at `path`: when this returns, the new one is on disk, whatever happens next.

    It is written to `<path>.tmp`, flushed to disk and renamed; then the directory is flushed.  A failure is
    raised and leaves the old file as it was.  Never two writers at once on one path.

    consume: as for `write_to`.

    Raises OSError, and BadArgument for V1 and V2, which are only read.
    """
    if snapshot.version_tag is not SnapshotVersion.V3:
        name = snapshot.version_tag.name
        raise BadArgument(field="version_tag", seen=name, detail="only V3 snapshots are written; migrate it")
    replace_file(
        path, lambda stream: write_to(stream, snapshot, progress=progress, consume=consume), passed=passed
    )


def read_checkpoint_step(path: FilePath) -> int:
    """The global step of a checkpoint, from its first bytes.

    Raises OSError, Truncated, BadFileMagic, BackendUnknown.
    """
    with open_raw(path) as stream:
        return read_global_step(stream)


def load_checkpoint(path: FilePath, iso_backend: IsoBackend, *, progress: Progress | None = None) -> Snapshot:
    """Read a checkpoint for a resume, with every check that needs no HELLO; `check_session` has the others.

    Raises OSError (FileNotFoundError when there is none) and the errors of `load_for_resume`.
    """
    with open_raw(path) as stream:
        return load_for_resume(stream, iso_backend, progress=progress)


def temporary_path(path: FilePath) -> Path:
    """Where a new version of `path` is written before it takes its place."""
    return Path(f"{os.fspath(path)}.tmp")


def replace_file(
    path: FilePath, write: Callable[[BinaryIO], object], *, passed: Passed | None = None
) -> None:
    """Give a file new content by `write(stream)`, so that at every moment it holds the old or the new, whole.

    The stream is unbuffered.  Raises OSError and whatever `write` raises; `<path>.tmp` is removed then.
    """
    target, temporary = Path(path), temporary_path(path)
    tell = passed or _nobody
    stream = temporary.open("wb", buffering=0)
    try:
        with stream:
            tell("created")
            write(stream)
            tell("written")
            os.fsync(stream.fileno())
        tell("synced")
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    tell("renamed")
    flush_directory(target)
    tell("durable")


def remove_file(path: FilePath, *, passed: Passed | None = None) -> bool:
    """Remove a file for good; False when there was none.  Raises OSError."""
    tell = passed or _nobody
    try:
        Path(path).unlink()
    except FileNotFoundError:
        return False
    tell("unlinked")
    flush_directory(Path(path))
    tell("removed")
    return True


def _nobody(stage: str) -> None:
    """Whoever asked for a file did not ask how far it is."""


def flush_directory(path: Path) -> None:
    """Make a rename or removal of `path` durable.  A bare name lies in "."."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_raw(path: FilePath) -> io.FileIO:
    """Open a file for unbuffered reading, so that big reads go straight into their arrays."""
    return io.FileIO(os.fspath(path), "rb")
