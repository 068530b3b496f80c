"""What a loaded checkpoint demands of the configuration and of the first HELLO.

Reading the file, its inner consistency and its iso backend are checked where it is read. Here are the checks
that need something else: the settings at start, and the layout and contract that a learner brings (D9).
"""

from __future__ import annotations

import numpy as np
from yeto_proto._generated.errors import GroupedLegacySnapshot, SnapshotMismatch
from yeto_proto.errors_base import YetoError
from yeto_proto._generated.messages import Hello

from yeto_proto.files import Snapshot
from yeto_syncer.core.config import Config


def problem(config: Config, snapshot: Snapshot) -> str | None:
    """Why this checkpoint cannot be continued with these settings, as `what; where; what to do`, or None."""
    if snapshot.global_step > config.total_steps:
        return (
            f"the checkpoint is at step {snapshot.global_step}, beyond --total-steps {config.total_steps}; "
            f"{config.checkpoint_path}; raise --total-steps or use another checkpoint"
        )
    return None


def difference(snapshot: Snapshot, hello: Hello) -> YetoError | None:
    """The first difference between the checkpoint and a HELLO, or None when the HELLO may fix the session."""
    layout = hello.layout
    if snapshot.fingerprint is not None and snapshot.fingerprint != hello.layout_fingerprint:
        return _mismatch("layout_fingerprint", snapshot.fingerprint.hex(), hello.layout_fingerprint.hex())
    if len(snapshot.fragments) != layout.num_fragments:
        return _mismatch("num_fragments", len(snapshot.fragments), layout.num_fragments)
    sizes = np.array([fragment.params.size for fragment in snapshot.fragments], np.uint64)
    unequal = np.flatnonzero(sizes != layout.fragment_numels)
    if len(unequal):
        first = int(unequal[0])
        return _mismatch(f"numel of fragment {first}", sizes[first], layout.fragment_numels[first])
    if snapshot.fingerprint is None:
        # V2 proves its layout only where a fragment is one tensor; it holds no contract to compare (D3).
        if layout.num_tensors != layout.num_fragments:
            return GroupedLegacySnapshot(
                frame="HELLO", detail="the checkpoint is V2 and fragments are grouped"
            )
        return None
    if snapshot.contract is not None:
        if snapshot.contract != hello.session_contract_hash:
            return _mismatch(
                "session_contract_hash", snapshot.contract.hex(), hello.session_contract_hash.hex()
            )
    elif hello.session_contract_hash != hello.layout_fingerprint:
        return _mismatch("session_contract_hash", "the layout fingerprint", hello.session_contract_hash.hex())
    return None


def _mismatch(what: str, ours: object, theirs: object) -> SnapshotMismatch:
    return SnapshotMismatch(
        frame="HELLO", detail=f"{what}: the checkpoint has {ours}, the HELLO has {theirs}"
    )
