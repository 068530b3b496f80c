"""Payload bytes to message and back.

`decode` judges every rule of the specification that the bytes and the session alone can decide; only
`YetoError` leaves it, whatever the bytes are. Bulk is never copied: it is a view of what was passed in.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ._generated.constants import HEADER_BYTES, MAGIC
from ._generated.errors import BadArgument
from ._generated.limits import RECEIVES, chunk_total_limit
from ._generated.messages import Buffer, Message
from ._generated.rules import DECODE, RULES
from ._generated.structs import FRAMES, HEADER
from ._generated.types import FrameType, Role
from ._judge import first_of
from ._wire import FrameStruct, ShortInput
from .errors_base import YetoError
from .session import Session

__all__ = ["decode", "encode", "header", "parse_header"]


def header(frame_type: int, length: int) -> bytes:
    """The 13 bytes before a payload of `length` bytes. Raises BadArgument for a number that does not fit."""
    try:
        return HEADER.struct.pack(MAGIC, frame_type, length)
    except struct.error as error:
        raise BadArgument(frame="HEADER", detail=str(error)) from None


def parse_header(buffer: Buffer) -> tuple[int, int, int]:
    """Magic, type and length of the header at the start of a buffer of at least 13 bytes, not judged yet."""
    if len(buffer) < HEADER_BYTES:
        raise BadArgument(frame="HEADER", detail="a header is longer", limit=HEADER_BYTES, seen=len(buffer))
    magic, frame_type, length = HEADER.unpack(buffer)
    return magic, frame_type, length


def encode(message: Message) -> list[Buffer]:
    """The frame of a message as buffers to be sent in a row: header with fixed fields, then the bulk.

    The bulk is not copied and not joined. Raises BadArgument when a field does not fit its type; no other
    rule is judged, so that a test can send what must be refused.
    """
    frame = FRAMES[message.frame_type]
    bulk: memoryview | None = None
    if frame.bulk is not None:
        bulk = _bulk_view(frame, getattr(message, frame.bulk))
    try:
        if frame.fixed is not None:
            length = frame.fixed.size + (0 if bulk is None else bulk.nbytes)
            head = frame.headed.pack(MAGIC, frame.frame_type, length, *frame.fields_of(message))
        else:
            body = frame.body.build(_Fields(message))
            head = header(frame.frame_type, len(body)) + body
    except (struct.error, OverflowError, TypeError, AttributeError) as error:
        raise BadArgument(frame=frame.name, detail=f"cannot be encoded: {error}") from None
    return [head] if bulk is None or not bulk.nbytes else [head, bulk]


class _Fields:
    """A message as `construct` wants it, by item."""

    def __init__(self, message: Message) -> None:
        self.message = message

    def __getitem__(self, name: str) -> Any:
        return getattr(self.message, name)


def _bulk_view(frame: FrameStruct, value: Any) -> memoryview:
    if frame.text:
        try:
            return memoryview(value.encode("utf-8"))
        except (UnicodeEncodeError, AttributeError):
            raise BadArgument(
                frame=frame.name, field=frame.bulk, detail="must be text that UTF-8 can hold"
            ) from None
    try:
        return memoryview(value).cast("B")
    except (TypeError, ValueError):
        raise BadArgument(frame=frame.name, field=frame.bulk, detail="must be contiguous bytes") from None


def decode(
    frame_type: int, payload: Buffer, session: Session | None = None, role: Role | None = None
) -> Message:
    """The message of a payload, after every rule of time `decode`.

    Without a session the rules that compare with it are not judged, and bulk may have any length. With a
    role, a type that this side never receives is refused, and chunks are held to the side's limit. Raises the
    WireError that the broken rule names, and BadArgument for a payload that is not contiguous.
    """
    frame = FRAMES.get(frame_type)
    if frame is None:
        raise RULES["header.type.known"].error_at(offset=None, seen=frame_type)
    if role is not None and frame_type not in RECEIVES[role]:
        raise RULES["header.type.direction"].error_at(offset=None, seen=frame.name)
    total_limit = None
    if frame_type == FrameType.CHUNK and session is not None and role is not None:
        total_limit = chunk_total_limit(role, session)
    context = {"session": session, "total_limit": total_limit, "left": None}
    view = memoryview(payload)
    if not view.c_contiguous:
        raise BadArgument(frame=frame.name, field="payload", detail="must be contiguous bytes")
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if frame.fixed is None:
        return _decode_body(frame, view, context)
    return _decode_fixed(frame, view, context)


def _decode_fixed(frame: FrameStruct, view: memoryview, context: Mapping[str, Any]) -> Message:
    run = frame.fixed
    assert run is not None
    try:
        values = run.unpack(view)
    except struct.error:
        raise _short(frame, run.available(bytes(view)), len(view), context) from None
    message: Any
    if frame.bulk is not None:
        bulk: Any = view[run.size :]
        if frame.text:
            bulk = _text(frame, bulk)
        message = frame.make(*values, bulk)
    elif frame.positional:
        message = frame.make(*values)
    else:
        message = frame.make(**dict(zip(run.names, values, strict=True)))
    error = first_of(DECODE[frame.name], message, context)
    if error is not None:
        raise error
    if frame.bulk is None and len(view) > run.size:
        raise _trailing(frame, run.size, len(view))
    decoded: Message = message
    return decoded


def _decode_body(frame: FrameStruct, view: memoryview, context: Mapping[str, Any]) -> Message:
    rules = DECODE[frame.name]

    def judge(name: str, before: bool, values: Any, left: int, offset: int) -> None:
        known = {**context, "left": left}
        for rule in rules:
            if (
                rule.field == name
                and rule.before == before
                and all(known[each] is not None for each in rule.needs)
            ):
                error = rule.broken(values, known, offset)
                if error is not None:
                    raise error

    try:
        values, used = frame.body.read(view, judge, context["session"])
    except ShortInput as short:
        raise _truncated(frame, short, len(view)) from None
    if used < len(view):
        raise _trailing(frame, used, len(view))
    for name, kind in frame.enums.items():
        values[name] = kind(values[name])
    for name in frame.derived:
        del values[name]
    decoded: Message = frame.make(**values)
    return decoded


def _short(frame: FrameStruct, short: ShortInput, length: int, context: Mapping[str, Any]) -> YetoError:
    """A fixed run that is cut off: the fields that did arrive are judged first, as they would be while
    reading.
    """
    arrived = SimpleNamespace(**short.values)
    rules = [each for each in DECODE[frame.name] if each.field in short.values]
    return first_of(rules, arrived, context) or _truncated(frame, short, length)


def _truncated(frame: FrameStruct, short: ShortInput, length: int) -> YetoError:
    error = RULES[f"{frame.name.lower()}.payload.complete"].error_at(offset=short.offset, seen=length)
    error.field = short.field
    return error


def _trailing(frame: FrameStruct, end: int, length: int) -> YetoError:
    return RULES[f"{frame.name.lower()}.payload.end"].error_at(offset=end, seen=length, limit=end)


def _text(frame: FrameStruct, bulk: memoryview) -> str:
    data = bytes(bulk)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        shown = ascii(data.decode("utf-8", "replace"))
        raise RULES[f"{frame.name.lower()}.{frame.bulk}.utf8"].error_at(
            offset=error.start, detail=shown
        ) from None
