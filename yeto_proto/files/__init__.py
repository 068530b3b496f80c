"""Files of a run: snapshots (checkpoints), the final marker and the final state.

Readers and writers work on binary streams, with memory that does not depend on the file; `read_snapshot`,
`write_snapshot` and the like are their forms for paths.  `checks` holds what must be true before a run
resumes from a snapshot.
"""

from __future__ import annotations

from ._stream import PIECE_BYTES, Progress
from .checks import (
    check_backend,
    check_contract,
    check_file,
    check_fingerprint,
    check_fragment_count,
    check_grouped,
    check_layout,
    check_numel,
    check_round_robin,
    check_session,
    check_trailer,
    check_version,
    expected_version,
)
from .final_state import (
    FinalStateFragment,
    FinalStateReader,
    read_final_state,
    read_final_state_from,
    write_final_state,
    write_final_state_to,
)
from .marker import (
    format_marker,
    marker_path,
    parse_marker,
    read_marker,
    remove_marker,
    verify_marker,
    write_marker,
)
from .model import (
    FragmentState,
    LedgerEntry,
    Snapshot,
    SnapshotHead,
    SnapshotVersion,
    Trailer,
    TrailerForm,
)
from .paths import (
    load_checkpoint,
    open_raw,
    read_checkpoint_step,
    read_snapshot,
    remove_file,
    replace_file,
    temporary_path,
    write_snapshot,
)
from .reader import FragmentReader, SnapshotReader, read_global_step
from .resume import load_for_resume
from .writer import SnapshotWriter, snapshot_bytes, write_to

__all__ = [
    "PIECE_BYTES",
    "FinalStateFragment",
    "FinalStateReader",
    "FragmentReader",
    "FragmentState",
    "LedgerEntry",
    "Progress",
    "Snapshot",
    "SnapshotHead",
    "SnapshotReader",
    "SnapshotVersion",
    "SnapshotWriter",
    "Trailer",
    "TrailerForm",
    "check_backend",
    "check_contract",
    "check_file",
    "check_fingerprint",
    "check_fragment_count",
    "check_grouped",
    "check_layout",
    "check_numel",
    "check_round_robin",
    "check_session",
    "check_trailer",
    "check_version",
    "expected_version",
    "format_marker",
    "load_checkpoint",
    "load_for_resume",
    "marker_path",
    "open_raw",
    "parse_marker",
    "read_checkpoint_step",
    "read_final_state",
    "read_final_state_from",
    "read_global_step",
    "read_marker",
    "read_snapshot",
    "remove_file",
    "remove_marker",
    "replace_file",
    "snapshot_bytes",
    "temporary_path",
    "verify_marker",
    "write_final_state",
    "write_final_state_to",
    "write_marker",
    "write_snapshot",
    "write_to",
]
