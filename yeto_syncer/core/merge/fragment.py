"""`run`: the merge and outer step of one whole fragment, straight from the wire bytes of its pushes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from yeto_proto._generated.constants import RDA_MIN_DIRECTION
from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.sizes import push_bytes
from yeto_proto._generated.types import MergeMode
from yeto_syncer.core.jobs import MergeJob, MergeResult
from yeto_syncer.core.merge.arrays import F32, F64, in_order
from yeto_syncer.core.merge.correction import Opposed
from yeto_syncer.core.merge.gradients import Gradients, Turned
from yeto_syncer.core.merge.outer import step
from yeto_syncer.core.merge.plan import Columns, Cut, Scratch, Strip
from yeto_syncer.core.merge.reduction import directions, radial_mean, shares, total_weight
from yeto_syncer.core.merge.spectrum import flatten

T = TypeVar("T")
R = TypeVar("R")

ONE = np.float32(1.0)


class Map(Protocol):
    """The builtin `map`, or that of a `concurrent.futures.Executor`: results in the order of the items."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]: ...


# Per tensor and answer. A tensor that is None is left as it is; an answer that is None adds nothing.
Coefficients: TypeAlias = Sequence[Sequence[np.float32 | None] | None]


def run(job: MergeJob, map: Map = map) -> MergeResult | None:
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

    Memory: the two result arrays, and about 10 MiB for each thread. Rules that need a norm before they can
    add (RDA, HeLoCo) decode each strip again in every pass, which is cheaper than memory for whole decoded
    gradients. Until the last pass writes the results, their arrays serve as the accumulator and keep what
    two of the corrections computed. iso needs its matrix in f64 besides.
    """
    check(job)
    with np.errstate(all="ignore"):  # an overflow is looked for in the result instead
        return Merge(job, map).result()


def check(job: MergeJob) -> None:
    """Raises BadArgument unless every array has the length that the layout gives it."""
    numel = int(job.tensors.numels.sum())
    if job.params.shape != (numel,) or job.momentum.shape != (numel,):
        raise BadArgument(
            detail=f"fragment {job.fragment_id} has {numel} values, "
            f"but params and momentum of shapes {job.params.shape} and {job.momentum.shape}"
        )
    for answer in job.answers:
        seen, expected = memoryview(answer.delta).nbytes, push_bytes(answer.dtype, numel)
        if seen != expected:
            raise BadArgument(detail=f"the push of {answer.link} has {seen} bytes, not {expected}")


class Merge:
    """One merge: its passes over the fragment, and what is known between them."""

    def __init__(self, job: MergeJob, map: Map) -> None:
        self.job = job
        self.map = map
        self.cut = Cut(job.tensors.numels)
        answers = sorted(job.answers, key=lambda answer: answer.link)
        self.total = total_weight([answer.weight for answer in answers])
        # An answer without weight has the coefficient 0 in every rule: left out, it gives the same bits.
        answers = [answer for answer in answers if answer.weight > 0.0]
        self.weights = [answer.weight for answer in answers]
        self.params: F32 = np.empty_like(job.params)
        self.momentum: F32 = np.empty_like(job.momentum)
        self.gradients = Gradients(answers, job.momentum, (self.params, self.momentum))
        self.scratches: list[Scratch] = []

    def result(self) -> MergeResult | None:
        mode = self.job.tensors.mode if self.weights else MergeMode.AVG
        if mode == MergeMode.RDA:
            squares = self.rda()
        else:
            if self.job.correction and self.weights:
                self.correct(lengths=False)
            means: Coefficients = [shares(self.weights, self.total)] * self.cut.num_tensors
            if mode == MergeMode.ISO:
                self.passes(lambda strip, scratch: self.accumulate(strip, means, scratch))
                self.flatten()
                squares = self.passes(lambda strip, scratch: self.finish(strip, ONE, scratch))
            else:
                squares = self.passes(lambda strip, scratch: self.average(strip, means, scratch))
        total = in_order(squares[:, 0].tolist())
        if not math.isfinite(total):
            return None
        self.params.flags.writeable = False
        self.momentum.flags.writeable = False
        return MergeResult(self.params, self.momentum, math.sqrt(total))

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

    def correct(self, lengths: bool) -> F64:
        """Settles all corrections. Gives the squared lengths (tensors, answers) of the corrected gradients.

        Without `lengths` it spares the passes that only they need, and gives those before the correction.
        """
        gradients = self.gradients
        products = self.sums(gradients.products)
        squares = products[:, : len(self.weights)]
        gradients.judge(products)
        if gradients.any(Turned) or (lengths and gradients.any(Opposed)):
            measured = self.sums(gradients.measure)
            gradients.stretch(measured)
            if lengths:
                squares = np.where(np.isnan(measured), squares, measured)
                if gradients.any(Turned):  # `measured` holds the lengths of their blends
                    turned = self.sums(gradients.turned_squares)
                    squares = np.where(np.isnan(turned), squares, turned)
        return squares

    def flatten(self) -> None:
        """iso of every tensor whose shape fits, inside the accumulator; each matrix is one task."""
        if self.job.tensors.shapes is None:
            return
        shapes: list[list[int]] = self.job.tensors.shapes.tolist()
        edges: list[int] = self.cut.edges.tolist()

        def one(tensor: int) -> None:
            rows, cols = shapes[tensor]
            values = self.momentum[edges[tensor] : edges[tensor + 1]]
            if rows * cols == values.size:
                values[:] = flatten(values.reshape(rows, cols)).reshape(-1)

        list(self.map(quiet(one), range(len(shapes))))

    # The passes. Each does a strip and returns columns of numbers, one number a reduction block; `passes`
    # puts them under each other in block order, and `sums` adds up the blocks of each tensor.

    def passes(self, work: Callable[[Strip, Scratch], Columns]) -> F64:
        def task(part: range) -> list[tuple[float, ...]]:
            try:
                scratch = (
                    self.scratches.pop()
                )  # atomic, as is append: at most one for each thread is ever made
            except IndexError:
                scratch = Scratch()
            rows: list[tuple[float, ...]] = []
            for strip in self.cut.strips(part):
                rows.extend(zip(*work(strip, scratch), strict=True))
            self.scratches.append(scratch)
            return rows

        return np.array([row for rows in self.map(quiet(task), self.cut.tasks) for row in rows], np.float64)

    def sums(self, work: Callable[[Strip, Scratch], Columns]) -> F64:
        return self.cut.per_tensor(self.passes(work))

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


def quiet(work: Callable[[T], R]) -> Callable[[T], R]:
    """`work` without numpy's warnings: an overflow is looked for in the result instead."""

    def run(item: T) -> R:
        with np.errstate(all="ignore"):
            return work(item)

    return run
