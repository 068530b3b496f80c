"""The layout metadata file: a layout as JSON beside a checkpoint, so that its flat values can be named again.

It never travels on the wire.  The file is one JSON object with the keys layout_meta_version, task,
backend_version, fragments, any further ones, and layout_hash: SHA-256 over the compact, key-sorted JSON of
all the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from ._generated.errors import BadArgument
from ._generated.types import MergeMode
from .layout import Fragment, Layout, Tensor

__all__ = ["LayoutMeta", "from_json", "to_json"]

META_VERSION: Final = 1
_OWN_KEYS = ("layout_meta_version", "task", "backend_version", "fragments", "layout_hash")
_MAX_DIFFERENCES = 12
# Merge modes that have a name in the file; any other stands as its number in text.
_NAMED = {MergeMode.AVG: "avg", MergeMode.RDA: "rda"}
_MODES = {_NAMED.get(mode, str(int(mode))): mode for mode in MergeMode}


@dataclass(frozen=True)
class LayoutMeta:
    """A layout with what the metadata file says besides.

    `dtypes` gives the storage dtype of tensors by name ("float32" where a name is missing); `extra` holds any
    further keys, such as the component or the digest of a base checkpoint.
    """

    layout: Layout
    task: str = ""
    backend_version: str = "1"
    dtypes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken = sorted(set(self.extra) & set(_OWN_KEYS))
        if taken:
            raise _bad(
                "extra", "keys of its own", ", ".join(taken), "the layout metadata has these keys already"
            )
        object.__setattr__(self, "dtypes", MappingProxyType(dict(self.dtypes)))
        extra = {key: value for key, value in self.extra.items() if value is not None}
        object.__setattr__(self, "extra", MappingProxyType(extra))

    def content(self) -> dict[str, Any]:
        """The JSON object without its hash."""
        fragments = [
            {
                "id": number,
                "merge_mode": _NAMED.get(fragment.merge_mode, str(int(fragment.merge_mode))),
                "tensors": [
                    {
                        "name": tensor.name,
                        "shape": None if tensor.shape is None else list(tensor.shape),
                        "dtype": self.dtypes.get(tensor.name, "float32"),
                        "numel": tensor.numel,
                    }
                    for tensor in fragment.tensors
                ],
            }
            for number, fragment in enumerate(self.layout.fragments)
        ]
        return {
            "layout_meta_version": META_VERSION,
            "task": self.task,
            "backend_version": self.backend_version,
            "fragments": fragments,
            **self.extra,
        }

    @property
    def layout_hash(self) -> str:
        """SHA-256 of the content, 64 lower-case hex digits."""
        return _hash(self.content())

    def to_json(self) -> str:
        """The text of the file, with its hash; ends with a line feed."""
        content = self.content()
        return json.dumps({**content, "layout_hash": _hash(content)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> LayoutMeta:
        """Read the text of a file.  Raises BadArgument naming the first fault, a wrong layout_hash too."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _bad(
                "file", "JSON", "something else", f"the layout metadata is not JSON ({error})"
            ) from error
        found = _Reader("").mapping(given)
        version = found.get("layout_meta_version")
        if version != META_VERSION:
            raise _bad("layout_meta_version", META_VERSION, version, "unknown layout metadata")
        content = {key: value for key, value in found.items() if key != "layout_hash"}
        digest = _hash(content)
        if found.get("layout_hash") != digest:
            raise _bad("layout_hash", digest, found.get("layout_hash"), "the layout metadata was changed")
        dtypes: dict[str, str] = {}
        reader = _Reader("fragments")
        fragments = tuple(
            _fragment(number, entry, dtypes)
            for number, entry in enumerate(reader.list(found.get("fragments")))
        )
        return cls(
            Layout(fragments),
            _Reader("task").string(found.get("task", "")),
            _Reader("backend_version").string(found.get("backend_version", "1")),
            dtypes,
            {key: value for key, value in found.items() if key not in _OWN_KEYS},
        )

    def differences(self, other: LayoutMeta, *, ignore: tuple[str, ...] = ()) -> list[str]:
        """What `other` says differently, at most 12 sentences; `ignore` names keys that may differ."""
        ours, theirs = self.content(), other.content()
        ours["fragments"] = theirs["fragments"] = None
        found = [
            f"{key}: expected {ours.get(key)!r}, found {theirs.get(key)!r}"
            for key in sorted({*ours, *theirs} - set(ignore))
            if ours.get(key) != theirs.get(key)
        ]
        mine, yours = self.layout.fragments, other.layout.fragments
        if len(mine) != len(yours):
            found.append(f"fragments: expected {len(mine)}, found {len(yours)}")
        for number, (wanted, got) in enumerate(zip(mine, yours, strict=False)):
            found += _fragment_differences(number, wanted, got)
            if len(found) > _MAX_DIFFERENCES:
                break
        for name in sorted(self.dtypes.keys() | other.dtypes.keys()):
            wanted_dtype, got_dtype = (meta.dtypes.get(name, "float32") for meta in (self, other))
            if wanted_dtype != got_dtype:
                found.append(f"tensor {name!r}: expected dtype {wanted_dtype}, found {got_dtype}")
        return found[:_MAX_DIFFERENCES]


def to_json(layout: Layout, *, task: str = "", backend_version: str = "1", **extra: Any) -> str:
    """The metadata file of a layout as text; keys of `extra` that are None are left out."""
    return LayoutMeta(layout, task, backend_version, extra=extra).to_json()


def from_json(text: str | bytes) -> Layout:
    """The layout of a metadata file.  Raises BadArgument naming the first fault."""
    return LayoutMeta.from_json(text).layout


def _hash(content: Mapping[str, Any]) -> str:
    compact = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(compact.encode()).hexdigest()


def _fragment_differences(number: int, wanted: Fragment, got: Fragment) -> list[str]:
    if wanted == got:
        return []
    found = []
    if wanted.merge_mode is not got.merge_mode:
        modes = wanted.merge_mode.name.lower(), got.merge_mode.name.lower()
        found.append(f"fragment {number}: expected merge mode {modes[0]}, found {modes[1]}")
    if len(wanted.tensors) != len(got.tensors):
        found.append(f"fragment {number}: expected {len(wanted.tensors)} tensors, found {len(got.tensors)}")
    for place, (mine, yours) in enumerate(zip(wanted.tensors, got.tensors, strict=False)):
        if mine != yours:
            found.append(f"fragment {number}, tensor {place}: expected {_told(mine)}, found {_told(yours)}")
    return found


def _told(tensor: Tensor) -> str:
    size = tensor.numel if tensor.shape is None else "x".join(map(str, tensor.shape)) or "scalar"
    return f"{tensor.name!r} ({size})"


def _fragment(number: int, entry: object, dtypes: dict[str, str]) -> Fragment:
    where = f"fragments[{number}]"
    found = _Reader(where).mapping(entry)
    if found.get("id") != number:
        raise _bad("id", number, found.get("id"), f"{where}: fragments must stand in order")
    mode = found.get("merge_mode")
    if not isinstance(mode, str) or mode not in _MODES:
        raise _bad("merge_mode", " or ".join(_MODES), mode, f"{where}: unknown merge mode")
    tensors = []
    for place, item in enumerate(_Reader(f"{where}.tensors").list(found.get("tensors"))):
        reader = _Reader(f"{where}.tensors[{place}]")
        fields = reader.mapping(item)
        name = reader.string(fields.get("name"))
        given = fields.get("shape")
        shape = None if given is None else tuple(reader.integer(size) for size in reader.list(given))
        tensors.append(Tensor(name, reader.integer(fields.get("numel")), shape))
        dtypes[name] = reader.string(fields.get("dtype", "float32"))
    return Fragment(_MODES[mode], tuple(tensors))


class _Reader:
    """Says which place of the file holds something of another kind than expected."""

    def __init__(self, where: str) -> None:
        self._where = where

    def mapping(self, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong("an object", value)
        return value

    def list(self, value: object) -> list[Any]:
        if not isinstance(value, list):
            raise self._wrong("a list", value)
        return value

    def string(self, value: object) -> str:
        if not isinstance(value, str):
            raise self._wrong("text", value)
        return value

    def integer(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong("a whole number", value)
        return value

    def _wrong(self, expected: str, value: object) -> BadArgument:
        return _bad(self._where or "file", expected, type(value).__name__, "the layout metadata is malformed")


def _bad(name: str, limit: object, seen: object, detail: str) -> BadArgument:
    return BadArgument(frame="layout metadata", field=name, limit=limit, seen=seen, detail=detail)
