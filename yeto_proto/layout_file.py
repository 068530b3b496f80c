"""Names and shapes of a model from disk: a layout metadata file, or the header of a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .layout import Layout

__all__ = ["MAX_HEADER", "read_layout", "read_shapes"]

MAX_HEADER = 100_000_000
"""The safetensors format allows no longer header."""


def read_layout(path: Path) -> Layout | dict[str, tuple[int, ...]]:
    """A layout if the file holds one (layout metadata, JSON), or the shapes of the tensors of a safetensors
    file.

    Raises OSError, and ValueError (BadArgument included) for a file that is neither.
    """
    with path.open("rb") as file:
        head = file.read(8)
        file.seek(0)
        # A safetensors header of 123 bytes starts with a brace too, but no JSON text has a NUL in it.
        if head.startswith(b"{") and 0 not in head:
            return Layout.from_json(file.read())
        return read_shapes(file)


def read_shapes(file: BinaryIO) -> dict[str, tuple[int, ...]]:
    """Names and shapes from the header of a safetensors file: u64 length, then that many bytes of JSON.

    Only the header is read. Raises ValueError when it is not one.
    """
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or not 2 <= length <= MAX_HEADER:
        raise ValueError("it is neither layout metadata nor a safetensors file")
    text = file.read(length)
    if len(text) < length:
        raise ValueError(f"the safetensors header is cut off: {len(text)} of {length} bytes")
    try:
        header = json.loads(text, object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        raise ValueError("the safetensors header is not UTF-8") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"the safetensors header is not JSON: {error}") from error
    if not isinstance(header, Mapping):
        raise ValueError("the safetensors header is not an object")
    header = {name: entry for name, entry in header.items() if name != "__metadata__"}
    return {name: _shape(name, entry) for name, entry in header.items()}


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("the safetensors header names a tensor twice")
    return result


def _shape(name: str, entry: Any) -> tuple[int, ...]:
    shape = entry.get("shape") if isinstance(entry, Mapping) else None
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"the safetensors header gives no shape for {name!r}")
    return tuple(shape)
