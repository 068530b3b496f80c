"""The listening socket: few sockets in handshake at once, and no spinning when descriptors run out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from yeto_syncer.shell.doorman import Doorman
from yeto_syncer.shell.wires import PlainWire, Wire

BACKLOG = 1024
ACCEPT_TURN = 64
"""Sockets accepted before the others get their turn."""

RETRY_S = 0.5
"""Pause after an accept that failed, e.g. for want of descriptors: the socket stays readable, and trying
again at once would only burn the processor."""


class Acceptor(Protocol):
    """Who gets the new sockets."""

    def accepted(self, wire: Wire, peer: str) -> int:
        """Take a socket; returns how many are in handshake."""

    def turned_away(self, peer: str) -> None:
        """A socket was closed unheard."""


class Listener:
    """Accepts while fewer than `limit` sockets are in handshake; the rest waits in the kernel's backlog
    (D6)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        limit: int,
        warn: Callable[[str], None],
        doorman: Doorman,
        wrap: Callable[[socket.socket], Wire] = PlainWire,
    ) -> None:
        sock.setblocking(False)
        self._doorman = doorman
        self._wrap = wrap
        self._loop = loop
        self._sock = sock
        self._limit = limit
        self._warn = warn
        self._pending = 0
        self._watching = False
        self._pause: asyncio.TimerHandle | None = None
        self._acceptor: Acceptor | None = None

    @property
    def address(self) -> str:
        """HOST:PORT as bound, with brackets around an IPv6 address."""
        return shown(self._sock.getsockname())

    def start(self, acceptor: Acceptor) -> None:
        """Begin to accept."""
        self._acceptor = acceptor
        self._watch()

    def pending(self, count: int) -> None:
        """The number of sockets in handshake has changed."""
        self._pending = count
        self._watch()

    def _watch(self) -> None:
        wanted = self._acceptor is not None and self._pause is None and self._pending < self._limit
        if wanted == self._watching:
            return
        self._watching = wanted
        if wanted:
            self._loop.add_reader(self._sock.fileno(), self._accept)
        else:
            self._loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPT_TURN):
            if not self._watching or self._acceptor is None:
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._warn(f"cannot accept a connection: {error.strerror}")
                self._pause = self._loop.call_later(RETRY_S, self._again)
                self._watch()
                return
            if self._doorman.turns_away(address[0], self._loop.time()):
                sock.close()
                self._acceptor.turned_away(shown(address))
                continue
            try:
                wire = self._wrap(sock)
            except OSError:  # it has gone before it was set up
                sock.close()
                continue
            self._pending = self._acceptor.accepted(wire, shown(address))
            self._watch()

    def _again(self) -> None:
        self._pause = None
        self._watch()

    def close(self) -> None:
        """Stop accepting and free the port."""
        self._acceptor = None
        if self._pause is not None:
            self._pause.cancel()
        self._watch()
        self._sock.close()


def shown(address: tuple[object, ...]) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(peer: str) -> str:
    """The host of a HOST:PORT as `shown` writes it."""
    return peer.rpartition(":")[0].strip("[]")
