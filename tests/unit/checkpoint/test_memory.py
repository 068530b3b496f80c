"""`yeto-checkpoint` on files that are larger than the memory it may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import SnapshotHead, SnapshotVersion, SnapshotWriter, Trailer, TrailerForm
from yeto_proto.layout import Layout, build_layout

MOST = 256 << 20
MEASURED = """
import re, sys
from pathlib import Path
from yeto_syncer.checkpoint.cli import main
code = main(sys.argv[1:])
print("peak", re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""


class Sparse:
    """A binary stream that leaves a hole where zeros are written, so that a huge file costs no disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    def write(self, data: memoryview) -> int:
        if len(data) > 4096:
            self._file.seek(len(data), 1)
            return len(data)
        return self._file.write(data)

    def close(self) -> None:
        self._file.truncate(self._file.tell())
        self._file.close()


def huge(path: Path, numel: int, version: SnapshotVersion = SnapshotVersion.V3) -> Layout:
    """A checkpoint at step 0 of three fragments of zeros with `numel` values in all; returns its layout."""
    import numpy as np

    layout = build_layout({"embed": numel // 2, "a.weight": numel // 4, "b.weight": numel // 4}, 3)
    v3 = version is SnapshotVersion.V3
    stream = Sparse(path)
    fingerprint = layout.fingerprint() if v3 else None
    head = SnapshotHead(version, IsoBackend.SCALAR, fingerprint, 0, layout.num_fragments)
    writer = SnapshotWriter(stream, head)  # type: ignore[arg-type]  # it needs no more than `write`
    zeros = np.zeros(1 << 22, np.float32)
    for fragment in layout.fragments:
        writer.begin_fragment(0, fragment.numel)
        for write in (writer.write_params, writer.write_momentum):
            left = fragment.numel
            while left:
                write(zeros[:left])
                left -= min(left, zeros.size)
    writer.finish({}, Trailer(TrailerForm.FINGERPRINT, fingerprint) if v3 else Trailer())
    stream.close()
    return layout


def peak(*arguments: str | Path) -> int:
    """Run the command in a process of its own; its peak resident memory in bytes."""
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split("peak ")[1].split()[0]) << 10


HEAVY = [pytest.param(name, marks=pytest.mark.full) for name in ("npz", "diff", "hash", "migrate")]


@pytest.mark.parametrize("name", ["inspect", "verify", "export", *HEAVY])
def test_memory_does_not_depend_on_the_file(tmp_path: Path, name: str) -> None:
    path, numel = tmp_path / "state.ckpt", 48 << 20  # 384 MiB, half of it parameters
    old = name == "migrate"
    layout = huge(path, numel, SnapshotVersion.V2 if old else SnapshotVersion.V3)
    assert path.stat().st_size > MOST + (64 << 20)
    names = tmp_path / "layout.json"
    names.write_text(layout.to_json())
    match name:
        case "export" | "npz":
            output = tmp_path / f"model.{'npz' if name == 'npz' else 'safetensors'}"
            used = peak("export", path, "--layout", names, "--output", output)
            assert output.stat().st_size > 4 * numel
        case "diff":
            used = peak("diff", path, path)
        case "migrate":
            output = tmp_path / "new.ckpt"
            used = peak("migrate", path, "--output", output, "--fingerprint", layout.fingerprint().hex())
            assert output.stat().st_size > path.stat().st_size
        case _:
            used = peak(name, path)
    assert used < MOST, f"{used >> 20} MiB"


@pytest.mark.full
@pytest.mark.parametrize(("name", "gibibytes"), [("inspect", 64), ("verify", 4)])
def test_a_much_larger_file(tmp_path: Path, name: str, gibibytes: int) -> None:
    path = tmp_path / "state.ckpt"
    huge(path, gibibytes << 27)
    assert peak(name, path) < MOST


@pytest.mark.full
def test_many_learners_and_fragments(tmp_path: Path) -> None:
    import numpy as np

    from yeto_proto.files import LedgerEntry

    path = tmp_path / "state.ckpt"
    fragments, learners = 20_000, 300_000
    head = SnapshotHead(SnapshotVersion.V3, IsoBackend.SCALAR, bytes(32), 0, fragments)
    with path.open("wb") as stream:
        writer = SnapshotWriter(stream, head)
        one = np.zeros(1, np.float32)
        for _ in range(fragments):
            writer.fragment(0, one, one)
        writer.finish(dict.fromkeys(range(learners), LedgerEntry()), Trailer())
    for name in ("inspect", "verify"):
        assert peak(name, path) < MOST
