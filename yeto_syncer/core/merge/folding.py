"""`fold`: one answer into the sums of its round, as soon as it is there (`--fold on-arrival`, D35).

With w and n the weight and the length of an answer, and w1 and n1 those of the first one, each tensor keeps

    avg, iso:  acc += (w / w1) delta                   W += w / w1
    RDA:       acc += (w n1 / (w1 n)) delta            W += w / w1        R += (w / w1) n

in an f32 accumulator and f64 scalars, the correction being applied before. So the first answer goes in as it
is, whatever its weight, and nothing has to be known of the answers that follow. (n1 is at least 2^-64: beside
a first answer that is still shorter, those that follow would drown in roundings.) `run` closes the round:

    avg:  acc / W             iso:  the same, flattened             RDA:  acc (R / W) / |acc|

The reduction of a whole round (`--fold at-close`) forms the same sums with other roundings. Here the result
depends on the order of arrival, which is the order of the calls.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from yeto_proto._generated.constants import FOLD_MIN_NORM, RDA_MIN_DIRECTION
from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.sizes import push_bytes
from yeto_proto._generated.types import MergeMode
from yeto_syncer.core.jobs import Accumulator, Answer, FoldJob
from yeto_syncer.core.merge.arrays import F64, Coefficient, coefficient
from yeto_syncer.core.merge.gradients import Gradients
from yeto_syncer.core.merge.passes import Map, Passes
from yeto_syncer.core.merge.plan import Columns, Empty, Scratch, Strip, cut, empty_array


def fold(job: FoldJob, map: Map = map, empty: Empty = empty_array) -> None:
    """Adds the answer of `job` to `job.into`, negated once, in the tensors' own order.

    Each coefficient is formed in f64 and rounded to f32; then each product and each sum is rounded to f32, as
    in `avg` and `rda`; one that overflows f32 stays in f64. An answer without weight, and with RDA a tensor
    of length 0, adds nothing to `acc`. A sum that overflows shows when the round is closed. The same answers
    in the same order give the same bits, whatever `map` does (see `run`). Memory: about 10 MiB for each
    thread, from `empty`. Raises BadArgument when a length does not fit.
    """
    check_lengths(job)
    with np.errstate(all="ignore"):
        _Fold(job, map, empty).add()


def check_lengths(job: FoldJob) -> None:
    """Raises BadArgument unless momentum and sums have the length that the layout gives them."""
    numel = int(job.tensors.numels.sum())
    if job.momentum.shape != (numel,) or job.into.values.shape != (numel,):
        raise BadArgument(
            detail=f"fragment {job.fragment_id} has {numel} values, "
            f"but momentum and sums of shapes {job.momentum.shape} and {job.into.values.shape}"
        )
    check_delta(job.answer, numel)


def check_delta(answer: Answer, numel: int) -> None:
    """Raises BadArgument unless the push is as long as `numel` values are."""
    seen, expected = memoryview(answer.delta).nbytes, push_bytes(answer.dtype, numel)
    if seen != expected:
        raise BadArgument(detail=f"the push of {answer.link} has {seen} bytes, not {expected}")


class _Fold(Passes):
    """The passes of one fold."""

    def __init__(self, job: FoldJob, map: Map, empty: Empty) -> None:
        super().__init__(cut(job.tensors), Gradients([job.answer], job.momentum, ()), map, empty)
        self.job = job
        self.first = job.into.first_weight == 0.0

    def add(self) -> None:
        weight, into = self.job.answer.weight, self.job.into
        if weight <= 0.0:
            return
        if self.first:
            into.first_weight = weight
            into.values = self.empty(into.values.size)  # it was zeros that nobody has touched
        into.total += weight / into.first_weight
        if self.job.tensors.mode == MergeMode.RDA:
            coefficients = self.directed(weight)
        else:
            if self.job.correction:
                self.correct(lengths=False)
            coefficients = [coefficient(weight / into.first_weight)] * self.cut.num_tensors
        self.passes(lambda strip, scratch: self.put(strip, coefficients[strip.tensor], scratch))

    def directed(self, weight: float) -> list[Coefficient]:
        """RDA's coefficients of this answer, one a tensor; takes its lengths into the radii."""
        into = self.job.into
        squares = self.correct(lengths=True) if self.job.correction else self.sums(self.gradients.squares)
        norms = np.sqrt(squares[:, 0])
        into.radii += weight / into.first_weight * norms
        fresh = (into.first_norms == 0.0) & (norms != 0.0)
        np.copyto(into.first_norms, np.maximum(norms, FOLD_MIN_NORM), where=fresh)
        return [
            None if norm == 0.0 else coefficient(weight * first / (into.first_weight * norm))
            for norm, first in zip(norms.tolist(), into.first_norms.tolist(), strict=True)
        ]

    def put(self, strip: Strip, factor: Coefficient, scratch: Scratch) -> Columns:
        """acc += coefficient delta, where acc is 0 before the first answer."""
        here = self.job.into.values[strip.start : strip.stop]
        if self.first:
            np.copyto(here, self.gradients.add_up((factor,), strip, scratch))
        elif factor is not None:
            np.add(here, self.gradients.add_up((factor,), strip, scratch), out=here)
        return ()


def closing_scales(sums: Accumulator, lengths: F64 | None) -> NDArray[np.float32]:
    """What each tensor's sum is multiplied with, in f32, when its round closes. `lengths` is |acc|; only RDA
    has them.

    A round in which nothing had a weight keeps its zeros (D12). Where the directions cancel out there is no
    direction to stretch, and the plain mean that `rda` then gives cannot be formed any more: such a tensor
    gets acc / W, whose length is at most 1e-12 of n1.
    """
    if sums.total == 0.0:
        return np.ones(sums.radii.size, np.float32)
    share = np.full(sums.radii.size, 1.0 / sums.total)
    if lengths is not None:
        lost = lengths <= RDA_MIN_DIRECTION * sums.first_norms * sums.total
        stretched = sums.radii / sums.total / np.where(lost, math.inf, lengths)
        share = np.where(lost, share, stretched)
    return share.astype(np.float32)
