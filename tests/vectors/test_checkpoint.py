"""Snapshots, final marker and final state against recorded bytes, read and written."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yeto_proto import files
from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import (
    FragmentState,
    LedgerEntry,
    Snapshot,
    SnapshotReader,
    SnapshotVersion,
    Trailer,
    TrailerForm,
)

FOLDER = Path(__file__).parent
SAMPLE = json.loads((FOLDER / "checkpoint.json").read_text())
MERGE = json.loads((FOLDER / "merge.json").read_text())["vectors"]
WHOLE = [name for name in MERGE if name.startswith("checkpoint_") and "fragments" in MERGE[name]]


def fragment(state: dict[str, Any]) -> FragmentState:
    return FragmentState(
        state["version"], np.array(state["params"], "<f4"), np.array(state["momentum"], "<f4")
    )


def digest(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def written(snapshot: Snapshot) -> bytes:
    stream = io.BytesIO()
    assert files.write_to(stream, snapshot) == len(stream.getvalue())
    return stream.getvalue()


def trailer_of(form: TrailerForm, fingerprint: bytes | None, contract: bytes | None) -> Trailer:
    if form is TrailerForm.NONE:
        return Trailer()
    return Trailer(form, fingerprint, contract if form is TrailerForm.CONTRACT else None)


@pytest.mark.parametrize("form", SAMPLE["files"], ids=lambda form: form["name"])
def test_the_sample_state_in_each_form(form: dict[str, Any]) -> None:
    sample = SAMPLE["sample"]
    version = SnapshotVersion(form["version"])
    v3 = version is SnapshotVersion.V3
    fingerprint, contract = digest(sample["fingerprint_hex"]), digest(sample["contract_hex"])
    trailer = trailer_of(TrailerForm(form["bytes_after_ledger"]), fingerprint, contract)
    snapshot = Snapshot(
        version,
        IsoBackend(sample["backend"]) if v3 else None,
        fingerprint if v3 else None,
        sample["global_step"],
        [fragment(state) for state in sample["fragments"]],
        {
            entry["learner_id"]: LedgerEntry(entry["merges"], entry["steps"], entry["tokens"])
            for entry in sample["ledger"]
        },
        trailer.contract,
        trailer,
    )
    data = written(snapshot)
    assert len(data) == form["length"]
    assert data.endswith(bytes.fromhex(form["trailer_hex"]))
    assert hashlib.sha256(data).hexdigest() == form["sha256"]
    assert SnapshotReader(io.BytesIO(data)).read() == snapshot
    assert files.read_global_step(io.BytesIO(data)) == sample["global_step"]


def test_each_field_of_v3_lies_where_it_is_recorded() -> None:
    sample = SAMPLE["sample"]
    fingerprint, contract = digest(sample["fingerprint_hex"]), digest(sample["contract_hex"])
    ledger = {0: LedgerEntry(5, 120, 240000), 3: LedgerEntry(2, 48, 96000)}
    data = written(
        Snapshot(
            SnapshotVersion.V3,
            IsoBackend.SCALAR,
            fingerprint,
            sample["global_step"],
            [fragment(state) for state in sample["fragments"]],
            ledger,
            contract,
        )
    )
    covered = 0
    for field in SAMPLE["v3_offsets"]:
        assert field["offset"] == covered, field["field"]
        assert data[covered : covered + field["length"]].hex() == field["hex"], field["field"]
        covered += field["length"]
    assert len(data) - covered == TrailerForm.CONTRACT  # the contract form is what a snapshot gets by default


@pytest.mark.parametrize("name", WHOLE)
def test_whole_files(name: str) -> None:
    vector = MERGE[name]
    version = SnapshotVersion(int(name.split("_")[1][1:]))
    fingerprint, contract = digest(vector["fingerprint_hex"]), digest(vector["contract_hex"])
    trailer = trailer_of(TrailerForm(vector["bytes_after_ledger"]), fingerprint, contract)
    snapshot = Snapshot(
        version,
        None if vector["backend"] is None else IsoBackend(vector["backend"]),
        fingerprint,
        vector["global_step"],
        [fragment(state) for state in vector["fragments"]],
        {int(learner): LedgerEntry(*counts) for learner, counts in vector["ledger"].items()},
        contract,
        trailer,
    )
    data = written(snapshot)
    assert len(data) == vector["length"]
    assert hashlib.sha256(data).hexdigest() == vector["sha256"]
    assert data.endswith(bytes.fromhex(vector.get("trailer_hex", "")))
    if "hex" in vector:
        assert data.hex() == vector["hex"]
    assert SnapshotReader(io.BytesIO(data)).read() == snapshot


def test_the_tiny_torch_file_reads_and_writes_back() -> None:
    vector = MERGE["checkpoint_v3_tiny_torch"]
    data = bytes.fromhex(vector["hex"])
    snapshot = SnapshotReader(io.BytesIO(data)).read()
    assert snapshot.iso_backend is IsoBackend.TORCH_SVD
    assert snapshot.fingerprint == digest(vector["fingerprint_hex"])
    assert snapshot.global_step == vector["global_step"]
    assert snapshot.fragments == [FragmentState(1, np.ones(1, "<f4"), np.zeros(1, "<f4"))]
    assert (snapshot.ledger, snapshot.contract, snapshot.trailer) == ({}, None, Trailer())
    assert written(snapshot) == data


def test_offsets_of_the_step_by_version() -> None:
    for name, offset in SAMPLE["global_step_offset"].items():
        data = bytearray(64)
        data[:4] = bytes.fromhex(SAMPLE["prefixes_hex"][name])
        data[offset : offset + 8] = (0x0123456789ABCDEF).to_bytes(8, "little")
        assert files.read_global_step(io.BytesIO(data)) == 0x0123456789ABCDEF


@pytest.mark.parametrize("name", MERGE["strict_order_versions"])
def test_versions_of_a_contiguous_cut(name: str) -> None:
    fragments, step = (int(part[2:]) for part in name.split(","))
    versions = MERGE["strict_order_versions"][name]
    assert [files.expected_version(step, f, fragments) for f in range(fragments)] == versions
    files.check_round_robin(versions, step)


def test_final_state() -> None:
    vector = MERGE["final_state"]
    fragments = [np.array(values, "<f4") for values in vector["fragments"]]
    stream = io.BytesIO()
    files.write_final_state_to(stream, fragments)
    assert stream.getvalue().hex() == vector["hex"]
    stream.seek(0)
    found = files.read_final_state_from(stream)
    assert [params.tolist() for params in found] == vector["fragments"]


def test_marker() -> None:
    marker = SAMPLE["marker"]
    data = bytes.fromhex(marker["bytes_hex"])
    assert files.format_marker(marker["global_step"]) == data
    assert files.parse_marker(data) == marker["global_step"]
