"""The JavaScript codec against authored cases, recorded vectors, and our own codec on drawn messages."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen import codec_cases
from codegen.spec import load_spec
from tests.foreign.adapter import INTEROP, Adapter, fields_shown, session_shown
from tests.unit.snapshot_samples import snapshots
from tests.unit.test_codec_cases import session_of
from tests.vectors.test_q4 import tensor
from yeto_proto import codec, dtypes, files
from yeto_proto._generated.constants import TINY
from yeto_proto._generated.messages import Chunk, InitParams, PushFragment
from yeto_proto._generated.rules import RULES
from yeto_proto._generated.types import Dtype, FrameType, MergeMode, Role
from yeto_proto.errors_base import YetoError
from yeto_proto.files import Snapshot, SnapshotReader
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session, WireLayout
from yeto_proto.testing import BROKEN, VALID, payload_of, sessions

pytestmark = pytest.mark.full
SPEC = Path(__file__).parents[2] / "spec"
VECTORS = Path(__file__).parents[1] / "vectors"
CASES = [
    pytest.param(file, case, id=case.id)
    for file in codec_cases.load(SPEC, load_spec(SPEC))
    for case in file.cases
]
FRAMES = pytest.mark.parametrize("frame_type", list(FrameType), ids=lambda each: each.name)
EXAMPLES = settings(max_examples=40, deadline=None)


def vectors(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return found


@pytest.fixture(scope="module")
def adapter() -> Iterator[Adapter]:
    with Adapter(["node", str(INTEROP / "codec.js")]) as started:
        yield started


def receiver(frame_type: FrameType) -> Role:
    to_learner = "PULL_REQ BCAST_FRAGMENT SHUTDOWN ERROR FINAL_MANIFEST FINAL_FRAGMENT"
    return Role.LEARNER if frame_type.name in to_learner.split() else Role.SYNCER


def finite(message: InitParams | PushFragment, dtype: Dtype) -> bool:
    """Whether a receiver takes the values, which it judges after the payload."""
    try:
        if isinstance(message, PushFragment):
            dtypes.check_finite(dtype, message.delta)
        else:
            dtypes.check_finite(Dtype.BF16 if dtype is Dtype.Q4 else dtype, message.tensor)
    except YetoError:
        return False
    return True


# Authored cases


@pytest.mark.parametrize(("file", "case"), CASES)
def test_every_authored_case(
    adapter: Adapter, file: codec_cases.CaseFile, case: codec_cases.CaseText
) -> None:
    session = session_of(file.sessions[case.session]) if case.session else None
    known = session_shown(session)
    if case.stream:
        pieces = [[0, case.data.hex()]]
        answer = adapter.ask(
            "stream", side=case.side, session=known, admitted=case.admitted, pieces=pieces, end=True
        )
    else:
        answer = adapter.ask(
            "decode", frame=file.frame, payload=case.data.hex(), session=known, side=case.side
        )
    if case.expect == "refuse":
        (rule,) = case.rules
        assert answer == {"ok": False, "error": RULES[rule].error.__name__, "rule": rule}
        return
    assert answer["ok"], answer
    if case.stream:
        return
    message = codec.decode(FrameType[file.frame], case.data, session)
    assert answer["fields"] == fields_shown(message)
    encoded = adapter.ask("encode", frame=file.frame, fields=answer["fields"])
    assert bytes.fromhex(encoded["wire"])[13:] == case.data


# Drawn messages


@FRAMES
@EXAMPLES
@given(st.data())
def test_valid_payloads_mean_the_same(adapter: Adapter, frame_type: FrameType, data: st.DataObject) -> None:
    session = data.draw(sessions())
    message = data.draw(VALID[frame_type](session))
    payload = payload_of(message)
    side = receiver(frame_type).value
    answer = adapter.ask(
        "decode", frame=frame_type.name, payload=payload.hex(), session=session_shown(session), side=side
    )
    if isinstance(message, (InitParams, PushFragment)) and not finite(message, session.dtype):
        assert answer["error"] in ("NonFinite", "BadScale")
        return
    assert answer == {"ok": True, "fields": fields_shown(message)}
    encoded = adapter.ask("encode", frame=frame_type.name, fields=answer["fields"])
    assert bytes.fromhex(encoded["wire"])[13:] == payload


@FRAMES
@EXAMPLES
@given(st.data())
def test_broken_payloads_are_refused_by_the_same_rule(
    adapter: Adapter, frame_type: FrameType, data: st.DataObject
) -> None:
    session = data.draw(sessions())
    broken = data.draw(BROKEN[frame_type](session))
    answer = adapter.ask(
        "decode",
        frame=frame_type.name,
        payload=broken.payload.hex(),
        session=session_shown(session),
        side=receiver(frame_type).value,
    )
    expected = RULES[broken.rule].error.__name__
    assert answer == {"ok": False, "error": expected, "rule": broken.rule}


@EXAMPLES
@given(st.data())
def test_any_change_of_a_payload_ends_alike(adapter: Adapter, data: st.DataObject) -> None:
    frame_type = data.draw(st.sampled_from(FrameType))
    session = data.draw(sessions())
    payload = bytearray(payload_of(data.draw(VALID[frame_type](session))))
    at = data.draw(st.integers(0, len(payload)))
    payload[at : at + 1] = data.draw(st.binary(max_size=3))
    answer = adapter.ask(
        "decode", frame=frame_type.name, payload=payload.hex(), session=session_shown(session), side=None
    )
    try:
        message = codec.decode(frame_type, bytes(payload), session)
        if isinstance(message, (InitParams, PushFragment)) and not finite(message, session.dtype):
            assert answer["error"] in ("NonFinite", "BadScale")
            return
        ours = {"ok": True, "fields": fields_shown(message)}
    except YetoError as refused:
        ours = {"ok": False, "error": type(refused).__name__, "rule": refused.rule}
    assert answer == ours


# Streams and chunks

SESSION = Session(Dtype.F32, WireLayout.build([(MergeMode.RDA, [40], [])]), bytes(32), bytes(32), None)
INNER = payload_of(InitParams(0, np.arange(40, dtype="<f4").tobytes()))
FRAME = b"\xde\xc0\x70\xd1\x02" + len(INNER).to_bytes(8, "little") + INNER


def chunk(number: int, total: int, offset: int, data: bytes) -> bytes:
    payload = payload_of(Chunk(number, total, offset, data))
    return b"\xde\xc0\x70\xd1\x09" + len(payload).to_bytes(8, "little") + payload


def stream(adapter: Adapter, pieces: list[list[Any]], preset: str = "wire") -> dict[str, Any]:
    return adapter.ask(
        "stream",
        side="syncer",
        session=session_shown(SESSION),
        admitted=True,
        pieces=pieces,
        end=True,
        preset=preset,
    )


@EXAMPLES
@given(st.data())
def test_chunks_in_any_order_on_any_socket(adapter: Adapter, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(FRAME) - 1), max_size=8)))
    spans = data.draw(st.permutations(list(zip([0, *cuts], [*cuts, len(FRAME)], strict=True))))
    pieces = [
        [data.draw(st.integers(0, 2)), chunk(5, len(FRAME), start, FRAME[start:stop]).hex()]
        for start, stop in spans
    ]
    (message,) = stream(adapter, pieces)["messages"]
    assert message["frame"] == "INIT_PARAMS"
    assert bytes.fromhex(message["fields"]["tensor"]) == INNER[4:]


@EXAMPLES
@given(st.data())
def test_chunks_that_do_not_fit_are_refused_by_the_same_rule(adapter: Adapter, data: st.DataObject) -> None:
    """Few ids and any offset: overlaps, changed totals, too many messages and too many ranges all come up."""
    wire = b""
    for _ in range(data.draw(st.integers(1, 25))):
        start = data.draw(st.integers(0, len(FRAME) - 1))
        piece = FRAME[start : start + data.draw(st.integers(1, data.draw(st.sampled_from([2, 64]))))]
        total = data.draw(st.sampled_from([len(FRAME)] * 9 + [len(FRAME) - 1]))
        number = data.draw(st.integers(0, data.draw(st.sampled_from([0, 5]))))
        wire += chunk(number, total, start, piece)
    answer = stream(adapter, [[0, wire.hex()]], "tiny")
    reader = FrameReader(Role.SYNCER, SESSION, preset=TINY)
    try:
        reader.feed(wire)
    except YetoError as refused:
        assert answer == {"ok": False, "error": type(refused).__name__, "rule": refused.rule}
    else:
        assert answer["ok"]


# Hashes, tensors


@pytest.mark.parametrize("vector", vectors("fingerprint")["vectors"], ids=lambda vector: vector["name"])
def test_fingerprints(adapter: Adapter, vector: dict[str, Any]) -> None:
    fragments = [
        {"merge_mode": MergeMode(each["merge_mode"]).name, "tensors": each["tensors"]}
        for each in vector["fragments"]
    ]
    answer = adapter.ask("fingerprint", fragments=fragments)
    assert answer == {"ok": True, "fingerprint": vector["fingerprint_hex"]}


@pytest.mark.parametrize("vector", vectors("q4")["encode"], ids=lambda vector: vector["name"])
def test_q4_vectors(adapter: Adapter, vector: dict[str, Any]) -> None:
    values = tensor(vector)
    answer = adapter.ask("q4", values=values.tobytes().hex())
    assert hashlib.sha256(bytes.fromhex(answer["data"])).hexdigest() == vector["encoded_sha256"]
    if "decoded_f32" in vector:
        decoded = adapter.ask("q4", data=answer["data"], numel=vector["numel"])
        assert decoded["values"] == np.array(vector["decoded_f32"], "<f4").tobytes().hex()


@EXAMPLES
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=600),
    st.integers(-40, 40),
)
def test_q4_and_bf16_give_the_same_bits(adapter: Adapter, numbers: list[float], power: int) -> None:
    with np.errstate(over="ignore", under="ignore"):
        values = np.array(numbers, "<f4") * np.float32(2.0**power)
    values = values[np.isfinite(values)]
    for op, dtype in (("q4", Dtype.Q4), ("bf16", Dtype.BF16)):
        data = bytes(dtypes.encode(dtype, values))
        assert adapter.ask(op, values=values.tobytes().hex())["data"] == data.hex()
        decoded = np.asarray(dtypes.decode(dtype, data, values.size), "<f4").tobytes()
        assert adapter.ask(op, data=data.hex(), numel=values.size)["values"] == decoded.hex()


@pytest.mark.parametrize("scale", [-1.0, np.nan, np.inf])
def test_q4_refuses_a_scale(adapter: Adapter, scale: float) -> None:
    data = np.array([scale], "<f4").tobytes() + bytes(128)
    answer = adapter.ask("q4", data=data.hex(), numel=4)
    assert (answer["ok"], answer["error"]) == (False, "BadScale")


@pytest.mark.parametrize("vector", vectors("bf16")["vectors"], ids=lambda vector: vector["f32_bits"])
def test_bf16_vectors(adapter: Adapter, vector: dict[str, str]) -> None:
    values = bytes.fromhex(vector["f32_bits"])[::-1].hex()
    assert adapter.ask("bf16", values=values)["data"] == vector["wire_hex"]


# Files


def written(snapshot: Snapshot) -> bytes:
    stream = io.BytesIO()
    files.write_to(stream, snapshot)
    return stream.getvalue()


def state_of(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as answers show it."""
    return {
        "version": snapshot.version_tag.name.lower(),
        "iso_backend": snapshot.iso_backend.name if snapshot.iso_backend is not None else None,
        "fingerprint": snapshot.fingerprint.hex() if snapshot.fingerprint else None,
        "global_step": str(snapshot.global_step),
        "fragments": [
            {
                "version": str(each.version),
                "numel": str(each.params.size),
                "params": each.params.astype("<f4").tobytes().hex(),
                "momentum": each.momentum.astype("<f4").tobytes().hex(),
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
        "trailer": snapshot.trailer.form.name.lower(),
        "contract": snapshot.trailer.contract.hex() if snapshot.trailer.contract else None,
    }


@EXAMPLES
@given(snapshots())
def test_snapshots_of_every_version(adapter: Adapter, snapshot: Snapshot) -> None:
    data = written(snapshot)
    answer = adapter.ask("snapshot", file=data.hex())
    assert answer == {"ok": True, "fields": state_of(snapshot)}
    if snapshot.version_tag.name == "V3" and snapshot.trailer.form.name == "CONTRACT":
        assert adapter.ask("snapshot_encode", fields=answer["fields"])["file"] == data.hex()


@EXAMPLES
@given(snapshots(), st.data())
def test_changed_snapshots_are_refused_alike(
    adapter: Adapter, snapshot: Snapshot, data: st.DataObject
) -> None:
    changed = bytearray(written(snapshot))
    at = data.draw(st.integers(0, len(changed)))
    if data.draw(st.booleans()):
        del changed[at:]
    else:
        changed[at : at + 1] = data.draw(st.binary(max_size=2))
    answer = adapter.ask("snapshot", file=changed.hex())
    try:
        SnapshotReader(io.BytesIO(changed)).read()
    except YetoError as refused:
        assert (answer["ok"], answer.get("error")) == (False, type(refused).__name__)
    else:
        assert answer["ok"]


@pytest.mark.parametrize(
    "data",
    [
        b"YETO_FINAL_V1\nglobal_step=5\n",
        b"YETO_FINAL_V1\nglobal_step=007\n",
        b"YETO_FINAL_V1\nglobal_step=18446744073709551615\n",
        b"YETO_FINAL_V1\nglobal_step=18446744073709551616\n",
        b"YETO_FINAL_V1\nglobal_step=5",
        b"YETO_FINAL_V1\nglobal_step=5\n\n",
        b"YETO_FINAL_V1\r\nglobal_step=5\n",
        b"YETO_FINAL_V1\nglobal_step=\xd9\xa5\n",
        b"YETO_FINAL_V1\nglobal_step=\n",
        b"",
    ],
)
def test_markers(adapter: Adapter, data: bytes) -> None:
    answer = adapter.ask("marker", file=data.hex())
    try:
        step = files.parse_marker(data)
    except YetoError as refused:
        assert answer == {"ok": False, "error": type(refused).__name__, "rule": refused.rule}
    else:
        assert answer == {"ok": True, "fields": {"global_step": str(step)}}


def test_a_final_state(adapter: Adapter) -> None:
    data = bytes.fromhex(vectors("merge")["vectors"]["final_state"]["hex"])
    answer = adapter.ask("final_state", file=data.hex())
    assert [each["numel"] for each in answer["fields"]["fragments"]]
    assert adapter.ask("final_state", file=data.hex() + "00")["error"] == "TrailingBytes"
    assert adapter.ask("final_state", file=data[:-1].hex())["error"] == "Truncated"
    assert adapter.ask("final_state", file="00000000")["error"] == "BadFragmentCount"


def test_what_it_does_not_know_it_says(adapter: Adapter) -> None:
    assert adapter.ask("merge") == {"unsupported": True}
