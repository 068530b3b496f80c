"""What a loaded checkpoint demands of the configuration and of the first HELLO.

Reading the file, its inner consistency and its iso backend are checked where it is read. Here are the checks
that need something else: the settings at start, and the layout and contract that a learner brings (D9).
"""

from __future__ import annotations

from yeto_proto._generated.errors import WireError
from yeto_proto._generated.messages import Hello
from yeto_proto.errors_base import YetoError
from yeto_proto.files.checks import check_session
from yeto_proto.files.model import Snapshot
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
    try:
        check_session(snapshot, hello.layout, hello.layout_fingerprint, hello.session_contract_hash)
    except WireError as error:
        return error
    return None
