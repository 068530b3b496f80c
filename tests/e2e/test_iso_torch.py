"""The torch-svd backend with the real PyTorch on the CPU. Needs the extra `torch`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.processes import Processes
from tests.e2e.test_iso_backend import complete, svd
from tests.unit.test_svd_worker import COMMAND, replies, request
from yeto_proto._generated.iso_worker import Status
from yeto_proto._generated.types import IsoBackend
from yeto_syncer.core.merge import iso

pytestmark = pytest.mark.full
MERGE = json.loads((Path(__file__).parents[1] / "vectors" / "merge.json").read_text())["vectors"]


def test_the_worker_with_torch_answers_as_published() -> None:
    names = [name for name, vector in MERGE.items() if "expected_f32_svd_backend" in vector]
    shapes = [(MERGE[name]["rows"], MERGE[name]["cols"]) for name in names]
    averaged = [
        np.array(MERGE[name]["averaged_input"]["f32"], np.float32).reshape(shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
    generator = np.random.default_rng(3)
    others = [generator.standard_normal(shape).astype(np.float32) for shape in ((1, 9), (9, 1), (70, 40))]
    matrices = [np.ones((1, 1), np.float32), np.zeros((3, 4), np.float32), *averaged, *others]
    huge = np.full((50, 40), 3e38, np.float32)
    data = b"".join(request(matrix, number) for number, matrix in enumerate([*matrices, huge], start=1))
    done = subprocess.run(
        [*COMMAND, "--device", "cpu"], input=data, capture_output=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    *answers, (last, _) = replies(done.stdout)
    assert last.code == Status.NON_FINITE_OUTPUT
    assert [header.code for header, _ in answers] == [Status.OK] * len(matrices)
    flat = [
        np.frombuffer(payload, np.float32).reshape(matrix.shape)
        for (_, payload), matrix in zip(answers, matrices, strict=True)
    ]
    assert flat[0].tobytes() == matrices[0].tobytes()  # the probe, bit for bit
    for result, matrix in zip(flat, matrices, strict=True):
        np.testing.assert_allclose(result, iso(matrix), rtol=2e-5, atol=2e-5)
    for result, name in zip(flat[2:], names, strict=False):
        expected = np.array(MERGE[name]["expected_f32_svd_backend"]["f32"], np.float32)
        np.testing.assert_allclose(result.reshape(-1), expected, rtol=2e-5, atol=2e-5)


def test_a_run_with_torch_agrees_with_the_scalar_backend(processes: Processes, tmp_path: Path) -> None:
    scalar = complete(processes, tmp_path / "scalar")
    torch = complete(processes, tmp_path / "torch", *svd(sys.executable))
    assert torch.iso_backend == IsoBackend.TORCH_SVD
    for one, other in zip(scalar.fragments, torch.fragments, strict=True):
        np.testing.assert_allclose(one.params, other.params, rtol=2e-5, atol=2e-5)
