"""CHUNK frames in tests: decoded, and put into a reassembler."""

from __future__ import annotations

from collections.abc import Iterator

from tests.unit.wire_samples import joined
from yeto_proto._generated.constants import (
    HEADER_BYTES,
)
from yeto_proto._generated.messages import Chunk, Message
from yeto_proto._generated.types import FrameType
from yeto_proto.chunks import Reassembler
from yeto_proto.codec import decode, header


def chunk(frame: list[bytes | bytearray | memoryview]) -> Chunk:
    """One CHUNK frame, decoded."""
    content = joined(frame)
    assert content[:HEADER_BYTES] == header(FrameType.CHUNK, len(content) - HEADER_BYTES)
    message = decode(FrameType.CHUNK, content[HEADER_BYTES:])
    assert isinstance(message, Chunk)
    return message


def put(into: Reassembler, msg_id: int, total: int, offset: int, data: bytes) -> Message | None:
    into.begin(msg_id, total, offset, len(data))[:] = data
    return into.commit(msg_id, offset, len(data))


def put_all(into: Reassembler, frames: Iterator[list[bytes | bytearray | memoryview]]) -> list[Message]:
    found = []
    for frame in frames:
        each = chunk(frame)
        message = put(into, each.msg_id, each.total_len, each.offset, bytes(each.data))
        if message is not None:
            found.append(message)
    return found
