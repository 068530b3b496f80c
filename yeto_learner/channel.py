"""One TCP or TLS connection to the syncer, for one receiving and one sending thread."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from yeto_proto._generated.messages import Buffer
from yeto_proto.writer import advance

__all__ = [
    "Address",
    "Channel",
    "PlainChannel",
    "TlsChannel",
    "address_text",
    "dial",
    "parse_address",
    "resolve",
]

Address = tuple[str, int]

DEFAULT_PORT: Final = 29400
ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")
KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 60),  # seconds of silence before the first probe
    ("TCP_KEEPINTVL", 15),  # seconds between probes
    ("TCP_KEEPCNT", 4),  # unanswered probes until the peer counts as dead
)
DIAL_SLICE: Final = 0.2  # seconds: how late a dial notices that it was cancelled
SENDMSG_BUFFERS: Final = 64  # buffers handed to the kernel in one call


def parse_address(address: str | Address) -> Address:
    """("host", port) from that, from "host:port", "[v6]:port" or "host" (port 29400).  Raises ValueError."""
    if isinstance(address, str):
        match = ADDRESS.fullmatch(address)
        if match is None:
            raise ValueError(f"syncer address {address!r} is not HOST:PORT")
        host, port = match["v6"] or match["host"], int(match["port"] or DEFAULT_PORT)
    else:
        host, port = address
    if not host or not 0 < port < 65536:
        raise ValueError(f"syncer address {address!r} is not HOST:PORT")
    try:
        valid = b"\0" not in host.encode("idna")  # as the resolver does, without a word that helps
    except UnicodeError:
        valid = False
    if not valid:
        raise ValueError(
            f"syncer address {address!r} is not HOST:PORT: {host!r} cannot be the name of a host"
        )
    return host, port


def address_text(address: Address) -> str:
    """HOST:PORT, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Channel:
    """A connected socket.  One thread calls `recv_into`, one calls `send_all`, any may call `shutdown`."""

    def recv_into(self, view: memoryview) -> int:
        """Receive at least one byte into `view`; 0 at the end of the stream.  Raises OSError."""
        raise NotImplementedError

    def send_all(self, buffers: list[Buffer]) -> None:
        """Send all buffers in order; the list is emptied.  Raises OSError."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Wake up both threads: receiving ends, sending fails.  The descriptor stays until `close`."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the descriptor back."""
        raise NotImplementedError


class PlainChannel(Channel):
    """TCP: a blocking socket, which the kernel lets two threads use at once."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock

    def recv_into(self, view: memoryview) -> int:
        return self._sock.recv_into(view)

    def send_all(self, buffers: list[Buffer]) -> None:
        while buffers and not advance(buffers, self._sock.sendmsg(buffers[:SENDMSG_BUFFERS])):
            pass

    def shutdown(self) -> None:
        with contextlib.suppress(OSError):  # the peer may have gone first
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


class TlsChannel(Channel):
    """TLS over a non-blocking socket: an SSL object is not for two threads at once, so each call takes the
    lock, and waiting for the network happens outside of it."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()

    def recv_into(self, view: memoryview) -> int:
        while True:
            try:
                with self._lock:
                    return self._sock.recv_into(view)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except ssl.SSLEOFError:
                return 0

    def send_all(self, buffers: list[Buffer]) -> None:
        while buffers:
            try:
                with self._lock:
                    sent = self._sock.send(buffers[0])
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            else:
                advance(buffers, sent)

    def _wait(self, event: int) -> None:
        poller = select.poll()
        poller.register(self._sock.fileno(), event)
        poller.poll()

    def shutdown(self) -> None:
        with contextlib.suppress(OSError):
            # On the TCP level: a TLS goodbye could block, and there is nobody left to say it to.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


def dial(
    address: Address, timeout: float, tls: ssl.SSLContext | None, cancelled: Callable[[], bool]
) -> Channel:
    """Connect within `timeout` seconds; of several addresses each gets an equal share of what is left.

    Raises OSError; ConnectionAbortedError soon after `cancelled()` is true.
    """
    deadline = time.monotonic() + timeout
    found = _resolve_in_time(address, _Waiting(timeout, cancelled))
    failure: OSError | None = None
    for tried, place in enumerate(found):
        share = (deadline - time.monotonic()) / (len(found) - tried)
        try:
            return _dial_one(place, address[0], tls, _Waiting(share, cancelled))
        except OSError as error:
            if cancelled():
                raise
            failure = error
    raise failure or OSError(f"no address for {address[0]}")


@dataclass(frozen=True, slots=True)
class Place:
    """One address that a name has: what a socket needs to connect to it."""

    family: int
    kind: int
    protocol: int
    target: Any


def resolve(address: Address, flags: int = 0) -> list[Place]:
    """What the resolver knows of the host, in its order.  Raises OSError."""
    return [
        Place(family, kind, protocol, target)
        for family, kind, protocol, _, target in socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=flags
        )
    ]


def _resolve_in_time(address: Address, waiting: _Waiting) -> list[Place]:
    with contextlib.suppress(socket.gaierror):
        return resolve(address, socket.AI_NUMERICHOST)
    outcome: list[list[Place] | OSError] = []

    def ask() -> None:
        try:
            outcome.append(resolve(address))
        except OSError as error:
            outcome.append(error)

    # The resolver cannot be interrupted; a thread that it holds up ends by itself later.
    thread = threading.Thread(target=ask, name="yeto-resolve", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(DIAL_SLICE)
        if thread.is_alive():
            waiting.check(f"the name {address[0]} was not resolved in time")
    match outcome:
        case [OSError() as error]:
            raise error
        case [list() as found]:
            return found
    raise OSError(f"the name {address[0]} cannot be resolved")


def _dial_one(place: Place, host: str, tls: ssl.SSLContext | None, waiting: _Waiting) -> Channel:
    sock = socket.socket(place.family, place.kind, place.protocol)
    try:
        _connect(sock, place.target, waiting)
        _set_options(sock)
        return PlainChannel(sock) if tls is None else _secure(sock, host, tls, waiting)
    except BaseException:
        sock.close()
        raise


def _connect(sock: socket.socket, target: Any, waiting: _Waiting) -> None:
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        sock.connect(target)
        return
    waiting.poll(sock, select.POLLOUT)
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        option = getattr(socket, name, None)  # not on every platform
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _secure(sock: socket.socket, host: str, tls: ssl.SSLContext, waiting: _Waiting) -> Channel:
    secured = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secured.do_handshake()
                return TlsChannel(secured)
            except ssl.SSLWantReadError:
                waiting.poll(secured, select.POLLIN)
            except ssl.SSLWantWriteError:
                waiting.poll(secured, select.POLLOUT)
    except BaseException:
        secured.close()
        raise


class _Waiting:
    """Waits for a socket with a deadline, and notices soon that it was cancelled."""

    def __init__(self, timeout: float, cancelled: Callable[[], bool]) -> None:
        self._deadline = time.monotonic() + timeout
        self._cancelled = cancelled

    def poll(self, sock: socket.socket, event: int) -> None:
        """Wait until the socket is ready.  Raises TimeoutError and ConnectionAbortedError."""
        poller = select.poll()
        poller.register(sock.fileno(), event)
        while not poller.poll(DIAL_SLICE * 1000):
            self.check("timed out")

    def check(self, late: str) -> None:
        """Raises ConnectionAbortedError when it was cancelled, and TimeoutError(late) after the deadline."""
        if self._cancelled():
            raise ConnectionAbortedError("dialling was cancelled")
        if time.monotonic() >= self._deadline:
            raise TimeoutError(late)
