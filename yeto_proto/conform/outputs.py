"""Files that a syncer under test has written."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from yeto_proto.errors_base import YetoError
from yeto_proto.files.final_state import read_final_state_from
from yeto_proto.files.marker import parse_marker
from yeto_proto.files.reader import SnapshotReader

from .answers import snapshot_fields
from .match import differences
from .trace import Step
from .verdict import FailError, Result

__all__ = ["judge_file"]


class Waiter(Protocol):
    """What can wait for a file."""

    result: Result

    def holds_file(self, step: Step, condition: Callable[[], bool]) -> bool: ...


def judge_file(player: Waiter, path: Path, step: Step) -> None:
    """Compare a file with what a step says. Raises FailError."""
    kind = step["is"]
    player.result.expected = {key: step[key] for key in ("is", "fields") if key in step}
    if kind == "absent":
        if not player.holds_file(step, lambda: not path.exists()):
            raise FailError(f"{path.name} is there, and must not be")
        return
    if not player.holds_file(step, path.exists):
        raise FailError(f"{path.name} was not written")
    try:
        found = _read(kind, path.read_bytes())
    except YetoError as error:
        raise FailError(f"{path.name} breaks a rule: {error}") from None
    player.result.actual = found
    lines = differences(step.get("fields", {}), found)
    if lines:
        raise FailError(f"{path.name}: {'; '.join(lines)}")


def _read(kind: str, data: bytes) -> Mapping[str, Any]:
    if kind == "snapshot":
        return snapshot_fields(SnapshotReader(io.BytesIO(data)).read())
    if kind == "marker":
        return {"global_step": str(parse_marker(data))}
    arrays = read_final_state_from(io.BytesIO(data))
    return {"fragments": [{"numel": str(each.size), "params": each.tobytes().hex()} for each in arrays]}
