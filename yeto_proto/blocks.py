"""The block digest of a broadcast: SHA-256 over the SHA-256 of each 32 MiB block of its tensor bytes.

A receiver can hash the blocks of a chunked message on other threads while later chunks still arrive, so
that the digest is ready right after the last one.  `BlockCount` says when a block is complete; a `BlockHook`
of the caller is told so by the `Reassembler` and does the hashing where it likes.  The digest is never sent:
it tells a replay of the held version from other bytes under that version.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Protocol

from ._generated.constants import DIGEST_BLOCK
from ._generated.messages import Buffer, Message


class BlockHook(Protocol):
    """Told about chunked messages of two or more blocks.

    `key` is one number for each message, never used again by the same `Reassembler`.  Calls come from
    `Reassembler.commit` and `clear`, so they must be short: hand the block to a pool.
    """

    def block(self, key: int, index: int, data: memoryview) -> None:
        """All bytes of block `index` of the tensor are there and will not change."""

    def message(self, key: int, message: Message, blocks: int) -> None:
        """All `blocks` blocks were announced; `message` is returned to the caller right after this."""

    def dropped(self, key: int) -> None:
        """The message will never be complete."""


class BlockCount:
    """Counts the bytes that arrived of each block of `length` bytes that start at `start` of a message."""

    __slots__ = ("_missing", "_size", "_start", "_stop", "blocks")

    def __init__(self, start: int, length: int, size: int = DIGEST_BLOCK) -> None:
        self.blocks = -(-length // size)
        self._start, self._stop, self._size = start, start + length, size
        self._missing = [size] * self.blocks
        if length % size:
            self._missing[-1] = length % size

    def add(self, offset: int, length: int) -> list[int]:
        """Count a range of the message, which no earlier range overlaps; return the blocks it completed."""
        begin, end = max(offset, self._start), min(offset + length, self._stop)
        complete = []
        while begin < end:
            index = (begin - self._start) // self._size
            step = min(end, self._start + (index + 1) * self._size) - begin
            self._missing[index] -= step
            if not self._missing[index]:
                complete.append(index)
            begin += step
        return complete

    def span(self, index: int) -> slice:
        """Where block `index` stands in the message."""
        begin = self._start + index * self._size
        return slice(begin, min(begin + self._size, self._stop))


def block_digest(tensor: Buffer, size: int = DIGEST_BLOCK) -> bytes:
    """The digest (32 bytes) of tensor bytes that are all there, as `combine` gives it for their blocks."""
    view = memoryview(tensor).cast("B")
    return combine(sha256(view[at : at + size]).digest() for at in range(0, len(view), size))


def combine(hashes: Iterable[bytes]) -> bytes:
    """The digest from the SHA-256 of each block, in order."""
    return sha256(b"".join(hashes)).digest()
