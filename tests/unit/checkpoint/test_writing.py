"""`yeto-checkpoint export`, `migrate`, `diff` and `hash`."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from tests.unit.checkpoint.samples import CONTRACT, LAYOUT, SHAPES, STEP, Command, put, snapshot
from yeto_proto import files
from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import FragmentState, Snapshot, SnapshotVersion, TrailerForm
from yeto_proto.layout import Fragment, Layout, Tensor, build_layout
from yeto_syncer.checkpoint import named
from yeto_syncer.shell.lockfile import LockFile

F32 = npt.NDArray[np.float32]
OLD = [SnapshotVersion.V1, SnapshotVersion.V2]
FINGERPRINT = LAYOUT.fingerprint().hex()


def tensors(content: Snapshot, *, momentum: bool = False) -> dict[str, F32]:
    """The tensors of a snapshot of the sample layout, cut out by hand."""
    named = {}
    for fragment, state in zip(LAYOUT.fragments, content.fragments, strict=True):
        values = state.momentum if momentum else state.params
        start = 0
        for tensor in fragment.tensors:
            named[tensor.name] = values[start : start + tensor.numel].reshape(SHAPES[tensor.name])
            start += tensor.numel
    return named


def loaded(path: Path) -> dict[str, F32]:
    """What an exported file holds, read by the libraries that define the formats."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    return dict(load_file(path))


def same(one: dict[str, F32], other: dict[str, F32]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and one[name].tobytes() == other[name].tobytes() for name in one
    )


# -- export --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
@pytest.mark.parametrize("version", SnapshotVersion, ids=lambda each: each.name)
def test_export_names_every_tensor(
    command: Command, tmp_path: Path, layout_file: Path, version: SnapshotVersion, ending: str
) -> None:
    made = snapshot(version, TrailerForm.NONE)
    made.fragments[0].params[:3] = [np.nan, -0.0, np.float32(1e-45)]  # bits go through as they are
    path, output = put(tmp_path / "state.ckpt", made), tmp_path / f"model{ending}"
    done = command("export", path, "--layout", layout_file, "--output", output)
    assert f"{len(SHAPES)} tensors" in done.fine()
    assert ("cannot prove this layout" in done.err) == (version is not SnapshotVersion.V3)
    assert same(loaded(output), tensors(made))
    assert not output.with_name(f"model{ending}.tmp").exists()
    command("export", path, "--layout", layout_file, "--output", output, "--momentum", "--force").fine()
    assert same(loaded(output), tensors(made, momentum=True))


@pytest.mark.parametrize("form", [TrailerForm.FINGERPRINT, TrailerForm.CONTRACT, TrailerForm.SWEEP])
def test_a_trailer_proves_the_layout_of_an_old_file(
    command: Command, tmp_path: Path, layout_file: Path, form: TrailerForm
) -> None:
    path = put(tmp_path / "state.ckpt", snapshot(SnapshotVersion.V2, form))
    flags = ("--layout", layout_file, "--output", tmp_path / "model.npz", "--json")
    done = command("export", path, *flags)
    assert json.loads(done.fine())["layout_proven"] and done.err == ""


def test_export_takes_the_names_of_a_model(command: Command, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    save_file({name: np.zeros(shape, np.float16) for name, shape in SHAPES.items()}, model)
    path, output = put(tmp_path / "state.ckpt", snapshot()), tmp_path / "trained.safetensors"
    command("export", path, "--layout", model, "--output", output).fine()
    assert same(loaded(output), tensors(snapshot()))
    error = command(
        "export", path, "--layout", model, "--output", output, "--force", "--fragments", "2"
    ).error()
    assert "fragment" in error and str(path) in error
    assert same(loaded(output), tensors(snapshot()))  # the refusal came before anything was written


def test_export_of_a_final_state(command: Command, tmp_path: Path, layout_file: Path) -> None:
    path, output = tmp_path / "final.bin", tmp_path / "model.npz"
    files.write_final_state(path, [each.params for each in snapshot().fragments])
    done = command("export", path, "--layout", layout_file, "--output", output)
    assert done.fine() and "cannot prove" in done.err
    assert same(loaded(output), tensors(snapshot()))
    flags = ("--layout", layout_file, "--output", tmp_path / "m.npz", "--momentum")
    assert "no momentum" in command("export", path, *flags).error()


def test_export_refuses_without_touching_anything(
    command: Command, tmp_path: Path, layout_file: Path
) -> None:
    path, output = put(tmp_path / "state.ckpt", snapshot()), tmp_path / "model.npz"
    output.write_text("mine")
    flags = ("--layout", layout_file, "--output", output)
    assert "is there already" in command("export", path, *flags).error()
    assert "no format" in command("export", path, "--layout", layout_file, "--output", tmp_path / "x").error()
    assert (
        "there is no folder"
        in command("export", path, "--layout", layout_file, "--output", tmp_path / "no" / "x.npz").error()
    )
    other = tmp_path / "other.json"
    other.write_text(renamed_layout(LAYOUT.fragments[0].tensors[0].name, "renamed"))
    error = command("export", path, "--layout", other, "--output", output, "--force").error()
    assert "fingerprint" in error
    torn = tmp_path / "torn.ckpt"
    torn.write_bytes(path.read_bytes()[:-100])
    command("export", torn, *flags, "--force").error()
    assert output.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "layout.json",
        "model.npz",
        "other.json",
        "state.ckpt",
        "torn.ckpt",
    ]


def renamed_layout(old: str, new: str) -> str:
    """The layout file of a layout that differs in one name."""
    return Layout(
        tuple(
            Fragment(
                fragment.merge_mode,
                tuple(
                    Tensor(new if tensor.name == old else tensor.name, tensor.numel, tensor.shape)
                    for tensor in fragment.tensors
                ),
            )
            for fragment in LAYOUT.fragments
        )
    ).to_json()


# -- migrate -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", OLD, ids=lambda each: each.name)
@pytest.mark.parametrize("contract", [None, CONTRACT], ids=["none", "contract"])
def test_a_migrated_checkpoint_can_be_resumed(
    command: Command, tmp_path: Path, version: SnapshotVersion, contract: bytes | None
) -> None:
    old = snapshot(version, TrailerForm.NONE)
    path, output = put(tmp_path / "old.ckpt", old), tmp_path / "new.ckpt"
    flags = ["--output", str(output), "--fingerprint", FINGERPRINT]
    if version is SnapshotVersion.V1:
        assert "iso backend" in command("migrate", path, *flags).error()
        assert not output.exists()
        flags += ["--iso-backend", "scalar"]
    if contract is not None:
        flags += ["--contract", contract.hex()]
    said = command("migrate", path, *flags).fine()
    assert "supplied by hand" in said and "layout fingerprint" in said
    assert ("iso backend" in said.splitlines()[1]) == (version is SnapshotVersion.V1)
    loaded_again = files.load_checkpoint(output, IsoBackend.SCALAR)
    session = contract or LAYOUT.fingerprint()
    files.check_session(loaded_again, LAYOUT.wire(), LAYOUT.fingerprint(), session)
    assert loaded_again.version_tag is SnapshotVersion.V3 and loaded_again.global_step == STEP
    assert list(loaded_again.fragments) == list(old.fragments) and loaded_again.ledger == old.ledger
    command("verify", output, "--fingerprint", FINGERPRINT).fine()


def test_migrate_refuses_what_it_cannot_make_right(command: Command, tmp_path: Path) -> None:
    output = tmp_path / "new.ckpt"
    flags = ("--output", output, "--fingerprint", FINGERPRINT)
    v2 = put(tmp_path / "v2.ckpt", snapshot(SnapshotVersion.V2, TrailerForm.CONTRACT))
    for path, more, words in (
        (put(tmp_path / "v3.ckpt", snapshot()), (), "V3 already"),
        (v2, ("--iso-backend", "torch-svd"), "iso backend"),
        (v2, ("--contract", "00" * 32), "another session contract"),
        (put(tmp_path / "s.ckpt", snapshot(SnapshotVersion.V2, TrailerForm.SWEEP)), (), "sweep"),
        (put(tmp_path / "g.ckpt", gap(SnapshotVersion.V2)), (), "version of fragment 0"),
    ):
        assert words in command("migrate", path, *flags, *more).error()
    wrong = ("--output", output, "--fingerprint", "00" * 32)
    assert "fingerprint" in command("migrate", v2, *wrong).error()
    assert not output.exists()
    assert command("migrate", v2, "--output", output).code == 2
    assert command("migrate", v2, "--output", output, "--fingerprint", "12").code == 2


def gap(version: SnapshotVersion) -> Snapshot:
    """A checkpoint whose versions are not those of its step."""
    made = snapshot(version, TrailerForm.NONE)
    first = made.fragments[0]
    moved = FragmentState(first.version + 1, first.params, first.momentum)
    return Snapshot(
        version, made.iso_backend, None, STEP, [moved, *made.fragments[1:]], made.ledger, None, made.trailer
    )


@pytest.mark.rule("syncer.checkpoint.lock")
def test_migrate_never_writes_beside_a_syncer_nor_under_an_old_marker(
    command: Command, tmp_path: Path
) -> None:
    path = put(tmp_path / "old.ckpt", snapshot(SnapshotVersion.V2, TrailerForm.NONE))
    output = put(tmp_path / "new.ckpt", snapshot(step=9))
    files.write_marker(output, 9)
    flags = ("--output", output, "--fingerprint", FINGERPRINT)
    assert "is there already" in command("migrate", path, *flags).error()
    with LockFile(output):
        assert "holds the lock" in command("migrate", path, *flags, "--force").error()
        assert files.read_snapshot(output).global_step == 9 and files.verify_marker(output) == 9
    command("migrate", path, *flags, "--force").fine()
    assert files.read_snapshot(output).global_step == STEP
    assert not files.marker_path(output).exists()


# -- diff and hash -------------------------------------------------------------------------------------------


def test_diff_finds_one_bit_and_says_how_much_it_is(command: Command, tmp_path: Path) -> None:
    one = put(tmp_path / "one.ckpt", snapshot())
    two = put(tmp_path / "two.ckpt", snapshot())
    assert "equal" in command("diff", one, two).fine()
    changed = snapshot()
    changed.fragments[2].params[1] += 0.5
    put(two, changed)
    done = command("diff", one, two, "--json")
    assert done.code == 1 and done.err == ""
    found = json.loads(done.out)
    assert not found["equal"] and found["fields"] == []
    (array,) = found["arrays"]
    assert (array["fragment"], array["array"], array["differing"]) == (2, "params", 1)
    assert array["largest"] == pytest.approx(0.5, rel=1e-5) == array["distance"]
    assert "1 of" in command("diff", one, two).out


def test_diff_tells_everything_else_that_differs(command: Command, tmp_path: Path) -> None:
    one = put(tmp_path / "one.ckpt", snapshot())
    two = put(tmp_path / "two.ckpt", snapshot(SnapshotVersion.V2, TrailerForm.NONE, step=8))
    names = [field["name"] for field in json.loads(command("diff", one, two, "--json").out)["fields"]]
    assert {"version", "fingerprint", "contract", "global step", "trailer bytes"} < set(names)
    assert "fragment 1 version" in names
    final = tmp_path / "final.bin"
    files.write_final_state(final, [each.params for each in snapshot().fragments])
    assert "the parameters" in command("diff", one, final).fine()
    files.write_final_state(final, [each.params for each in snapshot().fragments][:2])
    assert "fragment 2 values" in command("diff", final, one).out


def test_hashes_are_those_of_the_values(command: Command, tmp_path: Path) -> None:
    made = snapshot()
    path = put(tmp_path / "one.ckpt", made)
    found = json.loads(command("hash", path, "--json").fine())
    assert found["file"] == hashlib.sha256(path.read_bytes()).hexdigest()
    params = b"".join(each.params.tobytes() for each in made.fragments)
    assert found["params"] == hashlib.sha256(params).hexdigest()
    assert found["fragments"][1]["momentum"] == hashlib.sha256(made.fragments[1].momentum).hexdigest()
    old = put(tmp_path / "old.ckpt", snapshot(SnapshotVersion.V1, TrailerForm.NONE))
    final = tmp_path / "final.bin"
    files.write_final_state(final, [each.params for each in made.fragments])
    for other in (old, final):
        assert f"{found['params']}  params" in command("hash", other).fine()
    assert f"{found['file']}  file" in command("hash", path).fine()


def test_help_and_version(command: Command) -> None:
    assert "examples:" in command("--help").out and "exit codes:" in command("--help").out
    assert command("--version").fine().startswith("yeto-checkpoint ")
    for name in ("inspect", "verify", "export", "diff", "migrate", "hash"):
        assert f"yeto-checkpoint {name}" in command(name, "--help").fine()
    assert command("inspekt", "x").code == 2


# -- what comes in between -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export_leaves_nothing(
    command: Command,
    tmp_path: Path,
    layout_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    def interrupted(pieces: object, writer: named.Writer) -> None:
        writer.write(np.zeros(3, np.float32))
        writer.give_up()
        signal.raise_signal(number)

    monkeypatch.setattr(named, "copy", interrupted)
    path = put(tmp_path / "state.ckpt", snapshot())
    for ending in ("npz", "safetensors"):
        done = command("export", path, "--layout", layout_file, "--output", tmp_path / f"m.{ending}")
        assert done.code == 128 + number and done.err == f"interrupted by {number.name}\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["layout.json", "state.ckpt"]


@pytest.mark.parametrize("what", ["m.npz", "m.safetensors", "migrate"])
def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path, what: str) -> None:
    """The limit of a file's size stands in for it."""
    numel = 20_000
    layout = build_layout({"a.weight": numel, "b.weight": numel}, 2)
    fragments = [FragmentState(0, np.ones(numel, np.float32), np.ones(numel, np.float32))] * 2
    old = what == "migrate"
    version = SnapshotVersion.V2 if old else SnapshotVersion.V3
    fingerprint = None if old else layout.fingerprint()
    path = put(
        tmp_path / "state.ckpt",
        Snapshot(version, IsoBackend.SCALAR, fingerprint, 0, fragments, {}, None, None),
    )
    (tmp_path / "layout.json").write_text(layout.to_json())
    output = tmp_path / what
    output.write_text("old")
    if old:
        flags = ["migrate", str(path), "--fingerprint", layout.fingerprint().hex()]
    else:
        flags = ["export", str(path), "--layout", str(tmp_path / "layout.json")]
    program = "from yeto_syncer.checkpoint.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    # Bytecode that the limit has cut would break every later import.
    limited = ["/bin/sh", "-c", 'export PYTHONDONTWRITEBYTECODE=1; ulimit -f 64; exec "$@"', "sh"]
    done = subprocess.run(
        [*limited, sys.executable, "-c", program, *flags, "--output", str(output), "--force"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1 and done.stdout == ""
    (error,) = done.stderr.splitlines()
    assert error.startswith("error: File too large")
    assert output.read_text() == "old" and not output.with_name(f"{what}.tmp").exists()
