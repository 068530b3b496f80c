"""What one learner's sockets still have to send, and in which order. No sockets and no clock in here.

Small frames go to the control stream, first in, first out. Bulk messages (BCAST_FRAGMENT, FINAL_FRAGMENT)
wait in one line per connection group; the one in front is cut into CHUNK frames that are dealt to the
attached data streams in turn, or to the control stream when none is attached (D8). Data sockets come a
moment after the HELLO that announced them, so bulk waits for them, until the owner calls `wait_no_more`.
Only a few chunks are cut ahead of the kernel, so a slow reader holds references to arrays that exist anyway,
and a newer version can still replace an older one that has not started (D13).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from yeto_proto._generated.messages import BcastFragment, Buffer, FinalFragment, Message
from yeto_proto._generated.types import FrameType
from yeto_proto.chunks import slices
from yeto_proto.writer import advance, frame

CONTROL = -1
"""The key of the control stream; data streams have their stream_idx, which starts at 0."""

STREAM_DEPTH = 2
"""Chunks cut ahead for one stream: one in the hands of the kernel and one ready behind it."""

VECTOR_LIMIT = 256
"""Buffers handed to one vectored write. Linux takes 1024; more than this only makes lists longer."""


class Payload(Protocol):
    """One version of a fragment as the wire carries it, shared by every group that sends it."""

    fragment_id: int
    version: int
    final: bool

    @property
    def ready(self) -> bool:
        """Whether `message` may be called."""

    def want(self, wake: Callable[[], None]) -> None:
        """Start encoding it if that has not happened, and call `wake` once it is ready."""

    def message(self) -> BcastFragment | FinalFragment:
        """The message; only when `ready`."""

    def retain(self) -> None:
        """One more group will send it."""

    def release(self) -> None:
        """One group has sent it, or will not."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One delivery to one group, and how many of its messages are still to be sent."""

    token: int | None
    left: int


@dataclass(slots=True, eq=False)
class Entry:
    """One bulk message on its way. A newer version of the fragment may take over the place and the tickets
    of an older one that has not started."""

    payload: Payload
    tickets: list[Ticket]
    attempt: int = 0
    unsent: int = 0
    cut: bool = False


@dataclass(slots=True, eq=False)
class Item:
    """One frame on a stream, as buffers of which `left` bytes are not yet taken by the kernel."""

    buffers: list[Buffer]
    left: int
    entry: Entry | None = None
    attempt: int = 0
    started: bool = False


@dataclass(slots=True, eq=False)
class Stream:
    """The frames queued for one socket."""

    items: deque[Item] = field(default_factory=deque)
    chunks: int = 0
    small_bytes: int = 0

    def put(self, buffers: list[Buffer], entry: Entry | None = None) -> int:
        """Queue one frame: a small one, or a chunk of `entry`. Returns its bytes."""
        size = sum(len(buffer) for buffer in buffers)
        self.items.append(Item(buffers, size, entry, entry.attempt if entry else 0))
        if entry is None:
            self.small_bytes += size
        else:
            self.chunks += 1
        return size

    def take(self) -> list[Buffer]:
        """What to hand to the next vectored write; empty when there is nothing to send."""
        items = self.items
        if len(items) == 1:
            return items[0].buffers[:VECTOR_LIMIT]
        buffers: list[Buffer] = []
        for item in items:
            buffers += item.buffers
            if len(buffers) >= VECTOR_LIMIT:
                break
        return buffers[:VECTOR_LIMIT]

    def advance(self, count: int) -> list[Item]:
        """The kernel took `count` bytes of what `take` gave; returns the frames that are now complete."""
        finished: list[Item] = []
        while count:
            item = self.items[0]
            taken = min(count, item.left)
            count -= taken
            if item.entry is None:
                self.small_bytes -= taken
            if taken < item.left:
                advance(item.buffers, taken)
                item.left -= taken
                item.started = True
                break
            finished.append(self.items.popleft())
            if item.entry is not None:
                self.chunks -= 1
        return finished

    def drop_chunks(self) -> None:
        """Forget the chunks of which no byte has left; a frame that was begun must be completed."""
        self.items = deque(item for item in self.items if item.started or item.entry is None)
        self.chunks = sum(item.entry is not None for item in self.items)


Cutter = Callable[[BcastFragment | FinalFragment, int], Iterator[list[Buffer]]]


class Outbound:
    """The outbound side of one connection group.

    `wake` is called (on the event loop) when a payload that the group waited for has been encoded.
    `control_limit` bounds the bytes of small frames that may wait. `announced` is how many data streams are
    to come: bulk starts when all of them are attached, or `wait_no_more` was called. `tell` hears of each
    frame that is queued for a stream: the type of its message, and its bytes.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        control_limit: int,
        cutter: Cutter = slices,
        tell: Callable[[FrameType, int], None] = lambda kind, size: None,
        announced: int = 0,
    ) -> None:
        self._wake = wake
        self._awaited = announced
        self._tell = tell
        self._control_limit = control_limit
        self._cutter = cutter
        self._streams: dict[int, Stream] = {CONTROL: Stream()}
        self._waiting: dict[tuple[int, int], Entry] = {}
        self._front: deque[Entry] = deque()
        self._current: Entry | None = None
        self._chunks: Iterator[list[Buffer]] = iter(())
        self._targets: list[int] = []
        self._turn = 0
        self._msg_id = 0
        self._serial = 0
        self._finished: list[Ticket] = []
        self._closed = False

    # -- what to send

    def send(self, message: Message) -> bool:
        """Queue a small frame on the control stream; False when the group has fallen too far behind."""
        if self._closed:
            return True
        control = self._streams[CONTROL]
        self._tell(message.frame_type, control.put(frame(message)))
        return control.small_bytes <= self._control_limit

    def deliver(self, payloads: Sequence[Payload], token: int | None) -> None:
        """Queue bulk messages. When the last byte of all of them has gone, `delivered` returns the token."""
        if self._closed:
            return
        ticket = Ticket(token, len(payloads))
        for payload in payloads:
            payload.retain()
            key = (payload.fragment_id, -1)
            if payload.final:
                self._serial += 1
                key = (payload.fragment_id, self._serial)
            older = self._waiting.get(key)
            if older is None:
                self._waiting[key] = Entry(payload, [ticket])
                continue
            older.tickets.append(ticket)
            if payload.version >= older.payload.version:
                older.payload, payload = payload, older.payload
            payload.release()
        if not payloads:
            self._finished.append(ticket)

    def left(self, token: int) -> int | None:
        """Messages of a delivery that have not left yet; None when it is over."""
        entries = [*self._waiting.values(), *self._front]
        if self._current is not None:
            entries.append(self._current)
        for stream in self._streams.values():
            entries += [item.entry for item in stream.items if item.entry is not None]
        return next((t.left for entry in entries for t in entry.tickets if t.token == token), None)

    @property
    def depth(self) -> tuple[int, int]:
        """Bulk messages that have not been cut to the end, and bytes of small frames that wait."""
        messages = len(self._waiting) + len(self._front) + (self._current is not None)
        return messages, self._streams[CONTROL].small_bytes

    def delivered(self) -> list[int]:
        """Tokens of the deliveries that were completely handed to the kernel since the last call."""
        tokens = [ticket.token for ticket in self._finished if ticket.token is not None]
        self._finished.clear()
        return tokens

    # -- streams

    def attach(self, stream_idx: int) -> None:
        """A data socket has joined; messages that start from now on use it."""
        self._streams[stream_idx] = Stream()
        if len(self._streams) > self._awaited:  # one of them is the control stream
            self._awaited = 0

    def wait_no_more(self) -> None:
        """Go on with the streams that are attached, whatever was announced."""
        self._awaited = 0

    def detach(self, stream_idx: int) -> None:
        """A data socket has gone. A message of which it still held a part can never be completed by its
        receiver, so it starts again as a new message on the streams that are left."""
        lost = self._streams.pop(stream_idx, None)
        if lost is None:
            return
        broken = [item.entry for item in lost.items if item.entry and item.attempt == item.entry.attempt]
        if self._current is not None and stream_idx in self._targets:
            broken.append(self._current)
            self._current = None
        for entry in reversed(dict.fromkeys(broken)):
            entry.attempt += 1
            entry.unsent = 0
            entry.cut = False
            newer = self._waiting.get((entry.payload.fragment_id, -1)) if not entry.payload.final else None
            if newer is None:
                self._front.appendleft(entry)
            else:
                newer.tickets += entry.tickets
                entry.payload.release()

    def next(self, stream: int) -> list[Buffer]:
        """Buffers for the next vectored write to a stream, after cutting what its turn allows."""
        self._fill()
        return self._streams[stream].take()

    def sent(self, stream: int, count: int) -> None:
        """The kernel took `count` bytes of what `next` gave for this stream."""
        for item in self._streams[stream].advance(count):
            entry = item.entry
            if entry is None:
                continue
            if item.attempt == entry.attempt:
                entry.unsent -= 1
                self._settle(entry)

    def partial(self, stream: int) -> bool:
        """Whether the kernel took only a part of what `next` gave, so that it is full."""
        items = self._streams[stream].items
        return bool(items) and items[0].started

    @property
    def streams(self) -> list[int]:
        """Keys of the streams, the control stream first."""
        return sorted(self._streams)

    @property
    def idle(self) -> bool:
        """Nothing waits, neither frames nor messages that have not started."""
        return not (
            self._current
            or self._waiting
            or self._front
            or any(stream.items for stream in self._streams.values())
        )

    def close(self, last: Message | None = None) -> Stream:
        """Give up all bulk that no socket has begun to send, and queue the last message, if there is one.

        Returns the control stream, whose small frames may still be sent before its socket is closed.
        """
        self._closed = True
        entries = [*self._waiting.values(), *self._front]
        if self._current is not None:
            entries.append(self._current)
        for stream in self._streams.values():
            entries += [i.entry for i in stream.items if i.entry and i.attempt == i.entry.attempt]
        for entry in dict.fromkeys(entries):
            entry.attempt += 1
            entry.payload.release()
        self._waiting.clear()
        self._front.clear()
        self._current = None
        control = self._streams[CONTROL]
        control.drop_chunks()
        self._streams = {CONTROL: control}
        if last is not None:
            control.put(frame(last))
        return control

    # -- inside

    def _fill(self) -> None:
        while self._current is not None or self._start():
            entry = self._current
            assert entry is not None
            stream = self._streams[self._targets[self._turn % len(self._targets)]]
            if stream.chunks >= STREAM_DEPTH:
                return
            buffers = next(self._chunks, None)
            if buffers is None:
                entry.cut = True
                self._current = None
                self._settle(entry)
                continue
            self._turn += 1
            entry.unsent += 1
            kind = FrameType.FINAL_FRAGMENT if entry.payload.final else FrameType.BCAST_FRAGMENT
            self._tell(kind, stream.put(buffers, entry))

    def _start(self) -> bool:
        """Take the next message from the line; False when there is none or it is still being encoded."""
        if self._front:
            entry = self._front[0]
        elif self._waiting:
            key = next(iter(self._waiting))
            entry = self._waiting[key]
        else:
            return False
        if not entry.payload.ready:
            entry.payload.want(self._wake)
            if not entry.payload.ready:
                return False
        if self._awaited:
            return False
        if self._front:
            self._front.popleft()
        else:
            del self._waiting[key]
        self._targets = [key for key in self.streams if key != CONTROL] or [CONTROL]
        self._chunks = self._cutter(entry.payload.message(), self._msg_id)
        self._msg_id += 1
        self._current = entry
        upcoming = next(iter(self._waiting.values()), None)
        if upcoming is not None and not upcoming.payload.ready:
            upcoming.payload.want(self._wake)  # encoded while this one is being sent
        return True

    def _settle(self, entry: Entry) -> None:
        if not entry.cut or entry.unsent:
            return
        entry.payload.release()
        for ticket in entry.tickets:
            ticket.left -= 1
            if ticket.left == 0:
                self._finished.append(ticket)
