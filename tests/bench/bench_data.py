"""Tensor codecs, layout and snapshot files beside the raw limits of this machine.

Codecs are measured into memory that is there already, as a merge or a send uses them, on one thread.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from yeto_proto import dtypes, files
from yeto_proto._generated.types import Dtype, IsoBackend
from yeto_proto.files import FragmentState, LedgerEntry, Snapshot, SnapshotVersion
from yeto_proto.layout import build_layout

VALUES = 64 << 20  # 256 MiB of f32
ROUNDS = 7
FILE_VALUES = 32 << 20  # of params, and of momentum: a snapshot of 256 MiB
FILE_ROUNDS = 5
TARGETS = {
    (Dtype.BF16, "encode"): 0.30,
    (Dtype.BF16, "decode"): 0.40,
    (Dtype.Q4, "encode"): 0.08,
    (Dtype.Q4, "decode"): 0.15,
}

Row = dict[str, Any]


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def paired(work: Callable[[], object], raw: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Medians of both, and of their ratio; measured in turn, so that both see the same machine."""
    pairs = [(seconds(raw), seconds(work)) for _ in range(rounds)]
    return (
        median(mine for _, mine in pairs),
        median(limit for limit, _ in pairs),
        median(limit / mine for limit, mine in pairs),
    )


def row(work: str, size: int, times: tuple[float, float, float], target: float) -> Row:
    mine, limit, ratio = times
    return {
        "work": work,
        "value": round(size / mine / 1e9, 2),
        "unit": "GB/s",
        "raw": round(size / limit / 1e9, 2),
        "ratio": round(ratio, 3),
        "target": target,
    }


def codec_rows() -> Iterator[Row]:
    """bf16 and q4 beside np.copyto, counted in bytes of the f32 side."""
    rng = np.random.default_rng(0)
    values = np.tile(rng.standard_normal(VALUES // 64, dtype=np.float32), 64)
    copy = np.zeros_like(values)
    for dtype in (Dtype.BF16, Dtype.Q4):
        wire = np.zeros(dtypes.encoded_bytes(dtype, VALUES), np.uint8)
        works: dict[str, Callable[[], object]] = {
            "encode": lambda dtype=dtype, wire=wire: dtypes.encode(dtype, values, wire),
            "decode": lambda dtype=dtype, wire=wire: dtypes.decode(dtype, wire, VALUES, copy),
        }
        for name, work in works.items():
            times = paired(work, lambda: np.copyto(copy, values), ROUNDS)
            yield row(f"{dtype.name.lower()} {name}", values.nbytes, times, TARGETS[dtype, name])


def layout_row() -> Row:
    """41,643 tensors in 32 fragments, binpack, with fingerprint."""
    rng = np.random.default_rng(0)
    model = {
        f"model.layers.{number % 94}.mlp.experts.{number}.weight": (rows, columns)
        for number, (rows, columns) in enumerate(rng.integers(1, 6000, (41_643, 2)).tolist())
    }
    taken = median(seconds(lambda: build_layout(model, 32).fingerprint()) for _ in range(5))
    return {
        "work": "layout and fingerprint of 41,643 tensors",
        "value": round(taken, 3),
        "unit": "s",
        "raw": None,
        "ratio": None,
        "target": 1.0,
    }


def snapshot_rows(folder: Path) -> Iterator[Row]:
    """A snapshot of 256 MiB in 4 fragments beside raw writes with fsync, and raw reads, of as many bytes."""
    rng = np.random.default_rng(0)
    numel = FILE_VALUES // 4
    fragments = [
        FragmentState(step, *(rng.standard_normal(numel, dtype=np.float32) for _ in range(2)))
        for step in range(1, 5)
    ]
    snapshot = Snapshot(
        SnapshotVersion.V3,
        IsoBackend.SCALAR,
        bytes(32),
        4,
        fragments,
        {0: LedgerEntry(4, 96, 1000)},
        bytes(32),
    )
    path, raw_path = folder / "state.ckpt", folder / "raw"
    arrays = [array for state in fragments for array in (state.params, state.momentum)]
    size = 2 * FILE_VALUES * 4

    def raw_write() -> None:
        raw_path.unlink(missing_ok=True)
        with raw_path.open("wb") as stream:
            for array in arrays:
                stream.write(array.data)
            stream.flush()
            os.fsync(stream.fileno())

    def raw_read() -> object:
        with raw_path.open("rb", buffering=0) as stream:
            kept = [np.empty(numel, np.float32) for _ in arrays]
            for array in kept:
                stream.readinto(array.data.cast("B"))
        return kept

    files.write_snapshot(path, snapshot)
    times = paired(lambda: files.write_snapshot(path, snapshot), raw_write, FILE_ROUNDS)
    yield row("snapshot write with fsync", size, times, 0.85)
    times = paired(lambda: files.read_snapshot(path), raw_read, FILE_ROUNDS)
    yield row("snapshot read", size, times, 0.85)


def rows() -> list[Row]:
    """All rows of this file."""
    with tempfile.TemporaryDirectory() as folder:
        return [*codec_rows(), layout_row(), *snapshot_rows(Path(folder))]


if __name__ == "__main__":
    for entry in rows():
        print(entry)
