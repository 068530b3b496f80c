"""Messages to the fields of a trace and back: u64 as text, bytes in hexadecimal, enums by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from yeto_proto._generated import messages
from yeto_proto._generated.messages import Hello, Message
from yeto_proto._generated.types import Dtype, FrameType, MergeMode
from yeto_proto.session import Session, WireLayout

__all__ = ["WIDE", "layout_from_json", "layout_json", "message", "session", "shown"]

WIDE: Final = frozenset(
    {
        "connection_generation", "global_step", "base_version", "local_step", "c_tokens", "version", "msg_id",
        "total_len", "offset", "final_global_step", "expected_versions", "exact_local_steps",
    }
)  # fmt: skip
_CLASSES: Final[Mapping[FrameType, Any]] = {
    frame_type: kind
    for kind in vars(messages).values()
    if isinstance(frame_type := getattr(kind, "frame_type", None), FrameType)
}


def shown(each: Message, bulk: Callable[[bytes], Any] = bytes.hex) -> dict[str, Any]:
    """The fields of a message in wire order, counts included. `bulk` writes its bulk bytes."""
    if isinstance(each, Hello):
        return _hello(each)
    fields: dict[str, Any] = {}
    for name in each.__slots__:
        value = getattr(each, name)
        if name == "expected_versions":
            fields["num_fragments"] = len(value)
        fields[name] = _json(name, value, bulk)
    return fields


def _hello(each: Hello) -> dict[str, Any]:
    return {
        "protocol_version": each.protocol_version,
        "learner_id": each.learner_id,
        "connection_generation": str(each.connection_generation),
        "dtype": each.dtype.name,
        "num_fragments": each.layout.num_fragments,
        "layout": layout_json(each.layout),
        "layout_fingerprint": each.layout_fingerprint.hex(),
        "session_contract_hash": each.session_contract_hash.hex(),
        "syncer_profile_hash": each.syncer_profile_hash.hex() if each.syncer_profile_hash else None,
        "num_streams": each.num_streams,
    }


def _json(name: str, value: Any, bulk: Callable[[bytes], Any]) -> Any:
    if isinstance(value, tuple):
        return [_json(name, item, bulk) for item in value]
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value) if name in WIDE else int(value)
    return bulk(bytes(value))


def layout_json(layout: WireLayout) -> list[dict[str, Any]]:
    """A numeric layout as traces write it."""
    found = []
    for fragment in range(layout.num_fragments):
        each: dict[str, Any] = {
            "merge_mode": MergeMode(int(layout.merge_modes[fragment])).name,
            "numels": [str(numel) for numel in layout.numels(fragment)],
        }
        shapes = layout.shapes(fragment)
        if shapes is not None:
            each["shapes"] = [[str(rows), str(cols)] for rows, cols in shapes]
        found.append(each)
    return found


def layout_from_json(fragments: list[Mapping[str, Any]]) -> WireLayout:
    """The numeric layout of a trace."""
    return WireLayout.build(
        [
            (
                MergeMode[each["merge_mode"]],
                [int(numel) for numel in each["numels"]],
                [(int(rows), int(cols)) for rows, cols in each.get("shapes") or ()],
            )
            for each in fragments
        ]
    )


def session(given: Mapping[str, Any]) -> Session:
    """A session of a trace; what is not needed to decode may be missing."""
    profile = given.get("profile")
    return Session(
        Dtype[given["dtype"]],
        layout_from_json(given["layout"]),
        bytes.fromhex(given.get("fingerprint", "00" * 32)),
        bytes.fromhex(given.get("contract", "00" * 32)),
        bytes.fromhex(profile) if profile else None,
    )


def message(frame: str, given: Mapping[str, Any], bulk: Callable[[Any], bytes] = bytes.fromhex) -> Message:
    """The message of these fields; `bulk` reads bulk. Raises KeyError, ValueError for others."""
    kind = _CLASSES[FrameType[frame]]
    values: dict[str, Any] = {}
    for name in kind.__slots__:
        value = given[name]
        if name == "layout":
            values[name] = layout_from_json(value)
        elif name == "dtype":
            values[name] = Dtype[value]
        elif name == "expected_versions":
            values[name] = tuple(int(each) for each in value)
        elif name in WIDE:
            values[name] = int(value)
        elif name in ("tensor", "delta", "data"):
            values[name] = bulk(value)
        elif isinstance(value, str) and name != "text":
            values[name] = bytes.fromhex(value)
        else:
            values[name] = value
    made: Message = kind(**values)
    return made
