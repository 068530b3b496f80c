"""Files of a small run for the tests of `yeto-checkpoint`, and the command itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.unit.snapshot_samples import file_bytes
from yeto_proto import files
from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import FragmentState, LedgerEntry, Snapshot, SnapshotVersion, Trailer, TrailerForm
from yeto_proto.layout import Layout, build_layout
from yeto_syncer.checkpoint.cli import main

SHAPES = {"embed": (6, 4), "a.weight": (5, 3), "b.weight": (4, 4), "b.bias": (7,), "scale": ()}
LAYOUT = build_layout(SHAPES, 3)
CONTRACT = bytes(range(100, 132))
STEP = 7


def trailer(form: TrailerForm, layout: Layout = LAYOUT) -> Trailer:
    """A trailer of this form."""
    sweep = form in (TrailerForm.SWEEP, TrailerForm.SWEEP_WITHOUT_CONTRACT)
    return Trailer(
        form,
        None if form is TrailerForm.NONE else layout.fingerprint(),
        CONTRACT if form in (TrailerForm.CONTRACT, TrailerForm.SWEEP) else None,
        5 if sweep else None,
    )


def snapshot(
    version: SnapshotVersion = SnapshotVersion.V3,
    form: TrailerForm = TrailerForm.CONTRACT,
    *,
    step: int = STEP,
    seed: int = 1,
) -> Snapshot:
    """A checkpoint of the layout at a step, with ledger entries of learners 0 and 1."""
    generator = np.random.default_rng(seed)
    fragments = [
        FragmentState(
            files.expected_version(step, number, LAYOUT.num_fragments),
            generator.standard_normal(fragment.numel).astype(np.float32),
            generator.standard_normal(fragment.numel).astype(np.float32),
        )
        for number, fragment in enumerate(LAYOUT.fragments)
    ]
    return Snapshot(
        version,
        None if version is SnapshotVersion.V1 else IsoBackend.SCALAR,
        LAYOUT.fingerprint() if version is SnapshotVersion.V3 else None,
        step,
        fragments,
        {0: LedgerEntry(7, 120, 240_000), 1: LedgerEntry(2, 48, 96_000)},
        trailer(form).contract,
        trailer(form),
    )


def put(path: Path, content: Snapshot) -> Path:
    """Write a snapshot of any version."""
    path.write_bytes(file_bytes(content))
    return path


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    def error(self) -> str:
        """Its one error line."""
        assert self.code == 1, self
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and "Traceback" not in self.err, self
        return lines[0]

    def fine(self) -> str:
        """What a command said that worked."""
        assert self.code == 0 and "error" not in self.err, self
        return self.out


class Command:
    """`yeto-checkpoint`, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> Done:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = int(left.code or 0)
        seen = self._capsys.readouterr()
        return Done(code, seen.out, seen.err)
