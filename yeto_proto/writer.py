"""Frames as lists of buffers, for vectored sends: bulk is never joined to its header, and never copied.

A sender hands `frame(message)`, or each list of `chunks.slices(message, ...)`, to `socket.sendmsg` and gives
the number of bytes it returned to `advance`.  No sockets here.
"""

from __future__ import annotations

from ._generated.errors import BadArgument
from ._generated.messages import Buffer, Message
from .codec import encode


def frame(message: Message) -> list[Buffer]:
    """The whole frame of `message`: its header and fixed part, then a view of its bulk if it has one.

    Raises what `encode` raises.
    """
    return encode(message)


def size(buffers: list[Buffer]) -> int:
    """Bytes of all buffers together."""
    return sum(map(len, buffers))


def advance(buffers: list[Buffer], sent: int) -> bool:
    """Drop the first `sent` bytes, which the socket took; True when nothing is left to send.

    The list is changed in place: buffers that are sent leave it, one that is partly sent becomes a view of
    its rest.  Raises BadArgument when the buffers hold fewer than `sent` bytes.
    """
    done = 0
    for buffer in buffers:
        if sent < len(buffer):
            break
        sent -= len(buffer)
        done += 1
    del buffers[:done]
    if sent:
        if not buffers:
            raise BadArgument(field="sent", detail="is more than the buffers held", seen=sent)
        buffers[0] = memoryview(buffers[0])[sent:]
    return not buffers
