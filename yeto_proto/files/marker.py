"""The marker `<checkpoint>.final`, which says that a checkpoint is the finished end of its run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO, Final

from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.files import MARKER_LINES, U64_MAX

from ._rules import broken
from .paths import FilePath, Passed, read_checkpoint_step, remove_file, replace_file

_KIND: Final = "final marker"
_TEXT: Final = "".join(f"{line}\n" for line in MARKER_LINES)
_BEFORE, _, _AFTER = _TEXT.partition("<decimal>")
_FORM: Final = re.compile(f"{re.escape(_BEFORE)}([0-9]+){re.escape(_AFTER)}".encode())
# No writer makes more than 50 bytes; leading zeros are allowed, but not for ever.
_LONGEST: Final = 4096


def marker_path(checkpoint: FilePath) -> Path:
    """Where the marker of a checkpoint stands: `.final` is appended, the extension stays."""
    return Path(f"{os.fspath(checkpoint)}.final")


def format_marker(global_step: int) -> bytes:
    """The exact bytes of a marker.  Raises BadArgument for a step outside u64."""
    if not 0 <= global_step <= U64_MAX:
        raise BadArgument(frame=_KIND, field="global_step", limit=f"0..{U64_MAX}", seen=global_step)
    return f"{_BEFORE}{global_step}{_AFTER}".encode()


def parse_marker(data: bytes) -> int:
    """The global step of a marker's bytes.  Raises BadMarker for anything but the exact form."""
    match = _FORM.fullmatch(data)
    if match is None:
        raise broken("final_marker.form", offset=0, limit=ascii(_TEXT), seen=ascii(data[:64]))
    digits = match[1].lstrip(b"0") or b"0"
    step = int(digits) if len(digits) <= len(str(U64_MAX)) else U64_MAX + 1
    if step > U64_MAX:
        raise broken(
            "final_marker.global_step.must",
            offset=match.start(1),
            limit=U64_MAX,
            seen=digits.decode(),
        )
    return step


def read_marker_from(stream: BinaryIO) -> int:
    """The global step of the marker that the stream holds.  Raises BadMarker."""
    return parse_marker(stream.read(_LONGEST))


def read_marker(checkpoint: FilePath) -> int:
    """The global step in the marker of a checkpoint.

    Raises FileNotFoundError when there is none, BadMarker, OSError.
    """
    with marker_path(checkpoint).open("rb") as stream:
        return read_marker_from(stream)


def verify_marker(checkpoint: FilePath) -> int:
    """As `read_marker`; also raises BadMarker when the checkpoint itself is at another step."""
    marked, step = read_marker(checkpoint), read_checkpoint_step(checkpoint)
    if marked != step:
        detail = "the marker is of another step than the checkpoint"
        raise broken("final_marker.global_step.checkpoint", limit=step, seen=marked, detail=detail)
    return step


def write_marker(checkpoint: FilePath, global_step: int, *, passed: Passed | None = None) -> None:
    """Mark a checkpoint as final, durably.  Raises OSError."""
    data = format_marker(global_step)
    replace_file(marker_path(checkpoint), lambda stream: stream.write(data), passed=passed)


def remove_marker(checkpoint: FilePath, *, passed: Passed | None = None) -> bool:
    """Take the marker away, durably; False when there was none.  Raises OSError."""
    return remove_file(marker_path(checkpoint), passed=passed)
