"""Snapshot files as cases write them, to bytes and to the fields of an answer.

Keys: `version` (v1, v2, v3), `iso_backend` (a number), `fingerprint`, `global_step`, `fragments` (version,
params, momentum), `ledger` (id, merges, steps, tokens), `trailer` (its form), `contract`,
`trailer_fingerprint`, `tag`. What is left out is plain; `cut` drops bytes at the end and `append` adds some.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from codegen.files import FileText
from codegen.spec import Spec

_PRINT = "22" * 32
_CONTRACT = "33" * 32
_BACKENDS = {0: "SCALAR", 1: "TORCH_SVD"}


def _text(spec: Spec) -> FileText:
    (found,) = (each for each in spec.parts["files"] if each.file == "snapshot")
    assert isinstance(found, FileText)
    return found


def snapshot(spec: Spec, given: Mapping[str, Any]) -> bytes:
    """The bytes of the file."""
    text = _text(spec)
    magics = {each.name: each.magic for each in text.versions}
    tags = {each.name: each.value for each in text.tags}
    version = given.get("version", "v3")
    data = struct.pack("<I", given.get("magic", magics.get(version, 0)))
    if version != "v1":
        data += bytes([given.get("iso_backend", 0)])
    if version == "v3":
        data += bytes.fromhex(given.get("fingerprint", _PRINT))
    data += struct.pack("<Q", given.get("global_step", 1))
    fragments = _fragments(given)
    data += struct.pack("<I", given.get("count", len(fragments)))
    for each in fragments:
        data += struct.pack("<QQ", each["version"], each.get("numel", len(each["params"])))
        data += struct.pack(f"<{len(each['params'])}f", *each["params"])
        data += struct.pack(f"<{len(each['momentum'])}f", *each["momentum"])
    ledger = given.get("ledger", [[0, 1, 2, 3]])
    data += struct.pack("<I", given.get("ledger_count", len(ledger)))
    for entry in ledger:
        data += struct.pack("<IQQQ", *entry)
    data += _trailer(given, tags)
    return data[: len(data) - given.get("cut", 0)] + bytes.fromhex(given.get("append", ""))


def _trailer(given: Mapping[str, Any], tags: Mapping[str, int]) -> bytes:
    form = given.get("trailer", "contract")
    if form == "none":
        return b""
    printed = bytes.fromhex(given.get("trailer_fingerprint", given.get("fingerprint", _PRINT)))
    contract = bytes.fromhex(given.get("contract", _CONTRACT))
    if form == "fingerprint":
        return printed
    if form == "contract":
        return printed + struct.pack("<I", given.get("tag", tags["SNAPSHOT_CONTRACT_TAG"])) + contract
    sweep = printed + struct.pack("<II", given.get("tag", tags["SNAPSHOT_SWEEP_TAG"]), 4)
    return sweep + (contract if form == "sweep" else b"")


def _fragments(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    default = [{"version": 1, "params": [1.0, -2.0], "momentum": [0.5, 0.0]}]
    return [dict(each) for each in given.get("fragments", default)]


def snapshot_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a reader finds in a file that is right."""
    version = given.get("version", "v3")
    form = given.get("trailer", "contract")
    return {
        "version": version,
        "iso_backend": None if version == "v1" else _BACKENDS.get(given.get("iso_backend", 0)),
        "fingerprint": given.get("fingerprint", _PRINT) if version == "v3" else None,
        "global_step": str(given.get("global_step", 1)),
        "fragments": [
            {
                "version": str(each["version"]),
                "numel": str(len(each["params"])),
                "params": _hex(each["params"]),
                "momentum": _hex(each["momentum"]),
            }
            for each in _fragments(given)
        ],
        "ledger": [
            {
                "learner_id": entry[0],
                **dict(zip(("merges", "steps", "tokens"), map(str, entry[1:]), strict=True)),
            }
            for entry in sorted(given.get("ledger", [[0, 1, 2, 3]]))
        ],
        "trailer": form,
        "contract": given.get("contract", _CONTRACT) if form in ("contract", "sweep") else None,
    }


def _hex(values: list[float]) -> str:
    return struct.pack(f"<{len(values)}f", *values).hex()
