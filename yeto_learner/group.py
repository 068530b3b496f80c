"""One connection generation: 1 + S sockets, each with a thread that receives and a thread that sends.

A group lives until the first of its threads ends; then the client stops it as a whole and dials a new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from yeto_proto._generated.errors import YetoError
from yeto_proto._generated.messages import Buffer, Message
from yeto_proto.reader import FrameReader
from yeto_proto.writer import size

from .channel import Channel
from .outbox import Outbox

__all__ = ["ClosedByPeerError", "Group"]

# How long a lost group goes on reading: when the syncer refuses a connection, its ERROR may lie behind the
# failure that was noticed first, on another socket.
LINGER: Final = 0.25  # seconds


class ClosedByPeerError(ConnectionError):
    """The syncer ended a socket in order, as it does when it is stopped."""


class Group:
    """The sockets and threads of one generation.

    `handle(group, message)` is called on a receiving thread for each message.  `ended(group, cause)` is
    called on the thread that ended: a YetoError means that the protocol was broken, an OSError that a socket
    was, anything else is a fault of this program.  `gate(group)` is called before each read of values and may
    wait.  On the control socket of a group with data sockets that is the rest of a frame which carries some.
    """

    def __init__(
        self,
        epoch: int,
        generation: int,
        channels: Sequence[Channel],
        readers: Sequence[FrameReader],
        *,
        handle: Callable[[Group, Message], None],
        ended: Callable[[Group, BaseException], None],
        gate: Callable[[Group], None],
    ) -> None:
        self.epoch = epoch
        self.generation = generation
        self.outboxes = [Outbox() for _ in channels]
        self._channels = list(channels)
        self._handle, self._ended, self._gate = handle, ended, gate
        self._received = [0] * len(self._channels)  # bytes; each written by one thread
        self._sent = [0] * len(self._channels)
        self._receivers = [
            self._thread(f"receive-{index}", self._receive, index, reader)
            for index, reader in enumerate(readers)
        ]
        self._senders = [
            self._thread(f"send-{index}", self._send, index, None) for index in range(len(self._channels))
        ]

    def _thread(
        self, name: str, work: Callable[[int, FrameReader], None] | Callable[[int, None], None], *args: object
    ) -> threading.Thread:
        return threading.Thread(target=self._run, args=(work, *args), name=f"yeto-{name}", daemon=True)

    def _run(self, work: Callable[..., None], *args: object) -> None:
        # Whatever ends a thread must end the group, or the client would wait for it for ever.
        cause: BaseException = RuntimeError("a connection thread ended by a fault of this program")
        try:
            work(*args)
            cause = ClosedByPeerError("the connection was closed")
        except (OSError, YetoError) as error:
            cause = error
        finally:
            self._ended(self, cause)

    def _receive(self, index: int, reader: FrameReader) -> None:
        channel = self._channels[index]
        gated = index > 0 or len(self._channels) == 1
        while True:
            buffer = reader.get_buffer()  # raises what an earlier call held back
            if gated or reader.in_bulk:
                self._gate(self)
            count = channel.recv_into(buffer)
            if count == 0:
                return  # also inside a frame: the peer is gone, and it is dialled again
            self._received[index] += count
            messages = reader.buffer_updated(count)
            while messages:  # without a variable that would keep the last message alive while this waits
                self._handle(self, messages.pop(0))

    def _send(self, index: int, _: None) -> None:
        channel = self._channels[index]

        def write(buffers: list[Buffer]) -> None:
            total = size(buffers)
            channel.send_all(buffers)
            self._sent[index] += total

        self.outboxes[index].run(write)

    @property
    def bytes_received(self) -> int:
        return sum(self._received)

    @property
    def bytes_sent(self) -> int:
        return sum(self._sent)

    def start(self) -> None:
        """Start all threads."""
        for thread in (*self._receivers, *self._senders):
            thread.start()

    def close_sending(self) -> None:
        """Drop what is queued and refuse more; those who wait for room get an answer."""
        for outbox in self.outboxes:
            outbox.close()

    def stop(self, *, linger: bool) -> None:
        """End all threads and give the sockets back.  Not for a thread of the group itself."""
        self.close_sending()
        deadline = time.monotonic() + (LINGER if linger else 0.0)
        for thread in self._receivers:
            thread.join(max(0.0, deadline - time.monotonic()))
        for channel in self._channels:
            channel.shutdown()
        for thread in (*self._receivers, *self._senders):
            thread.join()
        for channel in self._channels:
            channel.close()
