"""`yeto-checkpoint inspect` and `verify`: what a file says, and every way in which it can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.checkpoint.samples import CONTRACT, LAYOUT, STEP, Command, put, snapshot
from tests.unit.snapshot_samples import file_bytes
from yeto_proto import files
from yeto_proto.files import SnapshotVersion, TrailerForm

ALL = [(version, form) for version in SnapshotVersion for form in TrailerForm]


@pytest.mark.parametrize(("version", "form"), ALL, ids=lambda each: each.name)
def test_inspect_tells_every_version_and_trailer(
    command: Command, tmp_path: Path, version: SnapshotVersion, form: TrailerForm
) -> None:
    path = put(tmp_path / "state.ckpt", snapshot(version, form))
    about = json.loads(command("inspect", path, "--json").fine())
    recorded = version is SnapshotVersion.V3 or form is not TrailerForm.NONE
    contract = form in (TrailerForm.CONTRACT, TrailerForm.SWEEP)
    assert about["kind"] == "snapshot" and about["version"] == int(version)
    assert about["iso_backend"] == (None if version is SnapshotVersion.V1 else "scalar")
    assert about["fingerprint"] == (LAYOUT.fingerprint().hex() if recorded else None)
    assert about["contract"] == (CONTRACT.hex() if contract else None)
    assert about["global_step"] == STEP and about["bytes"] == path.stat().st_size
    assert about["fragments"] == [
        {"id": number, "version": files.expected_version(STEP, number, 3), "numel": fragment.numel}
        for number, fragment in enumerate(LAYOUT.fragments)
    ]
    assert about["ledger"][1] == {"learner_id": 1, "merges": 2, "steps": 48, "tokens": 96_000}
    assert about["trailer"]["bytes"] == int(form)
    text = command("inspect", path).fine()
    assert f"checkpoint V{int(version)}" in text and "96,000" in text
    verdict = command("verify", path).fine()
    assert "whole" in verdict
    assert ("no session contract" in verdict) == (version is SnapshotVersion.V3 and not contract)
    assert ("never resumed" in verdict) == (version is SnapshotVersion.V1 or "SWEEP" in form.name)


def test_inspect_knows_the_marker_and_an_unfinished_write(command: Command, tmp_path: Path) -> None:
    path = put(tmp_path / "state.ckpt", snapshot())
    assert "none" in command("inspect", path).fine()
    files.write_marker(path, STEP)
    (tmp_path / "state.ckpt.tmp").write_bytes(b"half")
    text = command("inspect", path).fine()
    assert "the finished end of its run" in text and "unfinished write (.tmp) of 4 bytes" in text
    files.write_marker(path, STEP + 1)
    assert f"does not belong to this checkpoint: {STEP + 1}" in command("inspect", path).fine()
    assert json.loads(command("inspect", files.marker_path(path), "--json").fine()) == {
        "kind": "final_marker",
        "global_step": STEP + 1,
    }


def test_inspect_tells_a_final_state(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "final.bin"
    files.write_final_state(path, [each.params for each in snapshot().fragments])
    about = json.loads(command("inspect", path, "--json").fine())
    assert about["kind"] == "final_state" and about["numel"] == LAYOUT.numel
    assert "final state" in command("inspect", path).fine()
    assert "whole" in command("verify", path).fine()


# -- faults --------------------------------------------------------------------------------------------------


def verdict_of(command: Command, path: Path, *flags: str) -> dict[str, Any]:
    """The verdict on a file that is not whole."""
    done = command("verify", path, "--json", *flags)
    assert str(path) in done.error()
    verdict: dict[str, Any] = json.loads(done.out)
    assert not verdict["ok"]
    return verdict


HEAD = 49
NUMELS = [fragment.numel for fragment in LAYOUT.fragments]
STARTS = [HEAD + sum(16 + 8 * numel for numel in NUMELS[:number]) for number in range(4)]
LEDGER = STARTS[3]
TRAILER = LEDGER + 4 + 2 * 28

# field, its first byte, the bit that flips, what verify must say: field and offset, rule
FLIPS = [
    ("magic", 0, 0, "magic", 0, "snapshot.magic.must"),
    ("backend", 4, 1, "iso_backend", 4, "snapshot.iso_backend.must"),
    ("fingerprint", 5, 3, "trailer", TRAILER, "snapshot.trailer.must"),
    ("global step", 37, 0, "version", STARTS[0], "snapshot.version.contiguous"),
    ("high global step", 44, 7, "version", STARTS[0], "snapshot.version.contiguous"),
    ("more fragments", 45, 2, None, None, "snapshot.complete"),
    ("many fragments", 48, 7, "3 fragments", None, "snapshot.complete"),
    ("version 0", STARTS[0], 0, "version", STARTS[0], "snapshot.version.contiguous"),
    ("version 2", STARTS[2] + 7, 6, "version", STARTS[2], "snapshot.version.contiguous"),
    ("numel 0", STARTS[0] + 8, 3, None, None, None),
    ("numel 1", STARTS[1] + 15, 7, "fragment 1 params", STARTS[1] + 16, "snapshot.complete"),
    ("ledger count", LEDGER, 1, None, None, None),
    ("high ledger count", LEDGER + 3, 7, None, LEDGER + 4, "snapshot.complete"),
    ("learner id", LEDGER + 4 + 28, 0, "ledger.learner_id", LEDGER + 4 + 28, "snapshot.ledger.unique"),
    ("trailer fingerprint", TRAILER, 0, "trailer", TRAILER, "snapshot.trailer.must"),
    ("trailer tag", TRAILER + 32, 0, "trailer", TRAILER + 32, "snapshot.trailer.must"),
]


@pytest.mark.rule("snapshot.magic.must")
@pytest.mark.rule("snapshot.version.contiguous")
@pytest.mark.rule("snapshot.trailer.must")
@pytest.mark.rule("snapshot.ledger.unique")
@pytest.mark.parametrize(
    ("name", "byte", "bit", "field", "offset", "rule"), FLIPS, ids=lambda each: str(each)
)
def test_a_flipped_bit_is_found_and_placed(
    command: Command,
    tmp_path: Path,
    name: str,
    byte: int,
    bit: int,
    field: str | None,
    offset: int | None,
    rule: str | None,
) -> None:
    data = bytearray(file_bytes(snapshot()))
    data[byte] ^= 1 << bit
    path = tmp_path / "state.ckpt"
    path.write_bytes(data)
    faults = verdict_of(command, path)["faults"]
    if rule is not None:
        first = next(fault for fault in faults if fault["rule"] == rule)
        assert offset is None or first["offset"] == offset, name
        assert first["expected"] is not None and first["seen"] is not None
        if field is not None and not field.startswith("3"):
            assert first["field"] == field
    assert path.read_bytes() == bytes(data)


def test_bits_that_only_somebody_who_knows_can_miss(command: Command, tmp_path: Path) -> None:
    """Backend and contract: any value is a right one, unless it is said which."""
    for byte, flag, wanted, field in (
        (4, "--iso-backend", "scalar", "iso_backend"),
        (TRAILER + 36, "--contract", CONTRACT.hex(), "contract"),
    ):
        data = bytearray(file_bytes(snapshot()))
        data[byte] ^= 1
        path = tmp_path / "state.ckpt"
        path.write_bytes(data)
        command("verify", path).fine()
        (fault,) = verdict_of(command, path, flag, wanted)["faults"]
        assert fault["field"] == field and fault["offset"] == byte


@pytest.mark.rule("snapshot.complete")
@pytest.mark.parametrize("version", SnapshotVersion, ids=lambda each: each.name)
def test_a_file_cut_at_every_byte_is_never_whole(
    command: Command, tmp_path: Path, version: SnapshotVersion
) -> None:
    whole = file_bytes(
        snapshot(version, TrailerForm.NONE if version is SnapshotVersion.V1 else TrailerForm.CONTRACT)
    )
    path = tmp_path / "state.ckpt"
    for size in range(0, len(whole), 5):
        path.write_bytes(whole[:size])
        # Up to the magic it might be anything; without its trailer a file is whole, and says another thing.
        if size == len(whole) - int(TrailerForm.CONTRACT) and version is not SnapshotVersion.V1:
            continue
        done = command("verify", path, "--json")
        verdict = json.loads(done.out)
        assert done.code == 1, size
        fault = verdict["faults"][-1]
        assert fault["rule"] in ("snapshot.complete", "snapshot.trailer.must"), (size, fault)
        assert fault["offset"] is not None and fault["offset"] <= size


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_values_that_are_no_numbers_are_counted_and_placed(
    command: Command, tmp_path: Path, value: float
) -> None:
    made = snapshot()
    made.fragments[1].momentum[[2, 5]] = value
    path = put(tmp_path / "state.ckpt", made)
    (fault,) = verdict_of(command, path)["faults"]
    assert fault["field"] == "momentum" and "2 of" in fault["what"] and "fragment 1" in fault["what"]
    assert fault["offset"] == STARTS[1] + 16 + 4 * NUMELS[1] + 4 * 2
    assert fault["seen"] == str(np.float32(value))


def test_a_wrong_layout_is_named(command: Command, tmp_path: Path, layout_file: Path) -> None:
    path = put(tmp_path / "state.ckpt", snapshot())
    command("verify", path, "--layout", layout_file).fine()
    old = put(tmp_path / "old.ckpt", snapshot(SnapshotVersion.V2, TrailerForm.NONE))
    notes = command("verify", old, "--layout", layout_file).fine()
    assert "only where each fragment is one tensor" in notes and "nothing in the file proves" in notes
    other = tmp_path / "other.json"
    other.write_text(LAYOUT.to_json().replace("scale", "scala"))
    assert "metadata was changed" in command("verify", path, "--layout", other).error()
    (fault,) = verdict_of(command, path, "--fingerprint", "ab" * 32)["faults"]
    assert fault["rule"] == "snapshot.fingerprint.session" and fault["offset"] == 5
    assert fault["expected"] == "ab" * 32 and fault["seen"] == LAYOUT.fingerprint().hex()


@pytest.mark.rule("final_marker.global_step.checkpoint")
def test_a_marker_that_does_not_belong_here_is_a_fault_of_both(command: Command, tmp_path: Path) -> None:
    path = put(tmp_path / "state.ckpt", snapshot())
    files.write_marker(path, STEP)
    command("verify", path).fine()
    command("verify", files.marker_path(path)).fine()
    files.write_marker(path, STEP + 3)
    for judged in (path, files.marker_path(path)):
        (fault,) = verdict_of(command, judged)["faults"]
        assert (fault["expected"], fault["seen"]) == (str(STEP), str(STEP + 3))
    files.marker_path(path).write_text("YETO_FINAL_V1\nglobal_step=7")
    assert verdict_of(command, path)["faults"][0]["field"] == "final marker"
    path.unlink()
    files.write_marker(path, STEP)
    assert "no checkpoint" in command("verify", files.marker_path(path)).error()


def test_what_is_odd_without_being_wrong_is_a_note(command: Command, tmp_path: Path) -> None:
    made = snapshot()
    data = bytearray(file_bytes(made))
    entry = data[LEDGER + 4 : LEDGER + 4 + 28]
    data[LEDGER + 4 : LEDGER + 4 + 28] = data[LEDGER + 32 : LEDGER + 60]
    data[LEDGER + 32 : LEDGER + 60] = entry
    data[LEDGER + 8] = 99  # merges of the first entry
    path = tmp_path / "state.ckpt"
    path.write_bytes(data)
    notes = command("verify", path).fine()
    assert "ascending order" in notes and "99 merges" in notes and "fewer than its merges" in notes


@pytest.mark.parametrize("content", [b"", b"\n", b"PK\3\4" + bytes(60), b"\xff" * 100], ids=len)
def test_what_is_no_file_of_a_run_is_refused_in_one_line(
    command: Command, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "thing"
    path.write_bytes(content)
    for name in ("inspect", "verify", "hash"):
        assert str(path) in command(name, path).error()
    for place in (tmp_path, tmp_path / "none", Path("/dev/null")):
        for name in ("inspect", "verify", "hash"):
            command(name, place).error()
