"""Deltas so short that the reciprocal of their length is no f32: what is left of them when a run converges.

Every rule and both folds give numbers, near those of the slow references and the same on any number of
threads.
"""

from __future__ import annotations

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.numerics import references
from tests.numerics.jobs import F32, answer, by_formulas, make, same_bits, tensors
from tests.numerics.test_folds import by_rule, folded
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_syncer.core import merge
from yeto_syncer.core.jobs import MergeJob
from yeto_syncer.core.merge import reduction
from yeto_syncer.core.merge.arrays import coefficient, norm

SMALLEST = 2.0**-149
"""The least positive f32, and the distance of neighbouring subnormal numbers."""

TINY = (1e-38, 1e-40, 1e-43, SMALLEST)


def noise(seed: int, size: int, scale: float) -> F32:
    """Not all zero, however small the scale."""
    values = np.random.default_rng(seed).standard_normal(size) * scale
    return np.where(values == 0.0, scale, values + np.copysign(scale, values)).astype(np.float32)


def job_of(
    scales: list[float], mode: MergeMode, dtype: Dtype = Dtype.F32, correction: bool = False
) -> MergeJob:
    """Answers of these sizes that lean one way; the new momentum is the merged delta, with momentum zero."""
    shapes = [(7, 9), (1, 5), (30, 40)]
    numel = sum(rows * cols for rows, cols in shapes)
    answers = [
        answer(learner, noise(1, numel, scale) + noise(learner + 2, numel, scale / 2), dtype, 1.0 + learner)
        for learner, scale in enumerate(scales)
    ]
    momentum = noise(40, numel, 1e-3) if correction else np.zeros(numel, np.float32)
    return make(noise(50, numel, 1.0), momentum, tensors(mode, shapes), answers, correction=correction)


def test_a_coefficient_stays_in_f64_only_where_f32_overflows() -> None:
    largest = float(np.finfo(np.float32).max)
    for exact in (0.0, 1e-50, 0.1, 359.0 / 882.0 / 3.0, largest):
        assert type(coefficient(exact)) is np.float32
        assert coefficient(exact) == np.float32(exact)
    assert type(coefficient(largest * 2)) is np.float64
    assert coefficient(1e40) == 1e40
    assert coefficient(float("inf")) == np.float32(np.inf)


@pytest.mark.parametrize("size", [1, 3, 400])
@pytest.mark.parametrize("scales", [list(pair) for pair in itertools.product((*TINY, 1e-3), repeat=2)])
def test_rda_beside_the_reference(scales: list[float], size: int) -> None:
    gradients = [noise(1, size, scale) for scale in scales]
    result = merge.rda(gradients, [1.0, 3.0])
    expected = np.array(references.rda([one.tolist() for one in gradients], [1.0, 3.0]))
    # The factor r / |u| is an f32 too: where it is subnormal, it is off by half of SMALLEST.
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2 * SMALLEST)
    assert np.any(result != 0.0)


def test_rda_written_out() -> None:
    gradients = [noise(1, 50, 1e-40), noise(2, 50, 1.0)]
    factors = [0.5 / norm(one) for one in gradients]
    assert factors[1] < float(np.finfo(np.float32).max) < factors[0]
    direction = (gradients[0].astype(np.float64) * factors[0]).astype(np.float32)
    direction = direction + gradients[1] * np.float32(factors[1])
    radius = reduction.radial_mean([norm(one) for one in gradients], [1.0, 1.0], 2.0)
    expected = direction * np.float32(radius / norm(direction))
    assert merge.rda(gradients, [1.0, 1.0]).tobytes() == expected.tobytes()


@pytest.mark.parametrize("correction", [False, True], ids=["plain", "heloco"])
@pytest.mark.parametrize("mode", MergeMode)
@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("scales", [[1e-40] * 3, [1e-43, 1e-3, 1e-40], [1e-3, 1e-40, 1e-20], [1e-18, 1e-41]])
@pytest.mark.rule("merge.numerics.exact")
def test_whole_rounds(scales: list[float], dtype: Dtype, mode: MergeMode, correction: bool) -> None:
    job = job_of(scales, mode, dtype, correction)
    with ThreadPoolExecutor(3) as pool:
        close, arrival = merge.run(job), folded(job)
        assert close is not None and arrival is not None, "the round is committed"
        assert same_bits(merge.run(job, pool.map), close)
        assert same_bits(folded(job, map=pool.map), arrival)
    params, momentum, _ = by_formulas(job)
    assert close.params.tobytes() == params.tobytes() and close.momentum.tobytes() == momentum.tobytes()
    for result in (close, arrival):
        assert np.isfinite(result.params).all() and np.isfinite(result.momentum).all()


@pytest.mark.parametrize("scales", [list(one) for one in itertools.permutations((*TINY, 1e-20, 1e-3), 3)])
@pytest.mark.rule("syncer.fold.on_arrival")
def test_both_folds_agree_whatever_comes_first(scales: list[float]) -> None:
    """An answer of one subnormal value in each place must not drown the ones after it."""
    job = dataclasses.replace(job_of(scales, MergeMode.RDA), lr=1.0, mu=0.0)
    close, arrival = merge.run(job), folded(job)
    assert close is not None and arrival is not None
    largest = float(np.abs(close.momentum).max())
    np.testing.assert_allclose(arrival.momentum, close.momentum, rtol=0, atol=1e-6 * largest + 3 * SMALLEST)
    assert arrival.momentum.tobytes() == by_rule(job).tobytes()


@given(st.lists(st.integers(-149, 10), min_size=1, max_size=4), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_any_sizes_give_numbers(powers: list[int], size: int, seed: int) -> None:
    deltas = [noise(seed + number, size, 2.0**power) for number, power in enumerate(powers)]
    zeros = np.zeros(size, np.float32)
    answers = [answer(learner, delta, weight=1.0 + learner) for learner, delta in enumerate(deltas)]
    for mode in MergeMode:
        job = make(zeros.copy(), zeros.copy(), tensors(mode, [(1, size)]), answers, lr=1.0, mu=0.0)
        longest = max(norm(delta) for delta in deltas)
        for result in (merge.run(job), folded(job)):
            assert result is not None
            assert result.gnorm <= longest * 1.0001 + size * SMALLEST


@pytest.mark.parametrize("scale", TINY)
def test_iso_and_heloco_of_next_to_nothing(scale: float) -> None:
    gradient = noise(3, 12, scale)
    flat = merge.iso(gradient.reshape(3, 4))
    assert np.isfinite(flat).all()
    assert norm(flat.reshape(-1)) <= norm(gradient) * 1.01 + 12 * SMALLEST
    for momentum in (noise(4, 12, 1.0), noise(4, 12, scale)):
        assert merge.heloco(gradient, momentum).tobytes() == gradient.tobytes(), "shorter than its epsilon"
    turned = merge.heloco(noise(5, 12, 1.0), gradient)
    assert turned.tobytes() == noise(5, 12, 1.0).tobytes()


@pytest.mark.parametrize("scale", TINY)
def test_nesterov_of_next_to_nothing(scale: float) -> None:
    params, momentum, delta = noise(6, 30, scale), noise(7, 30, scale), noise(8, 30, scale)
    moved, new = merge.nesterov(params, momentum, delta, 0.7, 0.9)
    rate, decay = float(np.float32(0.7)), float(np.float32(0.9))
    expected = references.nesterov(params.tolist(), momentum.tolist(), delta.tolist(), rate, decay)
    np.testing.assert_allclose(moved, expected[0], rtol=1e-6, atol=4 * SMALLEST)
    np.testing.assert_allclose(new, expected[1], rtol=1e-6, atol=4 * SMALLEST)
