"""The runner's end of connection groups: their sockets, what came from them, and how bytes are cut."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from yeto_proto._generated.messages import (
    BcastFragment,
    Error,
    FinalFragment,
    Hello,
    InitParams,
    Message,
    PushFragment,
)
from yeto_proto._generated.types import Role
from yeto_proto.chunks import Reassembler
from yeto_proto.errors_base import YetoError
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session

from .links import SETTLE_S, Arrival, Links
from .verdict import BrokenError, FailError

__all__ = ["Group", "Link", "Wire"]

BYTE_CUT: Final = 4096  # bytes that the cut "bytes" writes one by one; the rest follows whole
DRAIN_S: Final = 2.0  # how long a peer may take to end after the runner has
POLL_S: Final = 0.25  # the longest wait for bytes in one go
STALL_S: Final = 1.0  # a wait that takes longer than this was the runner's, not the peer's
_BULK: Final = (InitParams, PushFragment, BcastFragment, FinalFragment)


class Link:
    """One socket of a group. `first` is the frame that opened it, where the peer dialled."""

    def __init__(self, sock: socket.socket, reader: FrameReader) -> None:
        sock.setblocking(True)
        sock.settimeout(20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.reader = reader
        self.first: Message | None = None
        self.ended: str | None = None  # how the peer ended it
        self.closed = False  # by the runner
        self.ended_at = 0.0  # when the runner saw that
        self.held: list[bytes] = []  # coalesced bytes that were not written yet
        self.labels: list[str] = []  # of the steps that they belong to


class Group:
    """A connection group: its sockets by number, and what came that no step has taken yet."""

    def __init__(self, name: str, role: Role, session: Session) -> None:
        self.name = name
        self.session = session
        self.reassembler = Reassembler(role, session)
        self.links: dict[int, Link] = {}
        self.control: deque[Arrival] = deque()
        self.bulk: dict[tuple[str, int], deque[Arrival]] = defaultdict(deque)
        self.error: Error | None = None
        self.error_at = 0.0  # when it came
        self.hello: Hello | None = None

    def add(self, arrival: Arrival) -> None:
        """Sort a message to where steps look for it."""
        message = arrival.message
        if isinstance(message, _BULK):
            self.bulk[message.frame_type.name, message.fragment_id].append(arrival)
        elif isinstance(message, Error) and self.error is None:
            self.error, self.error_at = message, arrival.when
        else:
            self.control.append(arrival)

    @property
    def ended(self) -> bool:
        """Whether its control socket ended."""
        return 0 in self.links and self.links[0].ended is not None

    @property
    def over(self) -> bool:
        """Whether all of its sockets ended."""
        return all(link.closed or link.ended is not None for link in self.links.values())


class Wire:
    """All sockets of one case. `note` gets one line for each thing that happens."""

    def __init__(self, role: Role, session: Session, cut: str, note: Callable[[str], None]) -> None:
        self.role, self.session, self.cut, self.note = role, session, cut, note
        self.groups: dict[str, Group] = {}
        self.fresh: list[Link] = []  # accepted, and not claimed by a step yet
        self.listener: socket.socket | None = None
        self.on_message: Callable[[Group, Message], None] = lambda group, message: None
        self.links = Links()
        self._began: float | None = None  # when the first socket opened
        self._lost = 0.0  # seconds that the runner was held up
        self._selector = selectors.DefaultSelector()
        self._owners: dict[Link, Group] = {}

    # -- opening

    def group(self, name: str) -> Group:
        if name not in self.groups:
            self.groups[name] = Group(name, self.role, self.session)
        return self.groups[name]

    def dial(self, name: str, number: int, port: int) -> None:
        """Connect a socket of a group."""
        group = self.group(name)
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        except OSError as error:
            raise FailError(f"no connection to 127.0.0.1:{port}: {error}") from None
        reader = FrameReader(self.role, self.session, reassembler=group.reassembler)
        self._own(Link(sock, reader), group, number)

    def listen(self) -> int:
        """Take connections on a free loopback port, whose number is returned."""
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._selector.register(self.listener, selectors.EVENT_READ, None)
        return int(self.listener.getsockname()[1])

    def claim(self, name: str, number: int, fits: Callable[[Message], bool]) -> Link:
        """Take an accepted socket whose first frame fits as a socket of a group."""
        link = next(link for link in self.fresh if link.first is not None and fits(link.first))
        assert link.first is not None
        self.fresh.remove(link)
        group = self.group(name)
        if isinstance(link.first, Hello):
            group.hello = link.first
            group.session = Session.from_hello(link.first)
            group.reassembler = Reassembler(self.role, group.session)
        self._own(link, group, number)
        self._take(link, link.reader.open(group.session, group.reassembler))
        return link

    def _own(self, link: Link, group: Group, number: int) -> None:
        self._began = self._began or self.clock()
        group.links[number] = link
        self._owners[link] = group
        self._selector.register(link.sock, selectors.EVENT_READ, link)

    # -- sending

    def link(self, on: str) -> Link:
        name, _, number = on.partition(".")
        group = self.groups.get(name)
        if group is None or int(number or 0) not in group.links:
            raise BrokenError(f"the trace uses {on} before it is open")
        return group.links[int(number or 0)]

    def settle(self) -> None:
        """Take what is there, and what comes in a moment: so late that what should not come would have."""
        self.flush()
        least, most = SETTLE_S
        so_far = 0.0 if self._began is None else self.clock() - self._began
        self.holds(lambda: False, min(max(so_far, least), most))

    def send(self, on: str, parts: Sequence[bytes], label: str | None = None) -> None:
        """Write the bytes of a step. A peer that has closed already shows at a later step."""
        link = self.link(on)
        labels = [] if label is None else [label]
        if self.cut == "coalesced":
            link.held += parts
            link.labels += labels
            return
        self._mark(labels)
        if self.cut == "fields":
            pieces: Iterable[bytes] = parts
        elif self.cut == "bytes" and sum(map(len, parts)) <= BYTE_CUT:
            data = b"".join(parts)
            pieces = (data[at : at + 1] for at in range(len(data)))
        else:
            pieces = (b"".join(parts),)
        self._write(link, pieces)

    def _mark(self, labels: Iterable[str]) -> None:
        for label in labels:
            self.links.sent(label)

    def _write(self, link: Link, pieces: Iterable[bytes]) -> None:
        try:
            for piece in pieces:
                link.sock.sendall(piece)
        except TimeoutError:
            raise FailError("the peer has taken no bytes for 20 s") from None
        except OSError as error:
            self.note(f"  the peer took no more bytes: {error.strerror}")

    def flush(self) -> None:
        """Write what was held to be coalesced."""
        for link in [*self._owners]:
            if link.held and not link.closed:
                held, link.held = link.held, []
                labels, link.labels = link.labels, []
                self._mark(labels)
                self._write(link, [b"".join(held)])

    def close(self, on: str, *, reset: bool = False) -> None:
        """The runner ends a socket, or all of a group."""
        self.flush()
        name, _, number = on.partition(".")
        links = self.groups[name].links
        ending = [links[int(number)]] if number else list(links.values())
        if not reset:
            self._drain(ending)
        for link in ending:
            self._close(link, reset=reset)

    def _drain(self, links: Sequence[Link]) -> None:
        """Say that nothing more comes, and take what the peer still sends until it ends too. Closing a socket
        with unread bytes resets it, and a peer that is writing could see that before the ERROR."""
        open_links = [link for link in links if not link.closed]
        for link in open_links:
            with contextlib.suppress(OSError):  # it has gone already
                link.sock.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + DRAIN_S
        for link in open_links:
            with contextlib.suppress(OSError):  # a reset, or the time is over
                link.sock.settimeout(max(deadline - time.monotonic(), 0.01))
                while link.sock.recv(1 << 16):
                    link.sock.settimeout(max(deadline - time.monotonic(), 0.01))

    def _close(self, link: Link, *, reset: bool = False) -> None:
        if link.closed:
            return
        link.closed = True
        if link.sock in self._selector.get_map():
            self._selector.unregister(link.sock)
        if reset:
            link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        link.sock.close()

    def close_all(self) -> None:
        """End everything."""
        for link in [*self._owners, *self.fresh]:
            self._close(link)
        if self.listener is not None:
            self.listener.close()
        self._selector.close()

    # -- receiving

    def clock(self) -> float:
        """Seconds that do not pass while the runner itself is held up on a busy machine."""
        return time.monotonic() - self._lost

    def holds(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Read until the condition holds, or the time is over."""
        self.flush()
        deadline = self.clock() + timeout
        while not condition():
            left = deadline - self.clock()
            started = time.monotonic()
            for key, _ in self._selector.select(max(0.0, min(left, POLL_S))):
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
            took = time.monotonic() - started
            if took > STALL_S:
                self._lost += took - POLL_S
            elif left <= 0:
                return condition()
        return True

    def take(self) -> None:
        """Read what has arrived, without waiting for more."""
        while ready := [key for key, _ in self._selector.select(0) if key.data is not None]:
            for key in ready:
                self._read(key.data)

    def _accept(self) -> None:
        assert self.listener is not None
        sock, _ = self.listener.accept()
        link = Link(sock, FrameReader(Role.SYNCER))
        self.fresh.append(link)
        self._selector.register(link.sock, selectors.EVENT_READ, link)

    def _read(self, link: Link) -> None:
        try:
            count = link.sock.recv_into(link.reader.get_buffer())
        except OSError as error:
            self._over(link, f"reset ({error.strerror})")
            return
        except YetoError as error:
            raise FailError(f"it sent bytes that break a rule: {error}") from None
        if count == 0:
            self._over(link, "closed")
            return
        try:
            self._take(link, link.reader.buffer_updated(count))
        except YetoError as error:
            raise FailError(f"it sent bytes that break a rule: {error}") from None
        if link.reader.paused:  # until a step claims it
            self._selector.unregister(link.sock)

    def _take(self, link: Link, messages: Iterable[Message]) -> None:
        for message in messages:
            group = self._owners.get(link)
            if group is None:
                link.first = message
                self.note(f"< a new connection: {message.frame_type.name}")
                continue
            self.note(f"< {group.name}: {brief(message)}")
            group.add(self.links.arrived(message, self.clock(), link))
            self.on_message(group, message)

    def _over(self, link: Link, how: str) -> None:
        link.ended, link.ended_at = how, self.clock()
        self._selector.unregister(link.sock)
        group = self._owners.get(link)
        if group is not None:
            number = next(number for number, each in group.links.items() if each is link)
            self.note(f"< {group.name}.{number}: {how}")


def brief(message: Message) -> str:
    """One line about a message."""
    small = (int, str, tuple)
    shown = [
        f"{name}={getattr(message, name)}"
        for name in message.__slots__
        if isinstance(getattr(message, name), small)
    ]
    return f"{message.frame_type.name} {' '.join(shown)}".strip()
