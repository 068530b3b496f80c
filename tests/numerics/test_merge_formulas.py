"""The merge formulas of single tensors against slow f64 references, and what holds for any numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.numerics import references
from yeto_proto._generated.constants import HELOCO_C_OK, HELOCO_EPS, REDUCTION_BLOCK
from yeto_proto._generated.errors import BadArgument
from yeto_syncer.core import merge
from yeto_syncer.core.merge import arrays, reduction

F32 = NDArray[np.float32]

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 300)
learners = st.integers(1, 5)
scales = st.sampled_from([1e-6, 1e-2, 1.0, 1e4])
# What c_tokens^2 / c_steps gives, zero included.
some_weights = st.lists(
    st.sampled_from([0.0, 1.0, 3.0, 1e5, 163333.33333333334, 2e12]), min_size=5, max_size=5
)


def noise(rng: np.random.Generator, shape: int | tuple[int, int], scale: float = 1.0) -> F32:
    return (rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)).astype(np.float32)


def length(vector: F32) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


def close(result: F32, expected: object, scale: float, steps: int = 8) -> None:
    """Equal within `steps` f32 roundings of the largest number involved."""
    np.testing.assert_allclose(result, expected, rtol=0, atol=steps * 2**-24 * max(scale, 1e-30))


def test_weight() -> None:
    assert merge.weight(40, 4) == 400.0
    assert merge.weight(0, 7) == 0.0
    assert merge.weight(5, 0) == 0.0
    # Both counters are rounded to f64 before anything else.
    tokens = 2**53 + 1
    assert merge.weight(tokens, 1) == float(2**53) * float(2**53) != tokens * tokens / 1


# ------------------------------------------------------------------------------------------------ avg and RDA


@given(seeds, sizes, learners, some_weights, scales)
def test_avg_is_the_weighted_mean(
    seed: int, size: int, count: int, weights: list[float], scale: float
) -> None:
    rng = np.random.default_rng(seed)
    gradients = [noise(rng, size, scale) for _ in range(count)]
    kept = [gradient.copy() for gradient in gradients]
    result = merge.avg(gradients, weights[:count])
    expected = references.avg([gradient.tolist() for gradient in gradients], weights[:count])
    close(result, expected, max(np.abs(gradient).max() for gradient in gradients))
    assert all(np.array_equal(a, b) for a, b in zip(gradients, kept, strict=True))


@given(seeds, sizes, learners, some_weights, scales)
def test_rda_is_the_mean_length_in_the_mean_direction(
    seed: int, size: int, count: int, weights: list[float], scale: float
) -> None:
    rng = np.random.default_rng(seed)
    common = noise(rng, size)  # so that the directions do not cancel to noise
    gradients = [
        ((noise(rng, size, 0.4) + common) * np.float32(scale * rng.uniform(0.5, 2))).astype(np.float32)
        for _ in range(count)
    ]
    total = sum(weights[:count])
    units = [gradient.astype(np.float64) / max(length(gradient), 1e-300) for gradient in gradients]
    mean = sum(unit * one for unit, one in zip(units, weights, strict=False)) / max(total, 1e-300)
    assume(total == 0 or np.linalg.norm(mean) > 0.3)
    result = merge.rda(gradients, weights[:count])
    expected = references.rda([gradient.tolist() for gradient in gradients], weights[:count])
    close(result, expected, max(length(gradient) for gradient in gradients), steps=32)


@given(seeds, sizes, learners, some_weights, scales)
def test_rda_has_the_weighted_mean_norm(
    seed: int, size: int, count: int, weights: list[float], scale: float
) -> None:
    rng = np.random.default_rng(seed)
    gradients = [noise(rng, size, scale * 10.0**power) for power in range(count)]
    total = sum(weights[:count])
    assume(total > 0)
    result = merge.rda(gradients, weights[:count])
    expected = sum(length(g) * w for g, w in zip(gradients, weights, strict=False)) / total
    assume(size > 1)  # single numbers may cancel exactly, and then the result is the plain mean
    assert length(result) == pytest.approx(expected, rel=1e-5)


@given(seeds, sizes, learners, some_weights, scales)
def test_merging_identical_gradients_gives_that_gradient(
    seed: int, size: int, count: int, weights: list[float], scale: float
) -> None:
    gradient = noise(np.random.default_rng(seed), size, scale)
    assume(sum(weights[:count]) > 0)
    same = [gradient] * count
    for rule in (merge.avg, merge.rda):
        np.testing.assert_allclose(rule(same, weights[:count]), gradient, rtol=2e-6, atol=0)


def test_the_direction_coefficient_divides_by_w_first() -> None:
    """(w / W) / n in f64, then one rounding to f32; w / (W n) gives the neighbouring f32 here."""
    length = float.fromhex("0x1.5feb847612765p+6")
    assert np.float32(359.0 / 882.0 / length) != np.float32(359.0 / (882.0 * length))
    assert reduction.directions([length, 0.0], [359.0, 523.0], 882.0) == [
        np.float32(359.0 / 882.0 / length),
        None,
    ]


def test_a_zero_gradient_shortens_rda() -> None:
    one = np.array([3.0, 4.0], np.float32)
    result = merge.rda([one, np.zeros(2, np.float32)], [1.0, 1.0])
    np.testing.assert_allclose(result, one / 2, rtol=1e-6)


def test_all_zero_gradients_merge_to_zero() -> None:
    zeros = np.zeros(5, np.float32)
    assert merge.rda([zeros, zeros], [1.0, 2.0]).tolist() == [0.0] * 5


@pytest.mark.parametrize("rule", [merge.avg, merge.rda])
def test_without_any_weight_the_merge_is_zero(rule: type) -> None:
    """D12."""
    one = np.array([3.0, -4.0], np.float32)
    result = rule([one, one], [0.0, 0.0])
    assert result.tobytes() == np.zeros(2, np.float32).tobytes()


def test_merges_never_give_a_negative_zero() -> None:
    """They add to zeros, and 0 + -0 is 0."""
    zeros = np.array([-0.0, 0.0], np.float32)
    assert not np.signbit(merge.avg([zeros], [1.0])).any()
    assert not np.signbit(merge.rda([zeros, zeros], [1.0, 1.0])).any()


# ------------------------------------------------------------------------------------------------ HeLoCo


@given(seeds, sizes, scales, scales, st.floats(-1.0, 1.0))
@example(seed=1, size=300, scale=1.0, momentum_scale=1.0, lean=0.1)  # c between 0 and c_ok
def test_heloco(seed: int, size: int, scale: float, momentum_scale: float, lean: float) -> None:
    rng = np.random.default_rng(seed)
    momentum = noise(rng, size, momentum_scale)
    gradient = noise(rng, size) + momentum * np.float32(lean / momentum_scale)
    gradient = (gradient * np.float32(scale)).astype(np.float32)
    before = gradient.copy(), momentum.copy()
    result = merge.heloco(gradient, momentum)
    expected = references.heloco(gradient.tolist(), momentum.tolist())
    if min(abs(cosine(gradient, momentum) - edge) for edge in (0.0, HELOCO_C_OK)) > 1e-6:
        close(result, expected, length(gradient), steps=16)
    assert np.array_equal(gradient, before[0]) and np.array_equal(momentum, before[1])
    assert result is not gradient


def cosine(left: F32, right: F32) -> float:
    x, y = left.astype(np.float64), right.astype(np.float64)
    return float(x @ y / max(np.linalg.norm(x) * np.linalg.norm(y), 1e-300))


@given(seeds, st.integers(2, 300), st.floats(0.21, 0.99))
def test_heloco_leaves_aligned_gradients_alone(seed: int, size: int, wanted: float) -> None:
    momentum, gradient = pair(seed, size, wanted)
    assume(cosine(gradient, momentum) >= HELOCO_C_OK + 1e-9)
    assert merge.heloco(gradient, momentum).tobytes() == gradient.tobytes()


def pair(seed: int, size: int, wanted: float) -> tuple[F32, F32]:
    """Momentum and a gradient at this cosine."""
    rng = np.random.default_rng(seed)
    momentum = noise(rng, size).astype(np.float64)
    other = noise(rng, size).astype(np.float64)
    other -= momentum * (other @ momentum) / (momentum @ momentum)
    momentum /= np.linalg.norm(momentum)
    other /= max(float(np.linalg.norm(other)), 1e-12)
    gradient = wanted * momentum + math.sqrt(1 - wanted**2) * other
    return momentum.astype(np.float32), gradient.astype(np.float32)


@given(seeds, st.integers(2, 300), st.floats(0.01, 0.19), st.sampled_from([0.01, 1.0, 100.0]))
def test_heloco_turns_a_weak_agreement_without_a_change_of_length(
    seed: int, size: int, wanted: float, scale: float
) -> None:
    momentum, gradient = pair(seed, size, wanted)
    gradient = (gradient * np.float32(scale)).astype(np.float32)
    result = merge.heloco(gradient, momentum)
    assert length(result) == pytest.approx(length(gradient), rel=1e-5)
    assert cosine(result, momentum) > cosine(gradient, momentum)


@given(seeds, st.integers(2, 300), st.floats(-0.99, -0.01), st.sampled_from([0.01, 1.0, 100.0]))
def test_heloco_damps_opposition_and_never_flips_it(
    seed: int, size: int, wanted: float, scale: float
) -> None:
    momentum, gradient = pair(seed, size, wanted)
    gradient = (gradient * np.float32(scale)).astype(np.float32)
    result = merge.heloco(gradient, momentum)
    assert cosine(gradient, momentum) < cosine(result, momentum) <= 1e-6
    assert length(result) <= length(gradient) * (1 + 1e-6)


@pytest.mark.parametrize("tiny", ["gradient", "momentum"])
def test_heloco_ignores_what_is_hardly_there(tiny: str) -> None:
    small, big = np.array([HELOCO_EPS / 2, 0.0], np.float32), np.array([-1.0, 1.0], np.float32)
    gradient, momentum = (small, big) if tiny == "gradient" else (big, small)
    assert merge.heloco(gradient, momentum).tobytes() == gradient.tobytes()


# ------------------------------------------------------------------------------------------------ iso


def spectrum_matrix(rng: np.random.Generator, rows: int, cols: int) -> F32:
    """Singular values between 0.01 and 1, far above both cutoff and f32 noise."""
    left, _ = np.linalg.qr(rng.standard_normal((rows, min(rows, cols))))
    right, _ = np.linalg.qr(rng.standard_normal((cols, min(rows, cols))))
    return (left * rng.uniform(0.01, 1.0, min(rows, cols)) @ right.T).astype(np.float32)


@given(seeds, st.integers(1, 12), st.integers(1, 12))
def test_iso_equalises_the_spectrum(seed: int, rows: int, cols: int) -> None:
    matrix = spectrum_matrix(np.random.default_rng(seed), rows, cols)
    before = matrix.copy()
    result = merge.iso(matrix)
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    flat = np.linalg.svd(result.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(flat, values.mean(), rtol=1e-5)
    # The directions stay: the product with the old matrix is symmetric and has no negative eigenvalue.
    product = result.astype(np.float64) @ matrix.astype(np.float64).T
    np.testing.assert_allclose(product, product.T, atol=1e-5)
    assert np.linalg.eigvalsh(product).min() > -1e-5
    assert np.array_equal(matrix, before)


@given(seeds, st.integers(1, 7), st.integers(1, 7))
def test_iso_agrees_with_jacobi(seed: int, rows: int, cols: int) -> None:
    matrix = spectrum_matrix(np.random.default_rng(seed), rows, cols)
    np.testing.assert_allclose(merge.iso(matrix), references.iso(matrix.tolist()), rtol=0, atol=2e-6)


@pytest.mark.parametrize("shape", [(1, 9), (9, 1)])
def test_iso_leaves_vectors_alone(shape: tuple[int, int]) -> None:
    vector = noise(np.random.default_rng(3), shape)
    np.testing.assert_allclose(merge.iso(vector), vector, rtol=1e-6)
    assert merge.iso(vector.reshape(-1)).tobytes() == vector.tobytes()


def test_iso_of_nothing_is_nothing() -> None:
    zeros = np.zeros((3, 4), np.float32)
    assert merge.iso(zeros).tobytes() == zeros.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_iso_of_a_broken_matrix_is_broken(bad: float) -> None:
    matrix = np.eye(3, dtype=np.float32)
    matrix[1, 2] = bad
    assert np.isnan(merge.iso(matrix)).all()


# ------------------------------------------------------------------------------------------------ Nesterov


@given(seeds, sizes, st.floats(0, 2), st.floats(0, 1), scales)
def test_nesterov(seed: int, size: int, lr: float, mu: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    params, momentum, delta = noise(rng, size), noise(rng, size, scale), noise(rng, size, scale)
    before = params.copy(), momentum.copy(), delta.copy()
    moved, new = merge.nesterov(params, momentum, delta, lr, mu)
    expected = references.nesterov(
        params.tolist(), momentum.tolist(), delta.tolist(), float(np.float32(lr)), float(np.float32(mu))
    )
    largest = float(max(np.abs(momentum).max(), np.abs(delta).max()))
    close(new, expected[1], 2 * largest)
    close(moved, expected[0], float(np.abs(params).max()) + 6 * largest)
    assert all(np.array_equal(a, b) for a, b in zip((params, momentum, delta), before, strict=True))


@given(st.floats(-10, 10), st.floats(-3, 3), st.floats(0.01, 1), st.floats(0, 0.95), st.integers(1, 30))
def test_nesterov_with_a_steady_delta_has_a_closed_form(
    start: float, delta: float, lr: float, mu: float, steps: int
) -> None:
    """buf_t = d (1 - mu^t) / (1 - mu), and theta falls by lr (d + mu buf_t) each step."""
    params, momentum = np.full(3, start, np.float32), np.zeros(3, np.float32)
    d, rate, decay = (float(np.float32(value)) for value in (delta, lr, mu))
    for _ in range(steps):
        params, momentum = merge.nesterov(params, momentum, np.full(3, d, np.float32), rate, decay)
    geometric = (1 - decay**steps) / (1 - decay)
    np.testing.assert_allclose(momentum, d * geometric, rtol=1e-5, atol=1e-30)
    fallen = rate * d * (steps + decay / (1 - decay) * (steps - decay * geometric))
    expected = float(np.float32(start)) - fallen
    np.testing.assert_allclose(params, expected, rtol=0, atol=1e-5 * (abs(start) + abs(fallen)) + 1e-30)


def test_a_zero_delta_still_steps() -> None:
    params, momentum = merge.nesterov(
        np.ones(1, np.float32), np.ones(1, np.float32), np.zeros(1, np.float32), 0.5, 0.5
    )
    assert momentum.tolist() == [0.5]
    assert params.tolist() == [1 - 0.5 * 0.5 * 0.5]


# ------------------------------------------------------------------------------------------------ sums,
# arguments


@given(
    seeds,
    st.sampled_from([1, 7, REDUCTION_BLOCK - 1, REDUCTION_BLOCK, REDUCTION_BLOCK + 1]),
    st.integers(0, 3),
)
@pytest.mark.rule("merge.numerics.exact")
def test_products_are_summed_block_by_block(seed: int, tail: int, blocks: int) -> None:
    """D30, written out: one np.add.reduce for each block of 65,536 elements, and the block sums in order."""
    rng = np.random.default_rng(seed)
    size = blocks * 65536 + tail
    left, right = (noise(rng, size) ** 3 for _ in range(2))
    total = 0.0
    for start in range(0, size, 65536):
        x = left[start : start + 65536].astype(np.float64)
        y = right[start : start + 65536].astype(np.float64)
        total = total + float(np.add.reduce(x * y))
    assert arrays.dot(left, right) == total
    assert arrays.norm(left) == math.sqrt(arrays.dot(left, left))


def test_sums_of_scalars_round_at_every_step() -> None:
    """A compensated sum (Python's own, from 3.12 on) would give 2.0."""
    assert arrays.in_order([1.0, 1e100, 1.0, -1e100]) == 0.0


def test_matrices_merge_as_their_elements_in_rows() -> None:
    rng = np.random.default_rng(5)
    matrices = [noise(rng, (4, 6)) for _ in range(3)]
    weights = [1.0, 2.0, 3.0]
    for rule in (merge.avg, merge.rda):
        flat = rule([matrix.reshape(-1) for matrix in matrices], weights)
        assert rule(matrices, weights).shape == (4, 6)
        assert rule(matrices, weights).tobytes() == flat.tobytes()
        # A matrix that lies in memory by columns has the same elements in the same order.
        by_columns = [np.asfortranarray(matrix) for matrix in matrices]
        assert rule(by_columns, weights).tobytes() == flat.tobytes()
    corrected = merge.heloco(matrices[0], -matrices[0])
    assert corrected.shape == (4, 6)
    params, momentum = merge.nesterov(*matrices, 0.7, 0.9)
    assert params.shape == momentum.shape == (4, 6)


def test_refused_arguments() -> None:
    one, two = np.ones(2, np.float32), np.ones(3, np.float32)
    wide = np.ones(2)
    for rule in (merge.avg, merge.rda):
        for gradients, weights in (
            ([], []),
            ([one], [1.0, 1.0]),
            ([one, two], [1.0, 1.0]),
            ([wide], [1.0]),
            ([one], [-1.0]),
            ([one], [math.nan]),
            ([one], [math.inf]),
        ):
            with pytest.raises(BadArgument):
                rule(gradients, weights)
    with pytest.raises(BadArgument):
        merge.heloco(one, two)
    with pytest.raises(BadArgument):
        merge.heloco(wide, wide)
    with pytest.raises(BadArgument):
        merge.nesterov(one, one, two, 0.7, 0.9)
    with pytest.raises(BadArgument):
        merge.iso(np.eye(2))
