"""The files of a run beside the event tape: checkpoint, final marker, final state.

Each is written to a name of its own first and then renamed, so that whoever reads one sees the old file or
the new one and never a part.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from yeto_proto.files import (
    Snapshot,
    remove_marker,
    temporary_path,
    write_final_state,
    write_marker,
    write_snapshot,
)
from yeto_syncer.core.jobs import F32
from yeto_syncer.shell.crashpoints import bytes_of, stages


class Storage:
    """Where the run keeps its state. Methods raise OSError; each may run on a thread."""

    def __init__(self, checkpoint: Path | None, final_state: Path | None) -> None:
        self._checkpoint = checkpoint
        self._final_state = final_state

    def save(self, snapshot: Snapshot, *, consume: bool = False) -> None:
        """Write the checkpoint; it is durable when this returns. With `consume` the list of its fragments is
        emptied on the way: what the run has replaced meanwhile is kept only until it is written."""
        assert self._checkpoint is not None
        write_snapshot(
            self._checkpoint,
            snapshot,
            progress=bytes_of("checkpoint"),
            passed=stages("checkpoint"),
            consume=consume,
        )

    def write_marker(self, step: int) -> None:
        """Write `<checkpoint>.final`."""
        assert self._checkpoint is not None
        write_marker(self._checkpoint, step, passed=stages("marker"))

    def remove_marker(self) -> None:
        """Remove `<checkpoint>.final` if it is there."""
        assert self._checkpoint is not None
        remove_marker(self._checkpoint, passed=stages("marker"))

    def write_final_state(self, fragments: Sequence[F32]) -> None:
        """Write the f32 parameters of every fragment."""
        assert self._final_state is not None
        write_final_state(
            self._final_state, fragments, progress=bytes_of("final-state"), passed=stages("final-state")
        )


def problem(path: Path) -> str | None:
    """Why a file cannot be created or replaced at `path`, or None. Nothing is written."""
    try:
        temporary_path(path).exists()  # a name of its own, which may be too long where the file's is not
        return _problem(path)
    except OSError as error:
        return error.strerror or str(error)


def _problem(path: Path) -> str | None:
    if path.is_dir():
        return "it is a folder"
    if path.exists() and not path.is_file():  # the rename would put a file in the place of /dev/null
        return "it is a device, a pipe or a socket"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"the folder {path.parent} cannot be written"
    if path.exists() and not os.access(path, os.W_OK):
        return "the file cannot be written"
    return None
