"""`fold` and the closing `run`: D35's formulas bit for bit, and their distance from a merge at the close.

The stated bound, element by element, for M answers and u = 2^-24 (half a unit in the last place at 1):

    avg:  |difference| <= 2 (M + 4) u S                         S = sum of (w/W) |delta|
    RDA:  |difference| <= 2 (M + 4) u (r / L) (S + |a| / L)     S = sum of (w/W) |delta| / n

where a is the mean direction, L its length and r the radius, all in exact arithmetic.
Each side rounds a coefficient, a product and a sum for each answer, and the rescaling. RDA divides by L, so
answers that nearly cancel out lift their rounding noise, at the close and on arrival alike. iso flattens
either mean and has no bound of its own (see numerics of the spec).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.numerics.jobs import F32, Shape, answer, make, random_job, same_bits, tensors
from yeto_proto import dtypes
from yeto_proto._generated.constants import FOLD_MIN_NORM, RDA_MIN_DIRECTION
from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_syncer.core import merge
from yeto_syncer.core.jobs import Accumulator, Answer, FoldJob, MergeJob, MergeResult, MergeTensors
from yeto_syncer.core.merge import Map
from yeto_syncer.core.merge.arrays import norm

EVERYTHING = [
    pytest.param(
        mode, dtype, correction, id=f"{mode.name}-{dtype.name}-{'heloco' if correction else 'plain'}"
    )
    for mode, dtype, correction in itertools.product(MergeMode, Dtype, (False, True))
]
SHAPES: list[Shape] = [(300, 300), (1, 7), (1100, 500), (5, 1), (256, 256), (1, 1)]


def fold_job(job: MergeJob, one: Answer, into: Accumulator) -> FoldJob:
    return FoldJob(
        job.step, job.attempt, job.fragment_id, job.momentum, job.tensors, one, job.correction, into
    )


def folded(job: MergeJob, order: Sequence[int] | None = None, map: Map = map) -> MergeResult | None:
    """The job as `--fold on-arrival` does it, its answers in this order of arrival."""
    into = Accumulator(job.tensors)
    for number in range(len(job.answers)) if order is None else order:
        merge.fold(fold_job(job, job.answers[number], into), map)
    return merge.run(dataclasses.replace(job, answers=(), folded=into), map)


def gradients(job: MergeJob, here: slice) -> list[F32]:
    """The corrected gradients of one tensor, in the order of the answers."""
    found = []
    for one in job.answers:
        gradient = -dtypes.decode(one.dtype, one.delta, job.params.size)[here]
        found.append(merge.heloco(gradient, job.momentum[here]) if job.correction else gradient)
    return found


def slices(layout: MergeTensors) -> list[slice]:
    edges = np.concatenate(([0], np.cumsum(layout.numels.astype(int)))).tolist()
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def by_rule(job: MergeJob) -> F32:
    """D35 written down: the merged delta, tensor by tensor, answers in the order given."""
    rda = job.tensors.mode == MergeMode.RDA
    parts = []
    for tensor, here in enumerate(slices(job.tensors)):
        acc = np.zeros(here.stop - here.start, np.float32)
        w1 = n1 = total = radius = 0.0
        for one, gradient in zip(job.answers, gradients(job, here), strict=True):
            if one.weight == 0.0:
                continue
            w1 = w1 or one.weight
            total += one.weight / w1
            share = one.weight / w1
            if rda:
                length = norm(gradient)
                radius += one.weight / w1 * length
                if length == 0.0:
                    continue
                n1 = n1 or max(length, FOLD_MIN_NORM)
                share = one.weight * n1 / (w1 * length)
            if share > float(np.finfo(np.float32).max):
                acc += (gradient.astype(np.float64) * share).astype(np.float32)
            else:
                acc += gradient * np.float32(share)
        if total:
            scale = 1.0 / total
            if rda and norm(acc) > RDA_MIN_DIRECTION * n1 * total:
                scale = radius / total / norm(acc)
            acc *= np.float32(scale)
        if job.tensors.mode == MergeMode.ISO and total:
            assert job.tensors.shapes is not None
            acc = merge.iso(acc.reshape(job.tensors.shapes[tensor].tolist())).reshape(-1)
        parts.append(acc)
    return np.concatenate(parts)


def check_by_rule(job: MergeJob, map: Map = map) -> None:
    delta = by_rule(job)
    params, momentum = merge.nesterov(job.params, job.momentum, delta, job.lr, job.mu)
    result = folded(job, map=map)
    assert result is not None
    assert result.params.tobytes() == params.tobytes()
    assert result.momentum.tobytes() == momentum.tobytes()
    assert result.gnorm == pytest.approx(float(np.linalg.norm(delta.astype(np.float64))), rel=1e-12)
    assert not result.params.flags.writeable and not result.momentum.flags.writeable


@pytest.mark.rule("syncer.fold.on_arrival")
@pytest.mark.parametrize(("mode", "dtype", "correction"), EVERYTHING)
def test_the_formulas_bit_for_bit(mode: MergeMode, dtype: Dtype, correction: bool) -> None:
    check_by_rule(random_job(7, mode, SHAPES, dtype, correction=correction))


@settings(max_examples=30)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(list(MergeMode)),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 300)), min_size=1, max_size=5),
    st.sampled_from(list(Dtype)),
    st.integers(1, 5),
    st.booleans(),
)
@pytest.mark.rule("merge.numerics.exact")
def test_random_fragments_on_any_number_of_threads(
    seed: int, mode: MergeMode, sizes: list[Shape], dtype: Dtype, learners: int, correction: bool
) -> None:
    job = random_job(seed, mode, sizes, dtype, learners=learners, correction=correction)
    check_by_rule(job)
    with ThreadPoolExecutor(3) as pool:
        assert same_bits(folded(job, map=pool.map), folded(job))


# -- beside the merge at the close ---------------------------------------------------------------------------

UNIT = 2.0**-24
SMALLEST = 2.0**-149


def allowed(job: MergeJob) -> tuple[F32, float]:
    """The stated bound for each element (as f64), and the smallest L of its tensors (1 for avg)."""
    weights = np.array([one.weight for one in job.answers])
    answers = len(job.answers)
    total = weights.sum()
    parts, smallest = [], 1.0
    for here in slices(job.tensors):
        exact = np.array(gradients(job, here), np.float64)
        if job.tensors.mode == MergeMode.AVG:
            spread = (weights[:, None] / total * np.abs(exact)).sum(axis=0)
            parts.append(2 * (answers + 4) * UNIT * spread)
        else:
            lengths = np.sqrt((exact**2).sum(axis=1))
            units = exact / np.where(lengths, lengths, 1.0)[:, None]
            spread = (weights[:, None] / total * np.abs(units)).sum(axis=0)
            mean = (weights[:, None] / total * units).sum(axis=0)
            length = float(np.sqrt((mean**2).sum()))
            smallest = min(smallest, length)
            radius = float((weights * lengths).sum() / total)
            stretch = radius / max(length, 1e-300)
            parts.append(2 * (answers + 4) * UNIT * stretch * (spread + np.abs(mean) / max(length, 1e-300)))
    bound = np.concatenate(parts) * 1.01 + 4 * (answers + 2) * SMALLEST  # second order, and what underflows
    return bound, smallest


@settings(max_examples=150)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([MergeMode.AVG, MergeMode.RDA]),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40)), min_size=1, max_size=4),
    st.sampled_from(list(Dtype)),
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6),
    st.floats(1e-6, 1e6),
    st.booleans(),
)
@pytest.mark.rule("syncer.fold.on_arrival")
def test_both_folds_agree_within_the_stated_bound(
    seed: int,
    mode: MergeMode,
    sizes: list[Shape],
    dtype: Dtype,
    weights: list[float],
    scale: float,
    correction: bool,
) -> None:
    rng = np.random.default_rng(seed)
    job = random_job(seed, mode, sizes, dtype, learners=len(weights), correction=correction)
    answers = tuple(
        answer(
            one.link.learner_id,
            dtypes.decode(dtype, one.delta, job.params.size) * np.float32(scale),
            dtype,
            weight,
        )
        for one, weight in zip(job.answers, weights, strict=True)
    )
    job = dataclasses.replace(job, answers=answers, lr=1.0, mu=0.0)  # the new momentum is the delta
    bound, smallest = allowed(job)
    assume(smallest > 1e-3)
    close = merge.run(job)
    arrival = folded(job, rng.permutation(len(weights)).tolist())
    assert close is not None and arrival is not None
    difference = np.abs(close.momentum.astype(np.float64) - arrival.momentum)
    worst = int(np.argmax(difference - bound))
    assert (difference <= bound).all(), (worst, difference[worst], bound[worst])


def test_both_folds_flatten_alike() -> None:
    """Well-conditioned matrices: the two means differ by roundings, and so do their flattened forms."""
    rng = np.random.default_rng(5)
    shapes = [(12, 30), (20, 20)]
    numel = sum(rows * cols for rows, cols in shapes)
    base = np.concatenate([np.eye(rows, cols, dtype=np.float32).reshape(-1) for rows, cols in shapes])
    answers = [
        answer(number, base + rng.uniform(-0.1, 0.1, numel).astype(np.float32), weight=1.0 + number)
        for number in range(4)
    ]
    zeros = np.zeros(numel, np.float32)
    job = make(zeros, zeros.copy(), tensors(MergeMode.ISO, shapes), answers, lr=1.0, mu=0.0)
    close, arrival = merge.run(job), folded(job, [2, 0, 3, 1])
    assert close is not None and arrival is not None
    np.testing.assert_allclose(arrival.momentum, close.momentum, rtol=1e-5, atol=1e-5)


def test_the_other_backend_flattens_once_when_the_round_closes() -> None:
    job = random_job(3, MergeMode.ISO, [(4, 6), (5, 5)])
    seen: list[tuple[int, ...]] = []

    def elsewhere(matrices: Sequence[F32]) -> None:
        for matrix in matrices:
            seen.append(matrix.shape)
            matrix[:] = merge.iso(matrix.copy())

    into = Accumulator(job.tensors)
    for one in job.answers:
        merge.fold(fold_job(job, one, into))
    assert not seen
    result = merge.run(dataclasses.replace(job, answers=(), folded=into), flatten=elsewhere)
    assert seen == [(4, 6), (5, 5)]
    assert same_bits(result, folded(job))


# -- order, weights, edges -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MergeMode)
def test_the_result_depends_on_the_order_and_on_nothing_else(mode: MergeMode) -> None:
    job = random_job(9, mode, [(30, 40)], learners=4)
    job = dataclasses.replace(
        job,
        answers=tuple(dataclasses.replace(one, weight=1.0 + 0.3 * n) for n, one in enumerate(job.answers)),
    )
    results = {order: folded(job, order) for order in itertools.permutations(range(4))}
    for order, result in results.items():
        assert same_bits(folded(job, order), result)
    assert len({result.params.tobytes() for result in results.values() if result is not None}) > 1


@pytest.mark.parametrize("mode", [MergeMode.AVG, MergeMode.RDA])
@pytest.mark.parametrize("weight", [1e-9, 3.0, 7e20])
def test_a_single_answer_comes_back_as_it_is(mode: MergeMode, weight: float) -> None:
    rng = np.random.default_rng(1)
    delta = rng.standard_normal(70, dtype=np.float32)
    zeros = np.zeros(70, np.float32)
    layout = tensors(mode, [(5, 8), (3, 10)])
    job = make(zeros, zeros.copy(), layout, [answer(0, delta, weight=weight)], lr=1.0, mu=0.0)
    result = folded(job)
    assert result is not None
    assert result.momentum.tobytes() == (-delta + np.float32(0)).tobytes()


@pytest.mark.rule("syncer.weight.zero")
@pytest.mark.parametrize("mode", MergeMode)
def test_without_any_weight_nothing_is_added(mode: MergeMode) -> None:
    job = random_job(4, mode, [(6, 6)], learners=2)
    job = dataclasses.replace(job, answers=tuple(dataclasses.replace(one, weight=0.0) for one in job.answers))
    result = folded(job)
    assert result is not None and result.gnorm == 0.0
    params, momentum = merge.nesterov(job.params, job.momentum, np.zeros_like(job.params), job.lr, job.mu)
    assert result.params.tobytes() == params.tobytes() and result.momentum.tobytes() == momentum.tobytes()


@pytest.mark.parametrize("mode", MergeMode)
def test_an_answer_without_weight_leaves_no_trace_wherever_it_comes(mode: MergeMode) -> None:
    job = random_job(6, mode, [(9, 11)], learners=3)
    first, second, third = (
        dataclasses.replace(one, weight=weight)
        for one, weight in zip(job.answers, (2.0, 5.0, 0.0), strict=True)
    )
    without = folded(dataclasses.replace(job, answers=(first, second)))
    for order in ((third, first, second), (first, third, second), (first, second, third)):
        assert same_bits(folded(dataclasses.replace(job, answers=order)), without)


def test_a_tensor_that_stood_still_in_the_first_answer_is_not_silenced() -> None:
    still, moved = np.zeros(4, np.float32), np.full(4, 2.0, np.float32)
    zeros = np.zeros(4, np.float32)
    answers = [answer(0, still), answer(1, moved), answer(2, moved)]
    job = make(zeros, zeros.copy(), tensors(MergeMode.RDA, [(2, 2)]), answers, lr=1.0, mu=0.0)
    close, arrival = merge.run(job), folded(job)
    assert close is not None and arrival is not None
    np.testing.assert_allclose(arrival.momentum, close.momentum, rtol=1e-6)
    assert arrival.momentum[0] == pytest.approx(-4.0 / 3.0), "it counts in the radius, with length 0"


def test_directions_that_cancel_out_leave_nothing_to_stretch() -> None:
    one = np.array([3.0, 4.0], np.float32)
    zeros = np.zeros(2, np.float32)
    answers = [answer(0, one), answer(1, -2 * one)]
    job = make(zeros, zeros.copy(), tensors(MergeMode.RDA, [(1, 2)]), answers, lr=1.0, mu=0.0)
    result = folded(job)
    assert result is not None and result.momentum.tolist() == [0.0, 0.0]


@pytest.mark.rule("round.merge.finite")
@pytest.mark.parametrize("mode", MergeMode)
def test_a_sum_that_overflows_is_refused_when_the_round_closes(mode: MergeMode) -> None:
    huge = np.full(9, 3e38, np.float32)
    zeros = np.zeros(9, np.float32)
    answers = [answer(0, huge), answer(1, huge)]
    job = make(zeros, zeros.copy(), tensors(mode, [(3, 3)]), answers, lr=1.0, mu=0.0)
    assert folded(job) is None


def test_lengths_that_do_not_fit_are_an_error() -> None:
    job = random_job(2, MergeMode.AVG, [(2, 3)])
    other = Accumulator(tensors(MergeMode.AVG, [(2, 4)]))
    with pytest.raises(BadArgument, match="6 values"):
        merge.fold(fold_job(job, job.answers[0], other))
    short = answer(0, np.zeros(5, np.float32))
    with pytest.raises(BadArgument, match="20 bytes, not 24"):
        merge.fold(fold_job(job, short, Accumulator(job.tensors)))
    with pytest.raises(BadArgument, match="do not fit"):
        merge.run(dataclasses.replace(job, answers=(), folded=other))
    with pytest.raises(BadArgument, match="left over"):
        merge.run(dataclasses.replace(job, folded=Accumulator(job.tensors)))
