"""CHUNK in both directions: cutting a message into slices, and putting slices together again.

No bulk byte is copied here.  A sender gets views of the message's own bulk.  A receiver gets a view of the
reassembly buffer to receive into, and the bulk of the finished message is again a view of that buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Final

from ._generated.constants import CHUNK_HEAD_BYTES, DIGEST_BLOCK, HEADER_BYTES, MAGIC, WIRE, Preset
from ._generated.errors import BadArgument
from ._generated.limits import INNER, chunk_total_limit, payload_limit
from ._generated.messages import Buffer, Message
from ._generated.rules import DECODE, RULES
from ._generated.structs import BCAST_FRAGMENT, CHUNK
from ._generated.types import FrameType, Role
from ._judge import first_of
from .blocks import BlockCount, BlockHook
from .codec import decode, encode, parse_header
from .errors_base import YetoError
from .memory import Allocate, fresh
from .ranges import RangeSet
from .session import Session

# The fixed part of INIT, PUSH, BCAST and FINAL_FRAGMENT is a multiple of 4 bytes.  Reassembly buffers begin
# where the inner header ends at such a multiple, so that numpy finds f32 bulk aligned.
_ALIGN: Final = 4
_PAD: Final = -HEADER_BYTES % _ALIGN


def slices(message: Message, msg_id: int, preset: Preset = WIRE) -> Iterator[list[Buffer]]:
    """Yield the CHUNK frames of `message`, each as the buffers to send in a row.

    The inner frame is cut at each multiple of the preset's slice; its header and fixed part stand in the
    first chunk.  Raises what `encode` raises.
    """
    buffers = encode(message)
    return cut(buffers, sum(map(len, buffers)), msg_id, preset)


def cut(buffers: Iterable[Buffer], total: int, msg_id: int, preset: Preset = WIRE) -> Iterator[list[Buffer]]:
    """Yield CHUNK frames for an inner frame of `total` bytes that comes as any number of buffers.

    A buffer is asked for only when its first byte is due, so a caller may produce the bulk part by part.
    Raises BadArgument for a msg_id that is no u64, and when the buffers hold fewer or more bytes than
    `total`, in the latter case in place of the last chunk.  Chunks that were sent before that belong to a
    message that can never be complete.
    """
    source = iter(buffers)
    rest = memoryview(b"")
    for offset in range(0, total, preset.chunk_slice):
        left = min(preset.chunk_slice, total - offset)
        try:
            head = CHUNK.headed.pack(MAGIC, FrameType.CHUNK, CHUNK_HEAD_BYTES + left, msg_id, total, offset)
        except struct.error as error:
            raise BadArgument(frame="CHUNK", detail=f"cannot be encoded: {error}", seen=msg_id) from None
        frame: list[Buffer] = [head]
        while left:
            if not rest:
                rest = _next_part(source, total)
            frame.append(rest[:left])
            left -= len(frame[-1])
            rest = rest[len(frame[-1]) :]
        if offset + preset.chunk_slice >= total and (rest or any(map(len, source))):
            raise BadArgument(field="buffers", detail=f"hold more than the {total} bytes of the message")
        yield frame


def _next_part(source: Iterator[Buffer], total: int) -> memoryview:
    for part in source:
        try:
            view = memoryview(part).cast("B")
        except (TypeError, ValueError):
            raise BadArgument(field="buffers", detail="every part must be contiguous bytes") from None
        if view:
            return view
    raise BadArgument(field="buffers", detail=f"hold fewer than the {total} bytes of the message")


class _Partial:
    """One incomplete message."""

    __slots__ = ("arrived", "blocks", "buffer", "key", "ranges", "total")

    def __init__(self, key: int, total: int, buffer: memoryview, blocks: BlockCount | None) -> None:
        self.key = key
        self.total = total
        self.buffer = buffer
        self.blocks = blocks
        self.ranges = RangeSet()  # announced by chunk envelopes, arrived or not
        self.arrived = 0  # bytes


class Reassembler:
    """The incomplete messages of one connection group, shared by the readers of all its sockets.

    A reader announces a chunk with `begin`, which judges its envelope, reserves its range and says where its
    bytes go, and reports with `commit` that they are there.  Between the two, other readers may announce and
    commit other chunks, of this message or another.  Chunks come in any order, and a msg_id may be used again
    when its message is complete.

    Nothing here locks.  Threads that share a Reassembler need one lock around `begin`, `commit` and `clear`
    (a subclass can hold it); receiving into what `begin` returned needs none.

    The buffer of a message comes from `allocate`. It is memory that the kernel commits as it is written to,
    or that this process has used before, so a large total costs nothing before its bytes arrive.

    With a `hook`, which only a learner may have, the blocks of large messages are reported (see `blocks`).
    """

    def __init__(
        self,
        role: Role,
        session: Session,
        preset: Preset = WIRE,
        *,
        hook: BlockHook | None = None,
        block: int = DIGEST_BLOCK,
        allocate: Allocate = fresh,
    ) -> None:
        if hook is not None and role is not Role.LEARNER:
            raise BadArgument(field="hook", detail="blocks are those of broadcasts, which a learner receives")
        self._role = role
        self._session = session
        self._preset = preset
        self._hook = hook
        self._block = block
        self._allocate = allocate
        self._total_limit = chunk_total_limit(role, session, preset)
        self._partials: dict[int, _Partial] = {}
        self._keys = count()

    @property
    def partials(self) -> int:
        """Number of incomplete messages."""
        return len(self._partials)

    @property
    def announced(self) -> int:
        """Bytes of all incomplete messages, arrived or not."""
        return sum(partial.total for partial in self._partials.values())

    @property
    def arrived(self) -> int:
        """Bytes of incomplete messages that arrived."""
        return sum(partial.arrived for partial in self._partials.values())

    def begin(self, msg_id: int, total: int, offset: int, length: int) -> memoryview:
        """Judge the envelope of a chunk of `length` bytes; return the bytes of the message that it fills.

        Raises BadInnerFrame (a total that no frame can have), ChunkTotalTooLarge, EmptyChunk,
        ChunkOutOfRange, ChunkTotalChanged, TooManyPartials, ChunkOverlap or TooManyRanges, and has then
        changed nothing.
        """
        # The bytes are still to come; the rules of the envelope only ask how many.
        envelope = SimpleNamespace(msg_id=msg_id, total_len=total, offset=offset, data=range(length))
        error = first_of(DECODE["CHUNK"], envelope, {"total_limit": self._total_limit})
        if error is not None:
            raise error
        end = offset + length
        partial = self._partials.get(msg_id)
        if partial is None:
            most = self._preset.max_partial_messages
            if len(self._partials) >= most:
                raise _fault("msg_id.partials", limit=most, seen=len(self._partials) + 1)
            self._partials[msg_id] = partial = self._partial(total)
        else:
            self._check_range(partial, total, offset, end)
        partial.ranges.add(offset, end)
        return partial.buffer[offset:end]

    def commit(self, msg_id: int, offset: int, length: int) -> Message | None:
        """The bytes of a chunk announced with `begin` are there; return the message if it is complete now.

        Raises BadInnerFrame or FrameTooLarge as soon as the first chunk shows a header that cannot be right,
        and what `decode` raises for a complete message.  Offsets in the errors of a complete message count in
        its own payload.
        """
        partial = self._partials.get(msg_id)
        if partial is None:
            raise BadArgument(field="msg_id", detail="no such chunk was announced", seen=msg_id)
        partial.arrived += length
        if partial.arrived < partial.total:
            if offset == 0 and length >= HEADER_BYTES:
                self._inner_type(partial)
            self._report(partial, offset, length)
            return None
        del self._partials[msg_id]
        try:
            frame_type = self._inner_type(partial)
            self._report(partial, offset, length)
            message = decode(frame_type, partial.buffer[HEADER_BYTES:], self._session, self._role)
        except YetoError:
            self._drop(partial)
            raise
        if self._hook is not None and partial.blocks is not None:
            self._hook.message(partial.key, message, partial.blocks.blocks)
        return message

    def clear(self) -> None:
        """Forget all incomplete messages: the connection group is gone, and no message straddles groups."""
        dropped = list(self._partials.values())
        self._partials.clear()
        for partial in dropped:
            self._drop(partial)

    def _report(self, partial: _Partial, offset: int, length: int) -> None:
        if self._hook is not None and partial.blocks is not None:
            for index in partial.blocks.add(offset, length):
                self._hook.block(partial.key, index, partial.buffer[partial.blocks.span(index)])

    def _drop(self, partial: _Partial) -> None:
        if self._hook is not None and partial.blocks is not None:
            self._hook.dropped(partial.key)

    def _partial(self, total: int) -> _Partial:
        try:
            buffer = self._allocate(total + _PAD)[_PAD:]
        except (MemoryError, ValueError):  # the latter for more than an address can count
            detail = "there is no memory for a message of this size"
            raise _fault("total_len.limit", limit=self._total_limit, seen=total, detail=detail) from None
        blocks = None
        if self._hook is not None:
            start = BCAST_FRAGMENT.headed.size
            if total - start > self._block:
                blocks = BlockCount(start, total - start, self._block)
        return _Partial(next(self._keys), total, buffer, blocks)

    def _check_range(self, partial: _Partial, total: int, offset: int, end: int) -> None:
        if total != partial.total:
            raise _fault("total_len.same", limit=partial.total, seen=total)
        overlap = partial.ranges.overlap(offset, end)
        if overlap is not None:
            raise _fault("data.overlap", seen=f"{offset}..{end}", detail=f"bytes {overlap[0]}..{overlap[1]}")
        ranges = len(partial.ranges) + partial.ranges.growth(offset, end)
        if ranges > self._preset.max_ranges:
            raise _fault("data.ranges", limit=self._preset.max_ranges, seen=ranges)

    def _inner_type(self, partial: _Partial) -> int:
        """The type of the inner frame, whose header has arrived; judges that header."""
        magic, frame_type, length = parse_header(partial.buffer)
        if magic != MAGIC:
            raise _fault("data.inner", limit=MAGIC, seen=magic, detail="magic of the inner frame")
        if length != partial.total - HEADER_BYTES:
            expected = partial.total - HEADER_BYTES
            raise _fault("data.inner", limit=expected, seen=length, detail="length of the inner frame")
        if frame_type not in INNER[self._role]:
            raise _fault("data.inner", seen=frame_type, detail="type of the inner frame")
        limit = payload_limit(frame_type, self._role, self._session, self._preset)
        if length > limit:
            raise RULES["header.len.limit"].error_at(offset=None, limit=limit, seen=length)
        return frame_type


def _fault(rule: str, *, limit: object = None, seen: object = None, detail: str = "") -> YetoError:
    return RULES[f"chunk.{rule}"].error_at(offset=None, limit=limit, seen=seen, detail=detail)
