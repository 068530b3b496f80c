"""Files of named f32 tensors, safetensors and npz, written front to back with memory for one piece."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, BinaryIO, Final, Protocol

import numpy as np

from yeto_proto._generated.files import F32
from yeto_proto.files.model import F32Array
from yeto_proto.layout import Tensor
from yeto_proto.layout_file import MAX_HEADER

_BUFFER: Final = 1 << 20
_ALIGNMENT: Final = 8  # of the tensors' first byte in a safetensors file
_OLDEST: Final = (1980, 1, 1, 0, 0, 0)  # that a zip file can tell: equal tensors make equal files


class CannotNameError(Exception):
    """The format has no place for a name or for so many."""


class Writer(Protocol):
    """Takes the values of the tensors, one after the other, in pieces that end where they like."""

    def write(self, values: F32Array) -> None: ...

    def close(self) -> None: ...

    def give_up(self) -> None: ...


class Safetensors:
    """u64 length, JSON header, then the values of all tensors without a gap."""

    def __init__(self, stream: BinaryIO, tensors: Sequence[Tensor], about: Mapping[str, str]) -> None:
        """Write the header; `about` becomes its metadata. Raises CannotNameError."""
        header: dict[str, object] = {"__metadata__": dict(about)}
        end = 0
        for tensor in tensors:
            if tensor.name in header:
                raise CannotNameError(f"safetensors keeps the name {tensor.name!r} for itself")
            start, end = end, end + tensor.numel * F32.itemsize
            header[tensor.name] = {"dtype": "F32", "shape": shape_of(tensor), "data_offsets": [start, end]}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        if len(text) > MAX_HEADER:
            raise CannotNameError(f"a safetensors header of {len(text)} bytes is too long; use .npz")
        self._stream = stream
        _all(stream, len(text).to_bytes(8, "little") + text)

    def write(self, values: F32Array) -> None:
        """The next values."""
        _all(self._stream, values.data.cast("B"))

    def close(self) -> None:
        """Nothing stands behind the values."""

    def give_up(self) -> None:
        """Nothing is held back."""


class Npz:
    """A zip file with one `.npy` for each tensor, not compressed."""

    def __init__(self, stream: BinaryIO, tensors: Sequence[Tensor], about: Mapping[str, str]) -> None:
        """`about` becomes the comment of the zip file. Raises CannotNameError."""
        for tensor in tensors:
            if "\0" in tensor.name:
                raise CannotNameError(f"npz cannot hold the name {tensor.name!r}; use .safetensors")
        # A raw stream may take less than it is given, and zipfile does not look.
        self._stream = io.BufferedWriter(stream, _BUFFER)
        self._zip = zipfile.ZipFile(self._stream, "w", zipfile.ZIP_STORED)
        self._zip.comment = json.dumps(dict(about)).encode()
        self._tensors = iter(tensors)
        self._entry: IO[bytes] | None = None
        self._left = 0

    def write(self, values: F32Array) -> None:
        """The next values."""
        while values.size:
            if not self._left:
                self._next()
            part, values = values[: self._left], values[self._left :]
            assert self._entry is not None
            self._entry.write(part.data.cast("B"))
            self._left -= part.size

    def _next(self) -> None:
        tensor = next(self._tensors)
        self._end()
        self._entry = self._zip.open(zipfile.ZipInfo(f"{tensor.name}.npy", _OLDEST), "w", force_zip64=True)
        head = {"descr": F32.str, "fortran_order": False, "shape": tuple(shape_of(tensor))}
        np.lib.format.write_array_header_1_0(self._entry, head)
        self._left = tensor.numel

    def _end(self) -> None:
        if self._entry is not None:
            self._entry.close()
            self._entry = None

    def close(self) -> None:
        """Write the directory."""
        self._end()
        self._zip.close()
        self._stream.detach()  # flushes; the stream itself is somebody else's

    def give_up(self) -> None:
        """Write nothing more: the directory of a file that failed would fail as well."""
        self._zip.fp = None


FORMATS: Final[Mapping[str, Callable[[BinaryIO, Sequence[Tensor], Mapping[str, str]], Writer]]] = {
    ".safetensors": Safetensors,
    ".npz": Npz,
}
"""By the ending of the file's name."""


def shape_of(tensor: Tensor) -> list[int]:
    """The shape, flat where it is not known."""
    return [tensor.numel] if tensor.shape is None else list(tensor.shape)


def copy(pieces: Iterable[F32Array], writer: Writer) -> None:
    """Write all pieces."""
    try:
        for piece in pieces:
            writer.write(piece)
        writer.close()
    except BaseException:
        writer.give_up()
        raise


def _all(stream: BinaryIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:  # a raw stream may take less than it is given
        view = view[stream.write(view) :]
