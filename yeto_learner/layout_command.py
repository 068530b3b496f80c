"""`yeto-learner layout`: the fragments and the fingerprint of a model file, without loading the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from yeto_proto._generated.types import MergeMode
from yeto_proto.layout import Layout

MAX_HEADER = 100_000_000
"""The safetensors format allows no longer header."""

SHOWN_NAMES = 3


def read_layout(path: Path) -> Layout | dict[str, tuple[int, ...]]:
    """A layout if the file holds one (layout metadata, JSON), or the shapes of the tensors of a safetensors
    file.

    Raises OSError, and ValueError (BadArgument included) for a file that is neither.
    """
    with path.open("rb") as file:
        first = file.read(1)
        file.seek(0)
        if first == b"{":
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


def describe(layout: Layout) -> str:
    """The layout as text for people: a line per fragment, then totals and the fingerprint."""
    lines = [f"{'fragment':<10}{'merge':<7}{'tensors':>8}{'values':>16}  names"]
    for number, fragment in enumerate(layout.fragments):
        names = [tensor.name for tensor in fragment.tensors]
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        lines.append(
            f"{number:<10}{MergeMode(fragment.merge_mode).name.lower():<7}{len(names):>8}{fragment.numel:>16,}"
            f"  {', '.join(names[:SHOWN_NAMES])}{more}"
        )
    lines.append(
        f"{layout.num_fragments} fragments, {len(layout.tensor_names())} tensors, {layout.numel:,} values"
    )
    lines.append(f"fingerprint {layout.fingerprint().hex()}")
    return "\n".join(lines)


def as_dict(layout: Layout) -> dict[str, Any]:
    """The same for programs."""
    return {
        "fingerprint": layout.fingerprint().hex(),
        "numel": layout.numel,
        "fragments": [
            {
                "id": number,
                "merge_mode": MergeMode(fragment.merge_mode).name.lower(),
                "numel": fragment.numel,
                "tensors": [
                    {"name": tensor.name, "numel": tensor.numel, "shape": tensor.shape}
                    for tensor in fragment.tensors
                ],
            }
            for number, fragment in enumerate(layout.fragments)
        ],
    }


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
