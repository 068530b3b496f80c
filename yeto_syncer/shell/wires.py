"""Sockets as the connections use them. A TLS wire (`tls`) can stand in for a plain one: same methods, same
answers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Protocol

from yeto_proto._generated.messages import Buffer

KEEPALIVE_IDLE_S = 60
KEEPALIVE_INTERVAL_S = 15
KEEPALIVE_COUNT = 4


class Wire(Protocol):
    """A connected, non-blocking byte stream. `recv_into`, `send` and `flush` raise OSError once it broke."""

    @property
    def pending(self) -> bool:
        """Whether `recv_into` has something to give that the kernel knows nothing of."""

    @property
    def unsent(self) -> bool:
        """Whether bytes that nobody is waiting for are held inside until the kernel takes them."""

    @property
    def trouble(self) -> str | None:
        """Why it broke before anything could be said on it, for people."""

    @property
    def learners(self) -> frozenset[int] | None:
        """The learner ids that the peer may have; None when it does not have to prove any."""

    def fileno(self) -> int: ...

    def recv_into(self, view: memoryview) -> int | None:
        """Bytes read, 0 at the end of the stream, None when nothing is there now."""

    def send(self, buffers: Sequence[Buffer]) -> int | None:
        """Bytes taken, None when nothing can be taken now. 0: bytes have left, but none is complete; the call
        must come again with the same first buffer."""

    def flush(self) -> None:
        """Hand to the kernel what is `unsent`."""

    def finish(self) -> None:
        """Tell the peer that nothing more will come. Reading goes on."""

    def close(self) -> None: ...


class PlainWire:
    """A TCP socket: no delay, and probes so that a peer that vanished is noticed in about two minutes."""

    pending = False
    unsent = False
    trouble = None
    learners = None

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
            ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
            ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ):
            if hasattr(socket, name):  # macOS names the first one differently and then keeps its default
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, view: memoryview) -> int | None:
        try:
            return self._sock.recv_into(view)
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, buffers: Sequence[Buffer]) -> int | None:
        try:
            return self._sock.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return None

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()
