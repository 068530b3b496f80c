"""One accepted socket: reading into the frame reader, and parting without losing the last words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from yeto_proto._generated.errors import YetoError
from yeto_proto._generated.messages import Message
from yeto_proto.chunks import Reassembler
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session
from yeto_syncer.shell.outbound import Stream
from yeto_syncer.shell.wires import Wire

READ_TURN = 1 << 20
"""Bytes read from one socket before the others get their turn."""

MESSAGE_COST = 4096
"""What a message counts in that turn: many small frames are much more work than their bytes."""

LINGER_S = 2.0
"""How long a socket stays open after its last frame, so that the peer can read that frame. Closing earlier,
with unread bytes of the peer in the receive buffer, would make the kernel discard it."""

RETIRE_S = 0.5
"""How long a data socket stays open after an ERROR about it went out on the control stream."""

SCRATCH = memoryview(bytearray(1 << 16))
"""Where the bytes of a peer that we no longer listen to go."""


class Owner(Protocol):
    """Whom a connection tells what happens."""

    loop: asyncio.AbstractEventLoop

    def greeted(self, conn: Connection, payload: memoryview) -> None:
        """The first frame is a HELLO, not parsed yet."""

    def arrived(self, conn: Connection, messages: Sequence[Message]) -> None:
        """Whole messages, in order."""

    def broken(self, conn: Connection, error: YetoError) -> None:
        """The reader refused bytes. Nothing more is read from this socket."""

    def ended(self, conn: Connection) -> None:
        """End of stream or a socket error."""

    def writable(self, conn: Connection) -> None:
        """The socket takes bytes again."""

    def closed(self, conn: Connection) -> None:
        """The socket is closed; its number of descriptors went down."""


class Connection:
    """One socket. Its owner decides what the messages mean and what is written when."""

    def __init__(self, number: int, wire: Wire, peer: str, reader: FrameReader, owner: Owner) -> None:
        self.number = number
        self.wire = wire
        self.peer = peer
        self.reader = reader
        self.blocked = False
        self.stalled_since: float | None = None
        self.is_closed = False
        self._owner = owner
        self._holds: set[str] = {"new"}
        self._reading = False
        self._last: Stream | None = None
        self._finishes = True
        self._companions: list[Connection] = []
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Closed, or only sending its last words: nothing that it says counts any more."""
        return self.is_closed or self._last is not None

    # -- reading

    def hold(self, reason: str) -> None:
        """Stop reading until `release` was called for every reason to hold."""
        self._holds.add(reason)
        self._watch()

    def release(self, reason: str) -> None:
        """One reason to hold has gone."""
        self._holds.discard(reason)
        self._watch()

    def _watch(self) -> None:
        wanted = not self.is_closed and not self._holds
        if wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._owner.loop.add_reader(self.wire.fileno(), self._readable)
            if self.wire.pending:
                self._owner.loop.call_soon(self._readable)
        else:
            self._owner.loop.remove_reader(self.wire.fileno())

    def _readable(self) -> None:
        self._read_turn()
        if self.wire.unsent:
            self.watch_writable(True)
        if self._reading and self.wire.pending:  # the kernel will not tell us of these bytes
            self._owner.loop.call_soon(self._readable)

    def _read_turn(self) -> None:
        left = READ_TURN
        while left > 0 and self._reading:
            view = SCRATCH if self._last is not None else self.reader.get_buffer()
            wanted = min(len(view), left)
            try:
                count = self.wire.recv_into(view[:wanted])
            except OSError:
                count = 0
            if count is None:
                return
            if count == 0:
                self._end()
                return
            left -= count
            if self._last is None:
                left -= MESSAGE_COST * self._feed(partial(self.reader.buffer_updated, count))
            if count < wanted:
                return  # the kernel has no more; asking again would only tell us so

    def admit(self, session: Session, reassembler: Reassembler) -> None:
        """Go on after the first frame, as a socket of a group."""
        self._feed(lambda: self.reader.open(session, reassembler))
        self.release("admission")

    def proceed(self) -> None:
        """There is memory for the first frame now."""
        if self.is_over:
            return
        self._feed(self.reader.proceed)
        self.release("greeting")

    def _feed(self, read: Callable[[], list[Message]]) -> int:
        # Pass on what `read` returns or raises; the number of messages.
        try:
            messages = read()
        except YetoError as error:
            self._break(error)
            return 0
        if self.reader.waiting:
            self.hold("greeting")
        if self.reader.paused:
            self.hold("admission")
            if self.reader.hello_payload is not None:
                self._owner.greeted(self, self.reader.hello_payload)
        if messages:
            self._owner.arrived(self, messages)
        if self.reader.failure is not None:
            self._break(self.reader.failure)
        return len(messages)

    def _break(self, error: YetoError) -> None:
        self.hold("broken")
        self._owner.broken(self, error)

    def _end(self) -> None:
        if self._last is None:
            self.hold("ended")
            self._owner.ended(self)
        else:
            self.close()

    # -- writing

    def watch_writable(self, wanted: bool) -> None:
        """Ask to be told when the socket takes bytes again."""
        if wanted == self.blocked or self.is_closed:
            return
        self.blocked = wanted
        if wanted:
            self._owner.loop.add_writer(self.wire.fileno(), self._writable)
        else:
            self._owner.loop.remove_writer(self.wire.fileno())

    def _writable(self) -> None:
        self.watch_writable(False)
        if self._last is None:
            self._owner.writable(self)
        else:
            self._send_last()
        if self.wire.unsent and not self.blocked and not self.is_closed:
            self._flush()

    def _flush(self) -> None:
        # What TLS itself has to say; everything else waits with its owner.
        try:
            self.wire.flush()
        except OSError:
            self._end()
        else:
            self.watch_writable(self.wire.unsent)

    # -- parting

    def part(
        self,
        last: Stream,
        companions: Sequence[Connection] = (),
        linger: float = LINGER_S,
        finish: bool = True,
    ) -> None:
        """Send what is left in `last`, tell the peer that this was all (`finish`), and close when it has
        closed too or after `linger` seconds. `companions` are closed with it: a peer that sees one of them
        end first would take that for a broken line and never read the last frame."""
        if self.is_closed:
            return
        self._last = last
        self._finishes = finish
        self._companions = list(companions)
        for companion in companions:
            companion.hold("parting")
        self._holds.clear()
        self._watch()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._owner.loop.call_later(linger, self.close)
        self._send_last()

    def retire(self) -> None:
        """Hear and say nothing more, and close when the peer had time to read what it is told elsewhere."""
        if self.is_over:
            return
        self.part(Stream(), linger=RETIRE_S, finish=False)

    def _send_last(self) -> None:
        last = self._last
        assert last is not None
        while buffers := last.take():
            try:
                count = self.wire.send(buffers)
            except OSError:
                self.close()
                return
            if count is None:
                self.watch_writable(True)
                return
            last.advance(count)
        if self._finishes:
            self.wire.finish()

    def close(self) -> None:
        """Close the socket at once. Closing twice is fine."""
        if self.is_closed:
            return
        self.watch_writable(False)
        self.is_closed = True
        self._watch()
        if self._deadline is not None:
            self._deadline.cancel()
        self.wire.close()
        self._owner.closed(self)
        for companion in self._companions:
            companion.close()
