"""Frames to bytes and back, by the fields of the specification."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from codegen.faults import SpecFault, Where
from codegen.spec import Frame, Spec

Fields = Mapping[str, Any]
_WIDTH = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}


def encode(spec: Spec, name: str, fields: Fields, where: Where) -> list[tuple[str, bytes]]:
    """Name and bytes of each part of the payload, in wire order. Counts may be left out."""
    frame = spec.frame(name)
    known = {each.name for each in frame.fields} | ({frame.text.bulk.name} if frame.text.bulk else set())
    for key in fields:
        if key not in known:
            raise SpecFault(where, key, f"{name} has no such field")
    parts: list[tuple[str, bytes]] = []
    for each in frame.fields:
        value = fields.get(each.name)
        if each.text.counts is not None and value is None:
            value = len(fields[each.text.counts])
        if each.text.present is not None and value is None:
            continue
        if value is None:
            raise SpecFault(where, each.name, f"{name} needs it")
        if each.text.type == "layout":
            parts += [("layout", _layout(spec, fragment)) for fragment in value]
        else:
            for item in value if each.text.count is not None else (value,):
                try:
                    parts.append((each.name, _scalar(spec, each.text.type, item)))
                except (KeyError, OverflowError, TypeError, ValueError):
                    raise SpecFault(where, each.name, f"{item!r} is no {each.text.type}") from None
    if frame.text.bulk is not None:
        bulk = fields.get(frame.text.bulk.name, b"")
        parts.append((frame.text.bulk.name, bulk.encode() if isinstance(bulk, str) else bulk))
    return parts


def header(spec: Spec, name: str, length: int) -> list[bytes]:
    """The three fields of the header."""
    frame_type = spec.frame(name).text.id
    magic = int(spec.constant("MAGIC"))
    return [struct.pack("<I", magic), bytes([frame_type]), struct.pack("<Q", length)]


def _scalar(spec: Spec, kind: str, value: Any) -> bytes:
    if kind == "digest":
        return bytes(value)
    if kind in spec.enums:
        enum = spec.enums[kind]
        if isinstance(value, str):
            value = {each.name: each.value for each in enum.values}[value]
        kind = enum.type
    return int(value).to_bytes(_WIDTH[kind], "little")


def _layout(spec: Spec, fragment: Fields) -> bytes:
    modes = {each.name: each.value for each in spec.enums["MergeMode"].values}
    numels = fragment["numels"]
    data = bytes([modes[fragment["merge_mode"]]]) + struct.pack(f"<I{len(numels)}Q", len(numels), *numels)
    for rows, cols in fragment.get("shapes") or ():
        data += struct.pack("<QQ", rows, cols)
    return data


def decode(spec: Spec, name: str, payload: bytes) -> dict[str, Any]:
    """The fields of a payload that is known to be right."""
    frame = spec.frame(name)
    values: dict[str, Any] = {}
    at = 0
    for each in frame.fields:
        kind = each.text.type
        if each.text.present is not None and len(payload) - at < int(spec.constant("HASH_BYTES")) + 2:
            values[each.name] = None
        elif kind == "layout":
            values["layout"], at = _read_layout(spec, payload, at, values["num_fragments"])
        elif each.text.count is not None:
            size = _WIDTH[kind]
            items = []
            for _ in range(values[each.text.count]):
                items.append(int.from_bytes(payload[at : at + size], "little"))
                at += size
            values[each.name] = items
        else:
            values[each.name], at = _read(spec, kind, payload, at)
    if frame.text.bulk is not None:
        rest = payload[at:]
        values[frame.text.bulk.name] = rest.decode() if frame.text.bulk.type == "text" else rest
    return values


def _read(spec: Spec, kind: str, payload: bytes, at: int) -> tuple[Any, int]:
    if kind == "digest":
        end = at + int(spec.constant("HASH_BYTES"))
        return payload[at:end], end
    if kind in spec.enums:
        enum = spec.enums[kind]
        end = at + _WIDTH[enum.type]
        number = int.from_bytes(payload[at:end], "little")
        return {each.value: each.name for each in enum.values}[number], end
    end = at + _WIDTH[kind]
    return int.from_bytes(payload[at:end], "little"), end


def _read_layout(spec: Spec, payload: bytes, at: int, count: int) -> tuple[list[dict[str, Any]], int]:
    modes = {each.value: each.name for each in spec.enums["MergeMode"].values}
    fragments: list[dict[str, Any]] = []
    for _ in range(count):
        mode = modes[payload[at]]
        (tensors,) = struct.unpack_from("<I", payload, at + 1)
        at += 5
        numels = list(struct.unpack_from(f"<{tensors}Q", payload, at))
        at += 8 * tensors
        fragment: dict[str, Any] = {"merge_mode": mode, "numels": numels}
        if mode == "ISO":
            flat = struct.unpack_from(f"<{2 * tensors}Q", payload, at)
            at += 16 * tensors
            fragment["shapes"] = [list(pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
        fragments.append(fragment)
    return fragments, at


def to_json(spec: Spec, name: str, fields: Fields) -> dict[str, Any]:
    """Fields as traces write them: u64 as text, bytes in hexadecimal."""
    frame: Frame = spec.frame(name)
    kinds = {each.name: each.text.type for each in frame.fields}
    return {key: _json(kinds.get(key, "bulk"), value) for key, value in fields.items()}


def _json(kind: str, value: Any) -> Any:
    if isinstance(value, dict):  # a pattern, such as {any: true}
        return value
    if kind == "layout":
        return [layout_json(each) for each in value]
    if isinstance(value, list):
        return [_json(kind, each) for each in value]
    if kind == "u64":
        return str(value)
    return value.hex() if isinstance(value, (bytes, bytearray)) else value


def layout_json(fragment: Fields) -> dict[str, Any]:
    """One fragment of a layout as traces write it."""
    found: dict[str, Any] = {
        "merge_mode": fragment["merge_mode"],
        "numels": [str(each) for each in fragment["numels"]],
    }
    if fragment.get("shapes"):
        found["shapes"] = [[str(rows), str(cols)] for rows, cols in fragment["shapes"]]
    return found
