"""Merge jobs for tests, and their result put together from the formulas of single tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from yeto_proto import dtypes
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_syncer.core import merge
from yeto_syncer.core.jobs import Answer, Link, MergeJob, MergeResult, MergeTensors

F32 = NDArray[np.float32]
Shape = tuple[int, int]

LR, MU = 0.7, 0.9


def frozen(array: F32) -> F32:
    array.flags.writeable = False
    return array


def tensors(mode: MergeMode, shapes: Sequence[Shape]) -> MergeTensors:
    sizes = np.array(shapes, np.uint64)
    return MergeTensors(mode, sizes.prod(axis=1, dtype=np.uint64), sizes if mode == MergeMode.ISO else None)


def answer(learner: int, delta: F32, dtype: Dtype = Dtype.F32, weight: float = 1.0) -> Answer:
    return Answer(Link(learner, 1), weight, dtype, bytes(dtypes.encode(dtype, delta)))


def make(
    params: F32,
    momentum: F32,
    layout: MergeTensors,
    answers: Sequence[Answer],
    *,
    correction: bool = False,
    lr: float = LR,
    mu: float = MU,
) -> MergeJob:
    return MergeJob(1, 1, 0, frozen(params), frozen(momentum), layout, tuple(answers), lr, mu, correction)


def random_job(
    seed: int,
    mode: MergeMode,
    shapes: Sequence[Shape],
    dtype: Dtype = Dtype.F32,
    *,
    learners: int = 4,
    correction: bool = False,
) -> MergeJob:
    """Gradients that agree with the momentum from hardly to not at all, so that HeLoCo has all its cases."""
    rng = np.random.default_rng(seed)
    numel = sum(rows * cols for rows, cols in shapes)

    def noise() -> F32:
        return rng.standard_normal(numel, dtype=np.float32)

    momentum = noise()
    answers = []
    for learner in range(learners):
        gradient = noise() + momentum * np.float32(rng.uniform(-0.6, 0.6))
        answers.append(answer(learner, -gradient, dtype, float(rng.integers(0, 5))))
    return make(noise(), momentum, tensors(mode, shapes), answers, correction=correction)


def by_formulas(job: MergeJob) -> tuple[F32, F32, F32]:
    """(params, momentum, delta) of a job, tensor by tensor with the public functions."""
    numel = job.params.size
    answers = sorted(job.answers, key=lambda one: one.link)
    gradients = [-dtypes.decode(one.dtype, one.delta, numel) for one in answers]
    weights = [one.weight for one in answers]
    parts: list[tuple[F32, F32, F32]] = []
    start = 0
    for tensor, size in enumerate(job.tensors.numels.tolist()):
        here = slice(start, start + size)
        start += size
        momentum = job.momentum[here]
        pieces = [gradient[here] for gradient in gradients]
        if job.correction:
            pieces = [merge.heloco(piece, momentum) for piece in pieces]
        delta = (merge.rda if job.tensors.mode == MergeMode.RDA else merge.avg)(pieces, weights)
        if job.tensors.mode == MergeMode.ISO:
            assert job.tensors.shapes is not None
            delta = merge.iso(delta.reshape(job.tensors.shapes[tensor].tolist())).reshape(-1)
        parts.append((*merge.nesterov(job.params[here], momentum, delta, job.lr, job.mu), delta))
    params, momentum, delta = (np.concatenate(column) for column in zip(*parts, strict=True))
    return params, momentum, delta


def same_bits(left: MergeResult | None, right: MergeResult | None) -> bool:
    assert left is not None and right is not None
    return (
        left.params.tobytes() == right.params.tobytes()
        and left.momentum.tobytes() == right.momentum.tobytes()
        and left.gnorm == right.gnorm
    )
