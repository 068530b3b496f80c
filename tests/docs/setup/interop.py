"""The parser that the compiler makes, and a checkpoint to read."""

import sys
from pathlib import Path

import numpy as np

ROOT = Path("@ROOT@")
sys.path.insert(0, str(ROOT))
from tests.foreign.test_kaitai import compiled  # noqa: E402  # the project's root has to be on the path first
from yeto_proto import files  # noqa: E402
from yeto_proto._generated.types import IsoBackend  # noqa: E402

for name, text in compiled("yeto_snapshot", "python").items():
    Path(name).write_text(text)
sys.path.insert(0, ".")
zeros = np.zeros(4, np.float32)
files.write_snapshot(
    "run.ckpt",
    files.Snapshot(
        files.SnapshotVersion.V3,
        IsoBackend.SCALAR,
        bytes(32),
        0,
        [files.FragmentState(0, zeros, zeros)],
        {},
        bytes(32),
    ),
)
