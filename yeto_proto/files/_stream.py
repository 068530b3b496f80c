"""Bounded reading and complete writing on binary streams.

A source knows how many bytes its file holds and hands out no more; so every length that a file claims is
compared with what is really left before anything is allocated for it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np

from yeto_proto._generated.errors import BadArgument
from yeto_proto.errors_base import YetoError

from ._rules import broken

Buffer: TypeAlias = Any  # anything with the buffer protocol; collections.abc.Buffer needs Python 3.12
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) after each piece."""

PIECE_BYTES: Final = 8 << 20  # what one read or write moves, and so how often progress is told


class Source:
    """Reads a stream from its position on; `size` is the number of bytes from there to its end.

    Without `size` the stream must be seekable.  Raises BadArgument when it is not.
    """

    def __init__(
        self, stream: BinaryIO, kind: str, *, size: int | None = None, progress: Progress | None = None
    ) -> None:
        self._prefix = kind.replace(" ", "_")
        self.offset = 0
        self.size = _bytes_left(stream) if size is None else size
        self._stream = stream
        self._progress = progress

    @property
    def remaining(self) -> int:
        return self.size - self.offset

    def need(self, size: int, what: str) -> None:
        """Raises Truncated, naming `what`, unless so many bytes remain."""
        if size > self.remaining:
            raise self._truncated(what, size, self.remaining)

    def read(self, size: int, what: str) -> bytes:
        """Exactly `size` bytes; `what` names them in the error.  Raises Truncated."""
        self.need(size, what)
        data = bytearray(size)
        self.read_into(data, what)
        return bytes(data)

    def read_into(self, target: Buffer, what: str) -> None:
        """Fill `target` (contiguous) in pieces, straight from the stream.  Raises Truncated."""
        view = flat_bytes(target)
        size = len(view)
        self.need(size, what)
        done = 0
        while done < size:
            count = self._read_some(view[done : done + PIECE_BYTES])
            if not count:  # the file has become shorter since its length was taken
                raise self._truncated(what, size, done)
            done += count
            self.offset += count
            if self._progress is not None:
                self._progress(self.offset, self.size)

    def _read_some(self, view: memoryview) -> int:
        if isinstance(self._stream, io.RawIOBase | io.BufferedIOBase):
            return self._stream.readinto(view) or 0
        data = self._stream.read(len(view))
        view[: len(data)] = data
        return len(data)

    def skip(self, size: int, what: str) -> None:
        """Leave out `size` bytes.  Raises Truncated."""
        self.need(size, what)
        if self._stream.seekable():
            self._stream.seek(size, io.SEEK_CUR)
            self.offset += size
            return
        scratch = bytearray(min(size, PIECE_BYTES))
        with memoryview(scratch) as view:
            while size:
                piece = view[: min(size, PIECE_BYTES)]
                self.read_into(piece, what)
                size -= len(piece)

    def at_end(self) -> None:
        """Raises TrailingBytes, with their number, unless everything was read."""
        if self.remaining:
            raise broken(f"{self._prefix}.end", offset=self.offset, seen=self.remaining)

    def _truncated(self, what: str, needed: int, left: int) -> YetoError:
        return broken(
            f"{self._prefix}.complete",
            field=what,
            offset=self.offset,
            limit=needed,
            seen=left,
            detail=f"{what} needs {needed} bytes, {left} are left of {self.size}",
        )


class Sink:
    """Writes buffers completely and counts the bytes; `size` is what will be written in all."""

    def __init__(self, stream: BinaryIO, size: int, progress: Progress | None = None) -> None:
        self.offset = 0
        self.size = size
        self._stream = stream
        self._progress = progress

    def write(self, data: Buffer) -> None:
        """Write all of `data` in pieces, without a copy.  Errors of the stream pass through."""
        view = flat_bytes(data)
        size = len(view)
        done = 0
        while done < size:
            # A raw stream may take less than it is given.
            count = self._stream.write(view[done : done + PIECE_BYTES])
            done += count
            self.offset += count
            if self._progress is not None:
                self._progress(self.offset, self.size)


def flat_bytes(data: Buffer) -> memoryview:
    """A view of a contiguous buffer as bytes."""
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")


def _bytes_left(stream: BinaryIO) -> int:
    if not stream.seekable():
        raise BadArgument(field="size", detail="a stream that cannot seek needs its size")
    here = stream.tell()
    end = stream.seek(0, io.SEEK_END)
    stream.seek(here)
    return end - here
