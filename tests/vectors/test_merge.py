"""The published merge vectors: avg, RDA, HeLoCo and Nesterov bit for bit, iso within its tolerance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from yeto_proto._generated.types import Dtype, MergeMode
from yeto_syncer.core import merge
from yeto_syncer.core.jobs import Answer, Link, MergeJob, MergeTensors

F32 = NDArray[np.float32]
VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "merge.json").read_text())["vectors"]


def array(entry: dict[str, Any]) -> F32:
    return np.frombuffer(bytes.fromhex(entry["hex_le"]), "<f4").astype(np.float32)


def matrix(vector: dict[str, Any], name: str) -> F32:
    return array(vector[name]).reshape(vector["rows"], vector["cols"])


def named(prefix: str, key: str) -> list[str]:
    found = [name for name, vector in VECTORS.items() if name.startswith(prefix) and key in vector]
    assert found, f"no vector {prefix}* with {key}"
    return found


def job(
    mode: MergeMode,
    gradients: list[F32],
    weights: list[float],
    numels: list[int],
    shapes: list[Any] | None = None,
) -> MergeJob:
    """A first round with these gradients: its new momentum is the merged gradient itself."""
    zeros = np.zeros(sum(numels), np.float32)
    layout = MergeTensors(
        mode, np.array(numels, np.uint64), None if shapes is None else np.array(shapes, np.uint64)
    )
    answers = tuple(
        Answer(Link(learner, 1), weight, Dtype.F32, (-gradient).tobytes())
        for learner, (gradient, weight) in enumerate(zip(gradients, weights, strict=True))
    )
    return MergeJob(1, 1, 0, zeros, zeros, layout, answers, 0.7, 0.9, correction=True)


def test_weights() -> None:
    vector = VECTORS["avg_three_learners"]
    weights = [merge.weight(tokens, steps) for tokens, steps in vector["counters_tokens_steps"]]
    assert weights == vector["weights_f64"]


@pytest.mark.parametrize("name", named("avg_", "expected") + named("rda_", "expected"))
def test_avg_and_rda(name: str) -> None:
    vector = VECTORS[name]
    rule = merge.avg if name.startswith("avg_") else merge.rda
    gradients = [array(gradient) for gradient in vector["gradients"]]
    assert rule(gradients, vector["weights_f64"]).tobytes() == array(vector["expected"]).tobytes()


@pytest.mark.parametrize("name", named("avg_", "expected") + named("rda_", "expected"))
def test_avg_and_rda_of_a_fragment(name: str) -> None:
    vector = VECTORS[name]
    gradients = [array(gradient) for gradient in vector["gradients"]]
    mode = MergeMode.AVG if name.startswith("avg_") else MergeMode.RDA
    result = merge.run(job(mode, gradients, vector["weights_f64"], [gradients[0].size]))
    assert result is not None
    assert result.momentum.tobytes() == array(vector["expected"]).tobytes()


def test_the_order_of_learners_is_part_of_the_result() -> None:
    vector = VECTORS["avg_three_learners"]
    gradients = [array(gradient) for gradient in reversed(vector["gradients"])]
    result = merge.avg(gradients, vector["weights_f64"][::-1])
    assert result.tobytes() == array(vector["reversed_order_result"]).tobytes()
    assert result.tobytes() != array(vector["expected"]).tobytes()


def test_rda_is_per_tensor() -> None:
    vector = VECTORS["rda_per_tensor_not_per_fragment"]
    gradients = [array(gradient) for gradient in vector["gradients"]]
    numels = vector["tensor_numels"]
    result = merge.run(job(MergeMode.RDA, gradients, vector["weights_f64"], numels))
    assert result is not None
    assert result.momentum.tobytes() == array(vector["expected_delta"]).tobytes()
    assert result.gnorm == pytest.approx(vector["gnorm_f64"], rel=1e-15)
    whole = merge.rda(gradients, vector["weights_f64"])
    assert whole.tobytes() == array(vector["wrong_if_whole_fragment"]).tobytes()


@pytest.mark.parametrize("name", named("heloco_", "expected"))
def test_heloco(name: str) -> None:
    vector = VECTORS[name]
    corrected = merge.heloco(array(vector["delta"]), array(vector["momentum"]))
    assert corrected.tobytes() == array(vector["expected"]).tobytes()


@pytest.mark.parametrize("name", named("nesterov_", "steps"))
def test_nesterov(name: str) -> None:
    vector = VECTORS[name]
    params, momentum = array(vector["params0"]), array(vector["momentum0"])
    for step in vector["steps"]:
        params, momentum = merge.nesterov(params, momentum, array(step["delta"]), vector["lr"], vector["mu"])
        assert params.tobytes() == array(step["params_after"]).tobytes()
        assert momentum.tobytes() == array(step["momentum_after"]).tobytes()


@pytest.mark.parametrize("name", named("iso_", "abs_tolerance_scalar"))
def test_iso(name: str) -> None:
    vector = VECTORS[name]
    flattened = merge.iso(matrix(vector, "averaged_input"))
    np.testing.assert_allclose(
        flattened, matrix(vector, "expected"), rtol=0, atol=vector["abs_tolerance_scalar"]
    )
    values = np.linalg.svd(matrix(vector, "averaged_input").astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(values, vector["sigma_f64"], atol=1e-12)
    kept = np.linalg.svd(flattened.astype(np.float64), compute_uv=False)[: np.count_nonzero(values)]
    np.testing.assert_allclose(kept, vector["sigma_bar_f64"], rtol=1e-6)


def test_iso_decomposes_in_f64() -> None:
    """This matrix has noise above the cutoff: every backend gives its own result, ours that of an f64 SVD."""
    vector = VECTORS["iso_do_not_test_rank_one_rounded_to_f32"]
    flattened = merge.iso(matrix(vector, "averaged_input"))
    np.testing.assert_allclose(flattened, matrix(vector, "svd_f64"), rtol=0, atol=1e-4)


def test_iso_keeps_the_mean_where_the_shape_does_not_fit() -> None:
    vector = VECTORS["iso_shape_mismatch"]
    gradients = [array(gradient) for gradient in vector["gradients"]]
    shape = [vector["rows"], vector["cols"]]
    result = merge.run(job(MergeMode.ISO, gradients, vector["weights_f64"], [gradients[0].size], [shape]))
    assert result is not None
    assert result.momentum.tobytes() == array(vector["expected"]).tobytes()
