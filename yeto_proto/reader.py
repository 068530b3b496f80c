"""Bytes of one socket to messages, without I/O.

The caller receives into `get_buffer()` and reports the number of bytes to `buffer_updated`, the shape of
`asyncio.BufferedProtocol`; a thread can do `reader.buffer_updated(sock.recv_into(reader.get_buffer()))`.

Small frames are gathered in a scratch buffer, so that one receive may bring many of them.  As soon as the
header of a large frame has been judged (for a CHUNK: its envelope too), the few bytes of it that are in the
scratch buffer move to where the frame belongs, and the socket writes the rest there directly: to a buffer of
the payload's own, or to its place in the reassembly buffer of the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import hello_mac
from ._generated.constants import CHUNK_HEAD_BYTES, HEADER_BYTES, MAGIC, WIRE, Preset
from ._generated.errors import BadArgument, InvalidFirstFrame, WrongState
from ._generated.limits import payload_limit
from ._generated.messages import Buffer, Hello, Message
from ._generated.rules import RULES
from ._generated.structs import CHUNK
from ._generated.types import FrameType, Role
from .chunks import Reassembler
from .codec import decode, parse_header
from .errors_base import YetoError
from .memory import Allocate, fresh
from .session import Session

# A full-size chunk leaves at most this much in the scratch buffer, 0.2 % of its bytes, and it still holds
# hundreds of control frames.
_SCRATCH: Final = 8192


class FrameReader:
    """Reads the frames that one side of one socket receives.

    A learner's reader has a session from the start.  A syncer's reader without one takes exactly one frame,
    HELLO or DATA_HELLO, and then pauses: bytes that came behind it wait until `open` says which session the
    peer was admitted to.

    Readers of all sockets of a connection group share one `reassembler`; a reader that is given none makes
    its own.  A reader belongs to one thread; how threads share a reassembler is said there.

    Messages that are complete before a fault are returned; the error is raised by the same call when there
    are none, otherwise by the next call of any method.  So call `get_buffer` again before waiting for the
    socket.  After an error the reader is dead and raises that error for good.

    `known` is a session that another connection fixed: a HELLO with the same layout bytes is not parsed
    again.  `key` is the key of the HELLO MAC, if the syncer has one.  With `defer_hello` a HELLO is not
    returned as a message; its payload waits in `hello_payload`, and the caller runs `decode_hello` where a
    long parse does no harm.  Large payloads of a session are received into memory that `allocate` gives.

    `grant`, if given, is asked before memory is taken for a first frame of so many bytes that is too large
    for the scratch buffer.  When it says no, the reader is `waiting`, and nothing can be received until
    `proceed`.
    """

    def __init__(
        self,
        role: Role,
        session: Session | None = None,
        *,
        reassembler: Reassembler | None = None,
        preset: Preset = WIRE,
        known: Session | None = None,
        key: bytes | None = None,
        defer_hello: bool = False,
        allocate: Allocate = fresh,
        grant: Callable[[int], bool] | None = None,
    ) -> None:
        if session is None and role is not Role.SYNCER:
            raise BadArgument(field="session", detail="a learner has a session before it receives anything")
        self._role = role
        self._preset = preset
        self._known = known
        self._key = key
        self._defer_hello = defer_hello
        self._allocate = allocate
        self._grant = grant
        self._waiting = False
        self._session: Session | None = None
        self._reassembler: Reassembler | None = None
        self._limits: dict[int, int] = {}
        self._hello_payload: memoryview | None = None
        self._paused = False
        self._failure: YetoError | None = None

        self._scratch = memoryview(bytearray(_SCRATCH))
        self._start = 0  # bytes start..end of the scratch buffer are received and not consumed
        self._end = 0
        self._frame_offset = 0
        self._frame_type: int | None = None  # of the current frame, when its header has been judged
        self._length = 0
        self._target: memoryview | None = None  # where the current frame's remaining bytes are received to
        self._filled = 0
        self._chunk = (0, 0)  # msg_id and offset of the current chunk
        self._slot: memoryview | None = None  # where its bytes belong, when its envelope has been judged
        if session is not None:
            self._admit(session, reassembler)

    @property
    def paused(self) -> bool:
        """The first frame is there and `open` was not called yet; nothing can be received."""
        return self._paused

    @property
    def waiting(self) -> bool:
        """There is no memory for the first frame yet; nothing can be received."""
        return self._waiting

    def proceed(self) -> list[Message]:
        """There is memory for the first frame now.  Returns and raises like `buffer_updated`, WrongState when
        the reader does not wait for this."""
        self._alive()
        if not self._waiting:
            raise WrongState(detail="the reader does not wait for memory")
        self._waiting = False
        self._grant = None
        return self._advance()

    @property
    def in_bulk(self) -> bool:
        """Whether the next bytes belong to a CHUNK or a bare BCAST_FRAGMENT whose header is already here."""
        return self._frame_type in (FrameType.CHUNK, FrameType.BCAST_FRAGMENT)

    @property
    def hello_payload(self) -> memoryview | None:
        """The payload of a deferred HELLO, until the reader is opened."""
        return self._hello_payload

    @property
    def failure(self) -> YetoError | None:
        """The error that this reader died of."""
        return self._failure

    @property
    def frame_offset(self) -> int:
        """Where the current frame, after an error the bad one, starts: bytes from the start of the stream."""
        return self._frame_offset

    def open(self, session: Session, reassembler: Reassembler | None = None) -> list[Message]:
        """Go on after the first frame, as a socket of a group in this session.

        Returns the messages that came behind the first frame already; raises like `buffer_updated`, and
        WrongState when the reader does not wait for this.
        """
        self._alive()
        if not self._paused:
            raise WrongState(detail="a reader is opened once, after its first frame")
        self._admit(session, reassembler)
        self._paused = False
        self._hello_payload = None
        return self._advance()

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where the next bytes of the stream go; never empty.  `sizehint` is ignored.

        Raises the error that an earlier call held back, and WrongState while the reader is paused.
        """
        self._alive()
        if self._paused or self._waiting:
            what = "to be opened" if self._paused else "for memory"
            raise WrongState(detail=f"the reader waits {what}")
        if self._target is not None:
            return self._target[self._filled :]
        return self._scratch[self._end :]

    def buffer_updated(self, nbytes: int) -> list[Message]:
        """`nbytes` were received into the buffer of the last `get_buffer`; return the messages now complete.

        Raises the WireError of the first rule that the bytes break; AuthenticationFailed for a HELLO without
        its MAC; BadArgument for a number that the buffer could not take.
        """
        room = len(self.get_buffer())
        if not 0 <= nbytes <= room:
            raise BadArgument(field="nbytes", detail="the buffer was smaller", limit=room, seen=nbytes)
        if self._target is not None:
            self._filled += nbytes
        else:
            self._end += nbytes
        return self._advance()

    def feed(self, data: Buffer) -> list[Message]:
        """Copy bytes in as if they were received; return the messages now complete.

        Raises like `buffer_updated`.  Bytes behind a first frame are kept until `open`, as many as the
        scratch buffer has room for, else WrongState.
        """
        messages: list[Message] = []
        rest = memoryview(data).cast("B")
        while rest and not self._paused and not self._waiting and (self._failure is None or not messages):
            room = self.get_buffer()[: len(rest)]
            room[:] = rest[: len(room)]
            rest = rest[len(room) :]
            try:
                messages += self.buffer_updated(len(room))
            except YetoError:
                if not messages:
                    raise
        if rest and (self._paused or self._waiting):
            if len(rest) > len(self._scratch) - self._end:
                raise WrongState(detail="the reader waits to be opened")
            self._scratch[self._end : self._end + len(rest)] = rest
            self._end += len(rest)
        return messages

    def eof(self) -> None:
        """The stream has ended.  Raises Truncated inside a frame, and an error that was held back."""
        self._alive()
        if self._paused:
            return
        inside = self._end > self._start or self._target is not None or self._slot is not None
        if inside:
            detail = f"the stream ended inside the frame that starts at its byte {self._frame_offset}"
            self._failure = RULES["header.len.complete"].error_at(offset=None, detail=detail)
            raise self._failure

    def _alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _admit(self, session: Session, reassembler: Reassembler | None) -> None:
        self._session = session
        self._reassembler = reassembler or Reassembler(
            self._role, session, self._preset, allocate=self._allocate
        )
        self._limits = {}

    def _advance(self) -> list[Message]:
        """Take all frames that are complete."""
        messages: list[Message] = []
        try:
            while not self._paused and self._step(messages):
                pass
        except YetoError as error:
            self._failure = error
            self._target = self._slot = None
            if not messages:
                raise
            return messages
        if self._start:
            left = self._end - self._start
            self._scratch[:left] = self._scratch[self._start : self._end]
            self._start, self._end = 0, left
        return messages

    def _step(self, messages: list[Message]) -> bool:
        """Take one frame; False when more bytes are needed for that."""
        if self._frame_type is None:
            if self._end - self._start < HEADER_BYTES:
                return False
            self._frame_type = self._judge_header()
        if self._frame_type == FrameType.CHUNK:
            if not self._take_chunk():
                return False
            assert self._reassembler is not None
            message = self._reassembler.commit(*self._chunk, self._length - CHUNK_HEAD_BYTES)
        else:
            payload = self._take_payload()
            if payload is None:
                return False
            message = self._decode(self._frame_type, payload)
        if message is not None:
            messages.append(message)
        self._frame_offset += HEADER_BYTES + self._length
        self._frame_type = self._target = self._slot = None
        return True

    def _judge_header(self) -> int:
        """Judge the header at the start of the scratch buffer; nothing is allocated for the payload yet."""
        magic, frame_type, length = parse_header(self._scratch[self._start : self._start + HEADER_BYTES])
        try:
            if magic != MAGIC:
                raise RULES["header.magic.must"].error_at(offset=None, limit=MAGIC, seen=magic)
            limit = self._limits.get(frame_type)
            if limit is None:
                limit = payload_limit(frame_type, self._role, self._session, self._preset)
                self._limits[frame_type] = limit
            if length > limit:
                raise RULES["header.len.limit"].error_at(offset=None, limit=limit, seen=length)
        except YetoError as error:
            if self._session is None and not isinstance(error, InvalidFirstFrame):
                error.prefix = "invalid first frame: "
            raise
        if frame_type == FrameType.CHUNK and length < CHUNK_HEAD_BYTES:
            raise RULES["chunk.payload.complete"].error_at(offset=length, limit=CHUNK_HEAD_BYTES, seen=length)
        self._length = length
        return frame_type

    def _take_chunk(self) -> bool:
        """Move the current chunk's bytes to their place in its message; False when some are missing."""
        if self._target is not None:
            return self._filled == len(self._target)
        if self._slot is None:
            if self._end - self._start < CHUNK.headed.size:
                return False
            assert self._reassembler is not None
            *_, msg_id, total, offset = CHUNK.headed.unpack_from(self._scratch, self._start)
            self._slot = self._reassembler.begin(msg_id, total, offset, self._length - CHUNK_HEAD_BYTES)
            self._chunk = msg_id, offset
            self._start += CHUNK.headed.size
        held, length = self._end - self._start, len(self._slot)
        if held >= length:
            self._slot[:] = self._scratch[self._start : self._start + length]
            self._start += length
            return True
        if length > _SCRATCH:
            self._receive_into(self._slot)
        return False

    def _take_payload(self) -> memoryview | None:
        """The payload of the current frame; None when some of it is missing."""
        if self._target is not None:
            return self._target if self._filled == self._length else None
        begin = self._start + HEADER_BYTES
        if self._end - begin >= self._length:
            # The scratch buffer will be written to again, and the message keeps views of its payload.
            payload = memoryview(bytes(self._scratch[begin : begin + self._length]))
            self._start = begin + self._length
            return payload
        if HEADER_BYTES + self._length > _SCRATCH:
            if self._session is None and self._grant is not None and not self._grant(self._length):
                self._waiting = True
                return None
            try:
                # A first frame is kept for as long as its session lives.
                buffer = (fresh if self._session is None else self._allocate)(self._length)
            except (MemoryError, ValueError):  # the latter for more than an address can count
                detail = "there is no memory for a payload of this size"
                raise RULES["header.len.limit"].error_at(
                    offset=None, seen=self._length, detail=detail
                ) from None
            self._start = begin
            self._receive_into(buffer)
        return None

    def _receive_into(self, place: memoryview) -> None:
        """From now on bytes are received to `place`, behind those of it that are in the scratch buffer."""
        held = self._end - self._start
        place[:held] = self._scratch[self._start : self._end]
        self._target, self._filled = place, held
        self._start = self._end = 0

    def _decode(self, frame_type: int, payload: memoryview) -> Message | None:
        if self._session is not None:
            return decode(frame_type, payload, self._session, self._role)
        self._paused = True
        if frame_type != FrameType.HELLO:
            return decode(frame_type, payload, None, self._role)
        if self._defer_hello:
            self._hello_payload = payload
            return None
        return decode_hello(payload, known=self._known, key=self._key)


def decode_hello(payload: Buffer, *, known: Session | None = None, key: bytes | None = None) -> Hello:
    """The HELLO of a payload.  With a key, its MAC is checked and taken off before anything is parsed.

    A payload of 16 MiB may take most of a second, unless its layout is that of the session `known`.
    """
    body = payload if key is None else hello_mac.open(payload, key)
    message = decode(FrameType.HELLO, body, known, Role.SYNCER)
    assert isinstance(message, Hello)
    return message
