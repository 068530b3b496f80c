"""How our own codec answers the questions of a codec adapter, as a pure function."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from yeto_proto import codec, dtypes, files
from yeto_proto._generated.constants import TINY, WIRE
from yeto_proto._generated.files import SnapshotVersion, TrailerForm
from yeto_proto._generated.messages import Message
from yeto_proto._generated.types import Dtype, FrameType, IsoBackend, MergeMode, Role
from yeto_proto.chunks import Reassembler
from yeto_proto.errors_base import YetoError
from yeto_proto.files.checks import check_file, check_session
from yeto_proto.files.final_state import read_final_state_from
from yeto_proto.files.marker import parse_marker
from yeto_proto.files.reader import SnapshotReader
from yeto_proto.files.writer import write_to
from yeto_proto.layout import Fragment, Layout, Tensor
from yeto_proto.reader import FrameReader

from . import fields
from .trace import resolve

__all__ = ["OPS", "answer"]

Request = Mapping[str, Any]
Answer = dict[str, Any]
_VERSIONS: Final = {SnapshotVersion.V1: "v1", SnapshotVersion.V2: "v2", SnapshotVersion.V3: "v3"}


def answer(request: Request) -> Answer:
    """The answer to one question. A refusal of the bytes is an answer; a question that makes no sense raises
    KeyError, TypeError or ValueError.
    """
    op = OPS.get(request.get("op", ""))
    if op is None:
        return {"unsupported": True}
    try:
        return {"ok": True, **op(request)}
    except YetoError as error:
        return {"ok": False, "error": type(error).__name__, "rule": error.rule}


def _decode(request: Request) -> Answer:
    session = fields.session(request["session"]) if request.get("session") else None
    role = Role(request["side"]) if request.get("side") else None
    payload = bytes.fromhex(request["payload"])
    return {"fields": fields.shown(codec.decode(FrameType[request["frame"]], payload, session, role))}


def _encode(request: Request) -> Answer:
    message = fields.message(request["frame"], request["fields"])
    return {"wire": b"".join(bytes(each) for each in codec.encode(message)).hex()}


def _stream(request: Request) -> Answer:
    role = Role(request["side"])
    preset = TINY if request.get("preset") == "tiny" else WIRE
    session = fields.session(request["session"]) if request.get("session") else None
    group = Reassembler(role, session, preset) if session is not None else None
    readers: dict[int, FrameReader] = {}
    messages: list[Message] = []
    for socket, piece in request["pieces"]:
        if socket not in readers:
            known = session if request["admitted"] else None
            readers[socket] = FrameReader(role, known, reassembler=group if known else None, preset=preset)
        messages += readers[socket].feed(resolve(piece))
    for reader in readers.values():
        if not reader.paused:
            if request.get("end"):
                reader.eof()
            else:
                reader.get_buffer()
    shown = [{"frame": each.frame_type.name, "fields": fields.shown(each)} for each in messages]
    return {"messages": shown}


def _fingerprint(request: Request) -> Answer:
    fragments = [
        Fragment(
            MergeMode[each["merge_mode"]],
            tuple(
                Tensor(tensor["name"], int(np.prod(tensor["shape"], dtype=np.int64)), tuple(tensor["shape"]))
                for tensor in each["tensors"]
            ),
        )
        for each in request["fragments"]
    ]
    return {"fingerprint": Layout(tuple(fragments)).fingerprint().hex()}


def _values(dtype: Dtype) -> Callable[[Request], Answer]:
    def convert(request: Request) -> Answer:
        if "values" in request:
            values = np.frombuffer(bytes.fromhex(request["values"]), "<f4")
            return {"data": bytes(dtypes.encode(dtype, values)).hex()}
        data = bytes.fromhex(request["data"])
        if dtype is Dtype.Q4:
            dtypes.check_finite(dtype, data)
        return {"values": dtypes.decode(dtype, data, int(request["numel"])).tobytes().hex()}

    return convert


def _snapshot(request: Request) -> Answer:
    data = bytes.fromhex(request["file"])
    snapshot = SnapshotReader(io.BytesIO(data)).read()
    if "start" in request:
        check_file(snapshot, IsoBackend[request["start"]["iso_backend"]])
    if "session" in request:
        known = request["session"]
        layout = fields.layout_from_json(known["layout"])
        check_session(snapshot, layout, bytes.fromhex(known["fingerprint"]), bytes.fromhex(known["contract"]))
    return {"fields": snapshot_fields(snapshot)}


def snapshot_fields(snapshot: files.Snapshot) -> Answer:
    """A snapshot as traces write it."""
    backend = snapshot.iso_backend
    return {
        "version": _VERSIONS[snapshot.version_tag],
        "iso_backend": None if backend is None else backend.name,
        "fingerprint": snapshot.fingerprint.hex() if snapshot.fingerprint else None,
        "global_step": str(snapshot.global_step),
        "fragments": [
            {
                "version": str(each.version),
                "numel": str(each.numel),
                "params": each.params.tobytes().hex(),
                "momentum": each.momentum.tobytes().hex(),
            }
            for each in snapshot.fragments
        ],
        "ledger": [
            {
                "learner_id": learner,
                "merges": str(entry.merges),
                "steps": str(entry.steps),
                "tokens": str(entry.tokens),
            }
            for learner, entry in sorted(snapshot.ledger.items())
        ],
        "trailer": snapshot.actual_trailer().form.name.lower(),
        "contract": snapshot.contract.hex() if snapshot.contract else None,
    }


def _snapshot_encode(request: Request) -> Answer:
    given = request["fields"]
    if given["version"] != "v3" or given["trailer"] != "contract":
        return {"unsupported": True}
    snapshot = files.Snapshot(
        SnapshotVersion.V3,
        IsoBackend[given["iso_backend"]],
        bytes.fromhex(given["fingerprint"]),
        int(given["global_step"]),
        [
            files.FragmentState(int(each["version"]), _f32(each["params"]), _f32(each["momentum"]))
            for each in given["fragments"]
        ],
        {
            each["learner_id"]: files.LedgerEntry(
                int(each["merges"]), int(each["steps"]), int(each["tokens"])
            )
            for each in given["ledger"]
        },
        bytes.fromhex(given["contract"]),
    )
    assert snapshot.actual_trailer().form is TrailerForm.CONTRACT
    stream = io.BytesIO()
    write_to(stream, snapshot)
    return {"file": stream.getvalue().hex()}


def _f32(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(bytes.fromhex(text), "<f4")


def _marker(request: Request) -> Answer:
    return {"fields": {"global_step": str(parse_marker(bytes.fromhex(request["file"])))}}


def _final_state(request: Request) -> Answer:
    fragments = read_final_state_from(io.BytesIO(bytes.fromhex(request["file"])))
    return {
        "fields": {
            "fragments": [{"numel": str(each.size), "params": each.tobytes().hex()} for each in fragments]
        }
    }


OPS: Final[Mapping[str, Callable[[Request], Answer]]] = {
    "decode": _decode,
    "encode": _encode,
    "stream": _stream,
    "fingerprint": _fingerprint,
    "q4": _values(Dtype.Q4),
    "bf16": _values(Dtype.BF16),
    "snapshot": _snapshot,
    "snapshot_encode": _snapshot_encode,
    "marker": _marker,
    "final_state": _final_state,
}
