"""What a trace of somebody else must fulfil before it is played: its fields are its bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from yeto_proto import codec
from yeto_proto._generated.constants import HEADER_BYTES, MAC_BYTES
from yeto_proto.errors_base import YetoError

from . import fields
from .trace import BadTraceError, Step, Trace

__all__ = ["check", "whole"]


def check(trace: Trace) -> None:
    """Raises BadTraceError with the line of the first frame whose fields are not what its bytes say."""
    for number, step in enumerate(trace.steps, start=2):
        if step["do"] != "frame":
            continue
        wrong = _narrow(step) or (_differs(trace, step) if "wire" in step else None)
        if wrong is not None:
            where = f"{trace.path or trace.id}:{number}"
            raise BadTraceError(f"{where}: {step.get('frame')}: {wrong}")


def whole(trace: Trace, reference: Any) -> bytes:
    """The bytes of a reference, with zeros where a recording has left them out. Raises BadTraceError."""
    if isinstance(reference, list):
        return b"".join(whole(trace, each) for each in reference)
    if isinstance(reference, dict) and reference.get("gen") == "hash":
        return bytes(int(reference["len"]))
    return trace.wire(reference)


def _narrow(step: Step) -> str | None:
    """A 64-bit field that is no text."""
    given = step.get("fields")
    if not isinstance(given, Mapping):
        return "has no fields"
    for name, value in given.items():
        if name not in fields.WIDE:
            continue
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, (str, Mapping)):
                return f"{name}: must be text, since JSON readers lose numbers above 2^53"
    return None


def _differs(trace: Trace, step: Step) -> str | None:
    """Fields that say something else than the bytes."""
    data = whole(trace, step["wire"])
    if len(data) < HEADER_BYTES:
        return "its bytes are shorter than a header"
    try:
        message = fields.message(step["frame"], step["fields"], lambda value: whole(trace, value))
        payload = b"".join(bytes(part) for part in codec.encode(message))[HEADER_BYTES:]
    except (KeyError, TypeError, ValueError, OverflowError, struct.error, YetoError) as error:
        return f"its fields cannot be read: {type(error).__name__}: {error}"
    rest = data[HEADER_BYTES + len(payload) :]
    # Behind a HELLO there may be its MAC, which is no field.
    if data[4] != message.frame_type or len(rest) not in (0, MAC_BYTES if step["frame"] == "HELLO" else 0):
        return "its fields and its bytes are of different length or kind"
    if data[HEADER_BYTES : HEADER_BYTES + len(payload)] == payload:
        return None
    return "its fields say something else than its bytes"
