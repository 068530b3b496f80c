"""`run`: the merge and outer step of one whole fragment, straight from the wire bytes of its pushes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np

from yeto_proto._generated.constants import RDA_MIN_DIRECTION
from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.types import MergeMode
from yeto_syncer.core.jobs import Accumulator, MergeJob, MergeResult
from yeto_syncer.core.merge.arrays import F32, F64, Coefficient, in_order
from yeto_syncer.core.merge.folding import check_delta, closing_scales
from yeto_syncer.core.merge.gradients import Gradients
from yeto_syncer.core.merge.outer import step
from yeto_syncer.core.merge.passes import Map, Passes, quiet
from yeto_syncer.core.merge.plan import Columns, Empty, Scratch, Strip, cut, empty_array
from yeto_syncer.core.merge.reduction import directions, radial_mean, shares, total_weight
from yeto_syncer.core.merge.spectrum import flatten

ONE = np.float32(1.0)


class Flatten(Protocol):
    """iso in another place: replaces each of these contiguous, finite f32 (rows, cols) matrices by its
    flattened form, or by NaN when that is not finite. Returns when all are done; what it raises ends the
    merge."""

    def __call__(self, matrices: Sequence[F32], /) -> None: ...


def flatten_each(matrices: Sequence[F32], map: Map = map) -> None:
    """A `Flatten` that does what `iso` does, each matrix being one task of `map`, perhaps of seconds."""

    def one(matrix: F32) -> None:
        matrix[:] = flatten(matrix)

    list(map(quiet(one), matrices))


# Per tensor and answer. A tensor that is None is left as it is; an answer that is None adds nothing.
Coefficients: TypeAlias = Sequence[Sequence[Coefficient] | None]


def run(
    job: MergeJob, map: Map = map, flatten: Flatten | None = None, empty: Empty = empty_array
) -> MergeResult | None:
    """Merges the answers of one round and steps: this package's formulas on a whole fragment, bit for bit.

    Per tensor: gradient_m = -delta_m; `heloco` against the old momentum when `job.correction`; `avg`, `rda`,
    or `avg` and `iso`, by the fragment's merge mode; then `nesterov`. Answers are taken in ascending (id,
    generation). When no answer has a weight the merged delta is zero, and the step still happens (D12).

    Returns new read-only arrays, and the norm of the merged delta: f64, block sums of all tensors added in
    order. Returns None, having written nothing that anyone sees, when any new value is not finite (D33).
    Raises BadArgument when a length does not fit.

    `map` spreads independent tasks over threads: numpy lets go of the interpreter inside each operation. The
    calling thread only waits, so it must not be one of the threads that serve `map`. Bits do not depend on
    `map`.

    Sums that were folded on arrival (`job.folded`) are closed instead, and their array becomes the new
    momentum.

    `flatten` takes the place of `iso` in an iso fragment (the torch-svd backend); without it the spectrum is
    flattened here, in f64.

    `empty` gives the memory of the results and of what a thread works in: the first touch of fresh memory can
    take longer than the arithmetic.

    Memory: the two result arrays, and about 10 MiB for each thread. Rules that need a norm before they can
    add (RDA, HeLoCo) decode each strip again in every pass, which is cheaper than memory for whole decoded
    gradients. Until the last pass writes the results, their arrays serve as the accumulator and keep what
    two of the corrections computed. iso needs its matrix in f64 besides.
    """
    check(job)
    with np.errstate(all="ignore"):  # an overflow is looked for in the result instead
        return Merge(job, map, flatten, empty).result()


def check(job: MergeJob) -> None:
    """Raises BadArgument unless every array has the length that the layout gives it."""
    numel = int(job.tensors.numels.sum())
    if job.params.shape != (numel,) or job.momentum.shape != (numel,):
        raise BadArgument(
            detail=f"fragment {job.fragment_id} has {numel} values, "
            f"but params and momentum of shapes {job.params.shape} and {job.momentum.shape}"
        )
    if job.folded is not None and (job.answers or job.folded.values.shape != (numel,)):
        raise BadArgument(
            detail=f"the sums of fragment {job.fragment_id} do not fit, or answers are left over"
        )
    for answer in job.answers:
        check_delta(answer, numel)


class Merge(Passes):
    """One merge: its passes over the fragment, and what is known between them."""

    def __init__(self, job: MergeJob, map: Map, flatten: Flatten | None, empty: Empty) -> None:
        self.job = job
        # A bound method kept here would be a cycle, and the result would outlive its last user until a
        # collection finds it.
        self.flattener = flatten
        answers = sorted(job.answers, key=lambda answer: answer.link)
        self.total = total_weight([answer.weight for answer in answers])
        # An answer without weight has the coefficient 0 in every rule: left out, it gives the same bits.
        answers = [answer for answer in answers if answer.weight > 0.0]
        self.weights = [answer.weight for answer in answers]
        self.params: F32 = empty(job.params.size)
        # Sums that were folded on arrival become the new momentum where they stand.
        self.momentum: F32 = empty(job.momentum.size) if job.folded is None else job.folded.values
        gradients = Gradients(answers, job.momentum, (self.params, self.momentum))
        super().__init__(cut(job.tensors), gradients, map, empty)

    def result(self) -> MergeResult | None:
        mode = self.job.tensors.mode
        if self.job.folded is not None:
            squares = self.close(self.job.folded, mode)
        elif self.weights and mode == MergeMode.RDA:
            squares = self.rda()
        else:
            squares = self.mean(mode)
        total = in_order(squares[:, 0].tolist())
        if not math.isfinite(total):
            return None
        self.params.flags.writeable = False
        self.momentum.flags.writeable = False
        return MergeResult(self.params, self.momentum, math.sqrt(total))

    def mean(self, mode: MergeMode) -> F64:
        """The passes of avg and iso, and of any round without a weight."""
        if self.job.correction and self.weights:
            self.correct(lengths=False)
        means: Coefficients = [shares(self.weights, self.total)] * self.cut.num_tensors
        if mode != MergeMode.ISO or not self.weights:
            return self.passes(lambda strip, scratch: self.average(strip, means, scratch))
        return self.spectra(self.passes(lambda strip, scratch: self.accumulate(strip, means, scratch)))

    def spectra(self, averaged: F64) -> F64:
        """Flattens the means in the accumulator, whose squares are `averaged`, and steps."""
        if not math.isfinite(in_order(averaged[:, 0].tolist())):
            return averaged  # a matrix with inf or NaN has no spectrum
        (self.flattener or self.flatten_here)(self.matrices())
        return self.passes(lambda strip, scratch: self.finish(strip, ONE, scratch))

    def close(self, sums: Accumulator, mode: MergeMode) -> F64:
        """The passes over sums that were folded on arrival."""
        lengths = np.sqrt(self.sums(self.squares)[:, 0]) if mode == MergeMode.RDA else None
        scales = list(closing_scales(sums, lengths))
        if mode == MergeMode.ISO and sums.total:
            return self.spectra(self.passes(lambda strip, scratch: self.rescale(strip, scales, scratch)))
        return self.passes(lambda strip, scratch: self.finish(strip, scales[strip.tensor], scratch))

    def rda(self) -> F64:
        """The passes of RDA: lengths, directions, and the rescaled step."""
        squares = self.correct(lengths=True) if self.job.correction else self.sums(self.gradients.squares)
        norms = np.sqrt(squares).tolist()
        coefficients: Coefficients = [directions(one, self.weights, self.total) for one in norms]
        directed = self.sums(lambda strip, scratch: self.accumulate(strip, coefficients, scratch))
        lengths = np.sqrt(directed[:, 0]).tolist()
        lost = [length < RDA_MIN_DIRECTION for length in lengths]
        if any(lost):  # no direction: these tensors get the plain mean
            means = shares(self.weights, self.total)
            again: Coefficients = [means if one else None for one in lost]
            self.gradients.forget()
            self.passes(lambda strip, scratch: self.accumulate(strip, again, scratch))
        scales = [
            ONE if gone else np.float32(radial_mean(one, self.weights, self.total) / length)
            for one, length, gone in zip(norms, lengths, lost, strict=True)
        ]
        return self.passes(lambda strip, scratch: self.finish(strip, scales[strip.tensor], scratch))

    def matrices(self) -> list[F32]:
        """The tensors whose shape fits, as views of the accumulator."""
        if self.job.tensors.shapes is None:
            return []
        shapes: list[list[int]] = self.job.tensors.shapes.tolist()
        edges: list[int] = self.cut.edges.tolist()
        return [
            self.momentum[start:stop].reshape(rows, cols)
            for (rows, cols), start, stop in zip(shapes, edges, edges[1:], strict=False)
            if rows * cols == stop - start
        ]

    def flatten_here(self, matrices: Sequence[F32]) -> None:
        """iso inside the accumulator; each matrix is one task."""
        flatten_each(matrices, self.map)

    # What one pass does with a strip.

    def squares(self, strip: Strip, scratch: Scratch) -> Columns:
        """The squares of what the accumulator holds."""
        return [scratch.squares(self.momentum[strip.start : strip.stop])]

    def rescale(self, strip: Strip, scales: Sequence[np.float32], scratch: Scratch) -> Columns:
        """Rescales the strip in the accumulator; its squares."""
        here = self.momentum[strip.start : strip.stop]
        np.multiply(here, scales[strip.tensor], out=here)
        return [scratch.squares(here)]

    def accumulate(self, strip: Strip, coefficients: Coefficients, scratch: Scratch) -> Columns:
        """The merged gradient (or RDA's direction) into the accumulator, the new momentum; its squares."""
        chosen = coefficients[strip.tensor]
        if chosen is None:
            return [[0.0] * strip.blocks]
        total = self.gradients.add_up(chosen, strip, scratch)
        np.copyto(self.momentum[strip.start : strip.stop], total)
        return [scratch.squares(total)]

    def finish(self, strip: Strip, scale: np.float32, scratch: Scratch) -> Columns:
        """Takes the strip out of the accumulator, rescales it and steps."""
        delta = np.multiply(self.momentum[strip.start : strip.stop], scale, out=scratch.total[: strip.size])
        return self.step(strip, delta, scratch)

    def average(self, strip: Strip, coefficients: Coefficients, scratch: Scratch) -> Columns:
        """avg and step in one go: each value is read once and written once."""
        return self.step(
            strip, self.gradients.add_up(coefficients[strip.tensor] or (), strip, scratch), scratch
        )

    def step(self, strip: Strip, delta: F32, scratch: Scratch) -> Columns:
        """The outer step; the squares of delta, or NaN when a new value is not finite.

        Only the new parameters are looked at: inf or NaN in delta or in the new momentum reaches them in any
        case, since p - lr (delta + mu b) has no way back from inf or NaN to a number, whatever lr and mu are
        (0 inf is NaN).
        """
        job, here = self.job, slice(strip.start, strip.stop)
        new = self.params[here], self.momentum[here]
        rate, decay = np.float32(job.lr), np.float32(job.mu)
        step(job.params[here], job.momentum[here], delta, rate, decay, new, scratch.term[: strip.size])
        return [scratch.squares(delta) if scratch.all_finite(new[0]) else [math.nan] * strip.blocks]
