"""`run`, the merge of a whole fragment: the formulas' bits for every dtype, mode, cut and thread count."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.numerics.jobs import Shape, answer, by_formulas, make, random_job, same_bits, tensors
from yeto_proto._generated.constants import Q4_BLOCK, REDUCTION_BLOCK
from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_syncer.core import merge
from yeto_syncer.core.jobs import Answer, Link, MergeJob
from yeto_syncer.core.merge import plan

EVERYTHING = [
    pytest.param(
        mode, dtype, correction, id=f"{mode.name}-{dtype.name}-{'heloco' if correction else 'plain'}"
    )
    for mode, dtype, correction in itertools.product(MergeMode, Dtype, (False, True))
]
# Tensors that end inside q4 blocks, inside reduction blocks, at their edges, and after several strips.
SHAPES: list[Shape] = [(300, 300), (1, 7), (1100, 500), (5, 1), (256, 256), (1, 1), (128, 512)]


def check_against_formulas(job: MergeJob, **options: Any) -> None:
    params, momentum, delta = by_formulas(job)
    result = merge.run(job, **options)
    assert result is not None
    assert result.params.tobytes() == params.tobytes()
    assert result.momentum.tobytes() == momentum.tobytes()
    assert result.gnorm == pytest.approx(float(np.linalg.norm(delta.astype(np.float64))), rel=1e-12)


@pytest.mark.parametrize(("mode", "dtype", "correction"), EVERYTHING)
@pytest.mark.rule("merge.numerics.exact")
def test_a_fragment_merges_as_its_tensors(mode: MergeMode, dtype: Dtype, correction: bool) -> None:
    job = random_job(7, mode, SHAPES, dtype, correction=correction)
    check_against_formulas(job)


shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 9), st.integers(1, 70)),
        st.tuples(st.integers(1, 4), st.sampled_from([Q4_BLOCK, REDUCTION_BLOCK // 2, REDUCTION_BLOCK + 1])),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(list(MergeMode)),
    shapes,
    st.sampled_from(list(Dtype)),
    st.integers(1, 5),
    st.booleans(),
)
@pytest.mark.rule("merge.numerics.exact")
def test_random_fragments_merge_as_their_tensors_on_any_number_of_threads(
    seed: int, mode: MergeMode, sizes: list[Shape], dtype: Dtype, learners: int, correction: bool
) -> None:
    job = random_job(seed, mode, sizes, dtype, learners=learners, correction=correction)
    check_against_formulas(job)
    serial = merge.run(job)
    for threads in (1, 2, 3, 7):
        with ThreadPoolExecutor(threads) as pool:
            assert same_bits(merge.run(job, pool.map), serial)


@pytest.mark.parametrize("mode", MergeMode)
def test_neither_strips_nor_tasks_show_in_the_bits(mode: MergeMode, monkeypatch: pytest.MonkeyPatch) -> None:
    job = random_job(11, mode, SHAPES, Dtype.Q4, correction=True)
    usual = merge.run(job)

    def backwards(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Tasks in the opposite order, results in the right one, as an unlucky pool might do it."""
        return reversed([work(item) for item in reversed(list(items))])

    for strip, task in ((1, 1), (1, 3), (3, 3), (2, 64)):
        monkeypatch.setattr(plan, "STRIP", strip * REDUCTION_BLOCK)
        monkeypatch.setattr(plan, "TASK", task * REDUCTION_BLOCK)
        job = random_job(11, mode, SHAPES, Dtype.Q4, correction=True)  # the cut of the other one is kept
        tasks = plan.cut(job.tensors).tasks
        assert [number for part in tasks for number in part] == list(range(tasks[-1].stop))
        assert (len(tasks) == 1) == (task == 64)
        assert same_bits(merge.run(job, backwards), usual)


# ------------------------------------------------------------------------------------------------ who takes
# part


@pytest.mark.rule("merge.numerics.exact")
def test_answers_are_taken_in_ascending_order_of_id_and_generation() -> None:
    job = random_job(3, MergeMode.AVG, [(40, 50)])
    links = [Link(2, 9), Link(10, 1), Link(2, 10), Link(0, 5)]
    answers = [
        dataclasses.replace(one, link=link, weight=1.0 + m)
        for m, (one, link) in enumerate(zip(job.answers, links, strict=True))
    ]
    results = [
        merge.run(dataclasses.replace(job, answers=order)) for order in itertools.permutations(answers)
    ]
    assert all(same_bits(result, results[0]) for result in results)
    in_order = dataclasses.replace(job, answers=tuple(answers[m] for m in (3, 0, 2, 1)))
    check_against_formulas(in_order)


@pytest.mark.parametrize("mode", MergeMode)
@pytest.mark.rule("syncer.weight.zero")
def test_without_any_weight_the_momentum_decays(mode: MergeMode) -> None:
    """D12: the round commits with a zero delta."""
    job = random_job(4, mode, [(30, 40), (1, 5)], correction=True)
    job = dataclasses.replace(job, answers=tuple(dataclasses.replace(one, weight=0.0) for one in job.answers))
    result = merge.run(job)
    assert result is not None
    assert result.gnorm == 0.0
    params, momentum = merge.nesterov(job.params, job.momentum, np.zeros_like(job.params), job.lr, job.mu)
    assert result.momentum.tobytes() == momentum.tobytes()
    assert result.params.tobytes() == params.tobytes()


@pytest.mark.parametrize(("mode", "dtype", "correction"), EVERYTHING)
def test_an_answer_without_weight_changes_nothing(mode: MergeMode, dtype: Dtype, correction: bool) -> None:
    job = random_job(5, mode, [(30, 40), (1, 5)], dtype, learners=3, correction=correction)
    with_weights = [dataclasses.replace(one, weight=1.0 + m) for m, one in enumerate(job.answers)]
    for place in range(4):
        extra = dataclasses.replace(with_weights[0], link=Link(place, 0), weight=0.0)
        job_with = dataclasses.replace(job, answers=(*with_weights, extra))
        if mode == MergeMode.RDA:  # all the same, its length counts nothing in the mean length
            check_against_formulas(job_with)
        assert same_bits(
            merge.run(job_with), merge.run(dataclasses.replace(job, answers=tuple(with_weights)))
        )


def test_rda_falls_back_to_the_mean_in_the_one_tensor_that_lost_its_direction() -> None:
    """Also when the corrections that turn were kept where the first attempt accumulated."""
    rng = np.random.default_rng(6)
    sizes: list[Shape] = [(1, 2), (300, 400), (1, 1)]
    numel = 2 + 120_000 + 1
    first = rng.standard_normal(numel, dtype=np.float32)
    second = rng.standard_normal(numel, dtype=np.float32)
    momentum = rng.standard_normal(numel, dtype=np.float32)
    # In the first tensor both gradients are across a long momentum: each is turned by a hair, and they
    # cancel.
    momentum[:2] = 0.0, 1e20
    first[:2], second[:2] = (3.0, 0.0), (-1.0, 0.0)
    momentum[-1], first[-1], second[-1] = 0.0, 5.0, -5.0
    job = make(
        rng.standard_normal(numel, dtype=np.float32),
        momentum,
        tensors(MergeMode.RDA, sizes),
        [answer(0, -first), answer(1, -second)],
        correction=True,
    )
    assert merge.heloco(first[:2], momentum[:2]).tolist() != first[:2].tolist()  # turned, not left alone
    check_against_formulas(job)
    result = merge.run(job)
    assert result is not None
    assert result.momentum[-1] == 0.0
    assert abs(float(result.momentum[0]) - 1.0) < 1e-3


# ------------------------------------------------------------------------------------------------ what is not
# finite


def huge(job: MergeJob, at: int, value: float, field: str) -> MergeJob:
    changed = getattr(job, field).copy()
    changed[at] = value
    return dataclasses.replace(job, **{field: changed})


@pytest.mark.parametrize("mode", MergeMode)
@pytest.mark.parametrize("at", [0, 123_456, 599_999])
@pytest.mark.rule("round.merge.finite")
def test_an_outer_step_that_overflows_gives_no_result(mode: MergeMode, at: int) -> None:
    """D33: finite params, momentum and deltas, and still no finite step."""
    job = dataclasses.replace(random_job(8, mode, [(6, 1000), (1, 594_000)], learners=2), lr=2.0)
    before = job.params.tobytes(), job.momentum.tobytes()
    assert merge.run(job) is not None
    broken = huge(job, at, float(np.finfo(np.float32).max), "momentum")
    assert merge.run(broken) is None
    with ThreadPoolExecutor(2) as pool:
        assert merge.run(broken, pool.map) is None
    assert (job.params.tobytes(), job.momentum.tobytes()) == before


@pytest.mark.parametrize("mode", MergeMode)
@pytest.mark.rule("round.merge.finite")
def test_deltas_that_overflow_together_give_no_result(mode: MergeMode) -> None:
    largest = np.full(600, np.finfo(np.float32).max, np.float32)
    job = make(
        np.zeros(600, np.float32),
        np.zeros(600, np.float32),
        tensors(mode, [(1, 600)]),
        [answer(learner, largest) for learner in range(3)],
    )
    assert merge.run(job) is None


@given(
    st.sampled_from([0.0, 0.7, 1.0, 2.0, -1.0]),
    st.sampled_from([0.0, 0.9, 1.0, -1.0]),
    st.lists(
        st.sampled_from([0.0, 1.0, -1.0, 3e38, -3e38, math.inf, -math.inf, math.nan]), min_size=3, max_size=3
    ),
)
def test_what_is_not_finite_always_shows_in_the_params(lr: float, mu: float, values: list[float]) -> None:
    """`run` looks at the new params alone."""
    params, momentum, delta = (np.full(1, value, np.float32) for value in values)
    moved, new = merge.nesterov(params, momentum, delta, lr, mu)
    if not np.isfinite([new[0], delta[0]]).all():
        assert not np.isfinite(moved).any()


def test_an_overflow_warns_nobody(recwarn: pytest.WarningsRecorder) -> None:
    job = random_job(9, MergeMode.RDA, [(20, 30)], correction=True)
    with ThreadPoolExecutor(2) as pool:
        assert merge.run(dataclasses.replace(job, lr=3e38), pool.map) is None
    assert not recwarn.list


# ------------------------------------------------------------------------------------------------ inputs and
# outputs


def test_results_are_new_and_read_only_and_inputs_are_untouched() -> None:
    job = random_job(10, MergeMode.RDA, SHAPES, correction=True)
    before = job.params.tobytes(), job.momentum.tobytes(), [bytes(one.delta) for one in job.answers]
    result = merge.run(job)
    assert result is not None
    for array in (result.params, result.momentum):
        assert array.dtype == np.float32 and array.flags.c_contiguous and not array.flags.writeable
        assert not np.shares_memory(array, job.params) and not np.shares_memory(array, job.momentum)
    assert (job.params.tobytes(), job.momentum.tobytes(), [bytes(one.delta) for one in job.answers]) == before


@pytest.mark.parametrize("mode", MergeMode)
def test_zeros_keep_their_signs(mode: MergeMode) -> None:
    """Untouched rows of an embedding: the gradient is -0 everywhere, the merged one starts from +0."""
    zeros = np.zeros(20, np.float32)
    job = make(-zeros, -zeros, tensors(mode, [(4, 5)]), [answer(0, zeros), answer(1, zeros)])
    check_against_formulas(job)
    result = merge.run(job)
    assert result is not None
    assert not np.signbit(result.momentum).any()


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_wire_bytes_may_begin_anywhere(dtype: Dtype, shift: int) -> None:
    """A delta that lies behind other fields in one buffer is not aligned for its dtype."""
    job = random_job(12, MergeMode.RDA, [(70, 90), (3, 5)], dtype, correction=True)

    def shifted(one: Answer) -> Answer:
        data = bytes(one.delta)
        return dataclasses.replace(
            one, delta=memoryview(b"x" * shift + data + b"y")[shift : shift + len(data)]
        )

    moved = dataclasses.replace(job, answers=tuple(shifted(one) for one in job.answers))
    assert same_bits(merge.run(moved), merge.run(job))


def test_wrong_lengths_are_refused() -> None:
    job = random_job(13, MergeMode.AVG, [(10, 10)])
    short = dataclasses.replace(job.answers[0], delta=bytes(job.answers[0].delta)[:-4])
    for broken in (
        dataclasses.replace(job, answers=(short,)),
        dataclasses.replace(job, answers=(dataclasses.replace(job.answers[0], dtype=Dtype.BF16),)),
        dataclasses.replace(job, params=job.params[:-1]),
        dataclasses.replace(job, momentum=job.momentum[1:]),
        dataclasses.replace(job, tensors=tensors(MergeMode.AVG, [(10, 11)])),
    ):
        with pytest.raises(BadArgument):
            merge.run(broken)


@pytest.mark.parametrize(("dtype", "correction"), list(itertools.product(Dtype, (False, True))))
def test_memory_beside_the_result_is_bounded(dtype: Dtype, correction: bool) -> None:
    """Two new arrays, and less than 12 MiB for each thread: no decoded fragment at all."""
    job = random_job(14, MergeMode.RDA, [(2048, 2048)], dtype, correction=correction)
    result_bytes = 8 * job.params.size
    with ThreadPoolExecutor(2) as pool:
        merge.run(job, pool.map)
        tracemalloc.start()
        try:
            result = merge.run(job, pool.map)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert result is not None
    assert result_bytes <= peak < result_bytes + 2 * 12 * 2**20


HELD = """
import hashlib
import numpy as np
from threadpoolctl import threadpool_info

def threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

np.eye(2) @ np.eye(2)
print(*threads())
from yeto_syncer.core import merge
matrix = np.random.default_rng(1).normal(size=(300, 200)).astype(np.float32)
merged = merge.iso(matrix)
print(*threads())
print(hashlib.sha256(np.ascontiguousarray(merged).tobytes()).hexdigest())
"""


def test_blas_is_held_to_one_thread() -> None:
    """D30: a BLAS that splits sums over the cores would round as the machine has cores."""
    told = []
    for count in ("1", "4"):
        done = subprocess.run(
            [sys.executable, "-c", HELD],
            env={**os.environ, "OPENBLAS_NUM_THREADS": count},
            capture_output=True,
            text=True,
            check=True,
        )
        told.append(done.stdout.split())
    # Of four threads OpenBLAS takes as many as there are cores.
    (before, held, digest), (_, held_of_four, digest_of_four) = told
    assert before == held == held_of_four == "1"
    assert digest == digest_of_four
