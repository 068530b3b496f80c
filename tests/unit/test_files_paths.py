"""Files on disk: atomic, durable, and the old one survives every failure."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.snapshot_samples import cut, file_bytes
from yeto_proto import files
from yeto_proto._generated.errors import BadArgument, BadMarker, NotContiguous, Truncated
from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import SnapshotVersion

OLD, NEW = cut(4), cut(5)
PARAMS = [np.ones(3, np.float32), np.zeros(2, np.float32)]


class Calls:
    """The calls that make a write durable, in order; the one named in `failing` raises ENOSPC."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: str | None = None) -> None:
        self.made: list[str] = []
        self._failing = failing
        self._fsync, self._replace = os.fsync, Path.replace
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(Path, "replace", lambda source, target: self.replace(source, target))

    def note(self, name: str) -> None:
        self.made.append(name)
        if name == self._failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fsync(self, descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        self.note("flush directory" if is_directory else "flush file")
        self._fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        self.note("rename")
        self._replace(source, target)


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    files.write_snapshot(path, NEW)
    assert path.read_bytes() == file_bytes(NEW)
    found = files.read_snapshot(path)
    assert (found.head, found.fragments, found.ledger) == (NEW.head, NEW.fragments, NEW.ledger)
    assert files.read_checkpoint_step(path) == 5
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.ckpt"]


def test_a_write_is_flushed_renamed_and_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    files.write_snapshot(tmp_path / "state.ckpt", NEW)
    files.write_marker(tmp_path / "state.ckpt", 5)
    files.write_final_state(tmp_path / "final", PARAMS)
    assert calls.made == ["flush file", "rename", "flush directory"] * 3
    calls.made.clear()
    assert files.remove_marker(tmp_path / "state.ckpt")
    assert calls.made == ["flush directory"]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("state.ckpt", lambda path: files.write_snapshot(path, NEW)),
        ("state.ckpt.final", lambda path: files.write_marker(path.with_suffix(""), 5)),
        ("final.bin", lambda path: files.write_final_state(path, PARAMS)),
    ],
)
@pytest.mark.parametrize("failing", ["flush file", "rename"])
def test_the_old_file_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Callable[[Path], None], failing: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    Calls(monkeypatch, failing)
    with pytest.raises(OSError, match="No space"):
        write(path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_directory_that_cannot_be_flushed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Calls(monkeypatch, "flush directory")
    with pytest.raises(OSError, match="No space"):
        files.write_snapshot(tmp_path / "state.ckpt", NEW)
    assert (tmp_path / "state.ckpt").read_bytes() == file_bytes(NEW)


def test_an_interrupt_in_mid_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    files.write_snapshot(path, OLD)

    def interrupt(done: int, total: int) -> None:
        assert files.temporary_path(path).exists()
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_snapshot(path, NEW, progress=interrupt)
    assert files.read_checkpoint_step(path) == 4
    assert not files.temporary_path(path).exists()


def test_a_directory_in_the_place_of_the_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    files.write_snapshot(path, OLD)
    (tmp_path / "state.ckpt.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_snapshot(path, NEW)
    assert files.read_checkpoint_step(path) == 4
    assert (tmp_path / "state.ckpt.tmp").is_dir()


# Writes a checkpoint and kills itself at one of its steps.
SUICIDE = """
import os, signal, sys
from pathlib import Path
from yeto_proto import files

path, new, point = sys.argv[1:]
snapshot = files.read_snapshot(new)

def die_at(name, call):
    def step(*arguments):
        if point == "before " + name:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments)
        if point == "after " + name:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return step

os.fsync = die_at("fsync", os.fsync)
Path.replace = die_at("rename", Path.replace)
files.write_snapshot(path, snapshot, progress=die_at("piece", lambda done, total: None))
"""


@pytest.mark.parametrize(
    ("point", "step"),
    [
        ("before piece", 4),
        ("before fsync", 4),
        ("after fsync", 4),
        ("before rename", 4),
        ("after rename", 5),
    ],
)
def test_a_kill_at_any_step_leaves_one_whole_file(tmp_path: Path, point: str, step: int) -> None:
    path, new = tmp_path / "run" / "state.ckpt", tmp_path / "new.ckpt"
    path.parent.mkdir()
    files.write_snapshot(path, OLD)
    files.write_snapshot(new, NEW)
    ended = subprocess.run([sys.executable, "-c", SUICIDE, str(path), str(new), point], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert files.load_checkpoint(path, IsoBackend.SCALAR).global_step == step
    files.write_snapshot(path, NEW)  # whatever was left behind is in nobody's way
    assert files.read_checkpoint_step(path) == 5
    assert [entry.name for entry in path.parent.iterdir()] == ["state.ckpt"]


def test_what_a_crash_left_behind_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "state.ckpt.tmp").write_bytes(b"x" * 10_000)
    files.write_snapshot(tmp_path / "state.ckpt", NEW)
    assert (tmp_path / "state.ckpt").read_bytes() == file_bytes(NEW)
    assert not (tmp_path / "state.ckpt.tmp").exists()


def test_names_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_snapshot("state", NEW)
    files.write_marker("state", 5)
    files.write_final_state("final", PARAMS)
    assert files.read_snapshot("state").global_step == files.verify_marker("state") == 5
    assert [params.tolist() for params in files.read_final_state("final")] == [[1, 1, 1], [0, 0]]
    assert files.remove_marker("state")
    assert not files.remove_marker("state")


def test_two_checkpoints_of_one_stem_do_not_share_a_temporary_file() -> None:
    assert files.temporary_path("a/state.ckpt") == Path("a/state.ckpt.tmp")
    assert files.temporary_path("a/state.bak") == Path("a/state.bak.tmp")


@pytest.mark.parametrize("version", [SnapshotVersion.V1, SnapshotVersion.V2])
def test_old_versions_are_not_written(tmp_path: Path, version: SnapshotVersion) -> None:
    with pytest.raises(BadArgument, match="V3"):
        files.write_snapshot(tmp_path / "state.ckpt", cut(version=version))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "read",
    [
        files.read_snapshot,
        files.read_checkpoint_step,
        files.read_marker,
        files.verify_marker,
        files.read_final_state,
        lambda path: files.load_checkpoint(path, IsoBackend.SCALAR),
    ],
)
def test_a_missing_file_is_an_os_error(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


def test_load_checkpoint_checks_what_the_file_can_prove(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    files.write_snapshot(path, NEW)
    told: list[int] = []
    assert files.load_checkpoint(path, IsoBackend.SCALAR, progress=lambda done, _: told.append(done)).ledger
    assert told[-1] == path.stat().st_size
    data = bytearray(path.read_bytes())
    data[37] = 9
    path.write_bytes(data)
    with pytest.raises(NotContiguous):
        files.load_checkpoint(path, IsoBackend.SCALAR)
    path.write_bytes(data[:100])
    with pytest.raises(Truncated):
        files.load_checkpoint(path, IsoBackend.SCALAR)


@pytest.mark.rule("final_marker.global_step.checkpoint")
def test_a_marker_must_be_of_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    files.write_snapshot(path, NEW)
    files.write_marker(path, 5)
    assert files.marker_path(path).read_bytes() == b"YETO_FINAL_V1\nglobal_step=5\n"
    assert files.read_marker(path) == files.verify_marker(path) == 5
    files.write_marker(path, 4)
    with pytest.raises(BadMarker, match="another step") as caught:
        files.verify_marker(path)
    assert (caught.value.limit, caught.value.seen) == (5, 4)
    files.marker_path(path).write_bytes(b"x" * 100_000)
    with pytest.raises(BadMarker):
        files.read_marker(path)
