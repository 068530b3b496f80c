"""A syncer that does only what a test tells it to, on raw loopback sockets.

It admits every HELLO, sorts sockets into groups, and hands each received message to the test; the test sends
what it likes, on the stream it likes.  Every wait has a bound and ends with an assertion that says what did
not come.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from yeto_proto._generated import messages as wire
from yeto_proto._generated.messages import Buffer, Message
from yeto_proto._generated.types import Role
from yeto_proto.chunks import Reassembler, slices
from yeto_proto.codec import encode
from yeto_proto.errors_base import YetoError
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session

__all__ = ["WAIT", "Peer", "ScriptedSyncer"]

WAIT = 90.0  # seconds that a test waits for something that must come
QUIET = 0.2  # seconds of silence that count as "nothing was sent"

M = TypeVar("M", bound=Message)


class Peer:
    """One connection group of the client under test, seen from the syncer."""

    def __init__(self, hello: wire.Hello, hello_bytes: bytes) -> None:
        self.hello = hello
        self.hello_bytes = hello_bytes
        self.session = Session.from_hello(hello)
        self.reassembler = Reassembler(Role.SYNCER, self.session)
        self.lock = threading.Lock()
        self.inbox: queue.Queue[Message] = queue.Queue()
        self.streams: dict[int, socket.socket] = {}  # 0 is the control stream
        self.accepted: dict[int, int] = {}  # the number of each stream's socket in the order of their arrival
        self.data_hellos: list[bytes] = []
        self.reading = threading.Event()  # cleared: no byte is taken from the sockets
        self.reading.set()
        self.ended = threading.Event()  # a socket of the group reached its end
        self.announced = False
        self.abort = False
        self._messages = 0

    @property
    def complete(self) -> bool:
        return len(self.streams) == 1 + self.hello.num_streams

    def send(self, message: Message, stream: int = 0) -> None:
        """Send a bare frame."""
        self.send_bytes(b"".join(encode(message)), stream)

    def send_bytes(self, data: bytes, stream: int = 0) -> None:
        self.streams[stream].sendall(data)

    def send_chunked(self, message: Message, *, order: Callable[[list[bytes]], list[bytes]] = list) -> None:
        """Send a message in chunks, striped over the data streams (stream 0 if there are none)."""
        chunks = [b"".join(chunk) for chunk in slices(message, self._messages)]
        self._messages += 1
        for number, chunk in enumerate(order(chunks)):
            streams = self.hello.num_streams
            self.send_bytes(chunk, 1 + number % streams if streams else 0)

    def broadcast(self, fragment: int, version: int, tensor: Buffer) -> None:
        self.send_chunked(wire.BcastFragment(fragment, version, tensor))

    def expect(self, kind: type[M], timeout: float = WAIT) -> M:
        """The next message, which must be of this kind; heartbeats are passed over unless asked for."""
        while True:
            try:
                message = self.inbox.get(timeout=timeout)
            except queue.Empty:
                raise AssertionError(f"no {kind.__name__} came within {timeout:g} s") from None
            if isinstance(message, kind):
                return message
            assert isinstance(message, wire.Heartbeat), f"{message!r} came instead of {kind.__name__}"

    def expect_nothing(self, timeout: float = QUIET) -> None:
        """Nothing but heartbeats arrives for a moment."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self.inbox.get(timeout=timeout)
                assert isinstance(message, wire.Heartbeat), f"{message!r} came"

    def close(self) -> None:
        """Close all sockets in an orderly way."""
        for stream in list(self.streams):
            self.close_stream(stream)

    def close_stream(self, stream: int) -> None:
        # A plain close() would not end the connection while a thread waits in recv.
        with contextlib.suppress(OSError):
            self.streams[stream].shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Cut all connections off with a TCP reset."""
        self.abort = True
        for stream in list(self.streams.values()):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RD)  # wakes the serving thread, whose close() then resets


class ScriptedSyncer:
    """Listens on a free loopback port.

    `on_message(peer, message)` may answer at once, on the receiving thread; what it returns true for does not
    reach the inbox.  `wrap` turns an accepted socket into another one (TLS); `receive_buffer` bounds what the
    kernel takes.
    """

    def __init__(
        self,
        on_message: Callable[[Peer, Message], bool] | None = None,
        *,
        port: int = 0,
        wrap: Callable[[socket.socket], socket.socket] | None = None,
        receive_buffer: int | None = None,
        key: bytes | None = None,
        admit: Callable[[Peer], None] | None = None,
    ) -> None:
        self._on_message = on_message
        self._wrap = wrap
        self._key = key
        self._admit = admit
        # Keeps the port from everybody else when nobody listens on it any more.
        self._placeholder = socket.socket()
        self._placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._placeholder.bind(("127.0.0.1", port))
        self.port: int = self._placeholder.getsockname()[1]
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(64)
        self.address = f"127.0.0.1:{self.port}"
        self._changed = threading.Condition()
        self._peers: dict[tuple[int, int], Peer] = {}
        self._complete: queue.Queue[Peer] = queue.Queue()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.accepted = 0
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            sockets = list(self._sockets)
            peers = list(self._peers.values())
            self._changed.notify_all()
        for peer in peers:
            peer.reading.set()
        for each in (self._listener, *sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive(), "a thread of the scripted syncer hangs"
        for each in (self._listener, self._placeholder, *sockets):
            each.close()

    def stop_listening(self) -> None:
        """From now on connections are refused."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(WAIT)
        self._listener.close()

    def next_peer(self, timeout: float = WAIT) -> Peer:
        """The next connection group, with all its sockets."""
        try:
            return self._complete.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no connection group came within {timeout:g} s") from None

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if self._closed:
                    accepted.close()
                    return
                self._sockets.append(accepted)
                self.accepted += 1
                number = self.accepted
            self._start(self._serve, accepted, number)

    def _serve(self, sock: socket.socket, number: int) -> None:
        if self._wrap is not None:
            try:
                wrapped = self._wrap(sock)
            except OSError:
                return
            with self._changed:
                self._sockets[self._sockets.index(sock)] = wrapped
            sock = wrapped
        reader = FrameReader(Role.SYNCER, key=self._key)
        peer: Peer | None = None
        try:
            peer = self._open(sock, reader, number)
            if peer is not None:
                self._receive(sock, reader, peer)
        except (OSError, YetoError):
            sock.close()
        finally:
            if peer is not None:
                if peer.abort:
                    sock.close()
                peer.ended.set()

    def _open(self, sock: socket.socket, reader: FrameReader, number: int) -> Peer | None:
        """Read the greeting; the group that the socket joined."""
        seen = bytearray()
        while True:
            buffer = reader.get_buffer()
            count = sock.recv_into(buffer)
            if count == 0:
                return None
            seen += buffer[:count]
            for message in reader.buffer_updated(count):
                peer = self._greet(sock, message, bytes(seen), number)
                if peer is not None:
                    with peer.lock:
                        rest = reader.open(peer.session, peer.reassembler)
                    self._joined(peer)
                    for each in rest:
                        self._deliver(peer, each)
                return peer

    def _receive(self, sock: socket.socket, reader: FrameReader, peer: Peer) -> None:
        while True:
            peer.reading.wait()
            count = sock.recv_into(reader.get_buffer())
            if count == 0:
                return
            with peer.lock:
                messages = reader.buffer_updated(count)
            for message in messages:
                self._deliver(peer, message)

    def _greet(self, sock: socket.socket, message: Message, seen: bytes, number: int) -> Peer | None:
        with self._changed:
            if isinstance(message, wire.Hello):
                peer = Peer(message, seen)
                peer.streams[0] = sock
                peer.accepted[0] = number
                self._peers[message.learner_id, message.connection_generation] = peer
            else:
                assert isinstance(message, wire.DataHello)
                link = message.learner_id, message.connection_generation
                if (
                    not self._changed.wait_for(lambda: link in self._peers or self._closed, WAIT)
                    or self._closed
                ):
                    return None
                peer = self._peers[link]
                peer.streams[1 + message.stream_idx] = sock
                peer.accepted[1 + message.stream_idx] = number
                peer.data_hellos.append(seen)
            self._changed.notify_all()
            return peer

    def _joined(self, peer: Peer) -> None:
        with self._changed:
            if not peer.complete or peer.announced:
                return
            peer.announced = True
        if self._admit is not None:
            self._admit(peer)
        self._complete.put(peer)

    def _deliver(self, peer: Peer, message: Message) -> None:
        if self._on_message is None or not self._on_message(peer, message):
            peer.inbox.put(message)
