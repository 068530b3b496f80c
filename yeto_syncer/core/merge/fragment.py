"""`run`: the merge and outer step of one whole fragment, straight from the wire bytes of its pushes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from yeto_proto._generated.constants import RDA_MIN_DIRECTION
from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.sizes import push_bytes
from yeto_proto._generated.types import MergeMode
from yeto_syncer.core.jobs import MergeJob, MergeResult
from yeto_syncer.core.merge.arrays import F32, F64, product_sum
from yeto_syncer.core.merge.correction import Oblique, Opposed, blend, judge, oppose
from yeto_syncer.core.merge.outer import step
from yeto_syncer.core.merge.plan import Block, Cut, Delta, Scratch
from yeto_syncer.core.merge.reduction import directions, radial_mean, shares, total_weight
from yeto_syncer.core.merge.spectrum import flatten, hold_blas

T = TypeVar("T")
R = TypeVar("R")

ZERO = np.float32(0.0)
ONE = np.float32(1.0)


class Map(Protocol):
    """The builtin `map`, or the `map` method of a `concurrent.futures.Executor`: results in the order of the items."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]: ...


@dataclass(frozen=True, slots=True)
class Turned:
    """An `Oblique` correction whose blended length is known: blend in f64, round to f32, multiply by `stretch`."""

    own: float
    pull: float
    stretch: np.float32


Settled: TypeAlias = Opposed | Turned | None
# Per tensor and answer. A tensor that is None is left as it is; an answer that is None adds nothing.
Coefficients: TypeAlias = Sequence[Sequence[np.float32 | None] | None]


def run(job: MergeJob, map: Map = map) -> MergeResult | None:
    """Corrects, merges and applies the answers of one round: what the formulas of this package give, bit for bit.

    Per tensor: gradient_m = -delta_m; `heloco` against the old momentum when `job.correction`; `avg`, `rda`, or `avg` and
    `iso`, by the fragment's merge mode; then `nesterov`. Answers are taken in ascending (id, generation). When no answer has
    a weight the merged delta is zero, and the step still happens (D12).

    Returns new read-only arrays, and the norm of the merged delta: f64, block sums of all tensors added in order. Returns
    None, having written nothing that anyone sees, when any new value is not finite (D33). Raises BadArgument when a length
    does not fit.

    `map` spreads independent tasks over threads: numpy lets go of the interpreter inside each operation. The calling thread
    only waits, so it must not be one of the threads that serve `map`. Bits do not depend on `map`.

    Memory: the two result arrays, and 2.6 MiB for each thread. Rules that need a norm before they can add (RDA, HeLoCo)
    decode and correct each block again in every pass, which is cheaper than to keep decoded gradients, and use the new
    momentum array as the accumulator until the last pass turns it into momentum. iso needs its matrix in f64 besides.
    """
    check(job)
    return Merge(job, map).result()


def check(job: MergeJob) -> None:
    """Raises BadArgument unless every array has the length that the layout gives it."""
    numel = int(job.tensors.numels.sum())
    if job.params.shape != (numel,) or job.momentum.shape != (numel,):
        raise BadArgument(
            detail=f"fragment {job.fragment_id} has {numel} values, its params and momentum {job.params.shape} and {job.momentum.shape}"
        )
    for answer in job.answers:
        seen, expected = memoryview(answer.delta).nbytes, push_bytes(answer.dtype, numel)
        if seen != expected:
            raise BadArgument(detail=f"the push of {answer.link} has {seen} bytes, not {expected}")


class Merge:
    """One merge: the passes over the fragment and what is known between them."""

    def __init__(self, job: MergeJob, map: Map) -> None:
        self.job = job
        self.map = map
        self.cut = Cut(job.tensors.numels)
        self.old_params, self.old_momentum = job.params, job.momentum
        self.rate, self.decay = np.float32(job.lr), np.float32(job.mu)
        answers = sorted(job.answers, key=lambda answer: answer.link)
        self.total = total_weight([answer.weight for answer in answers])
        # An answer without weight has the coefficient 0 in every rule: leaving it out gives the same bits.
        answers = [answer for answer in answers if answer.weight > 0.0]
        self.weights = [answer.weight for answer in answers]
        self.deltas = [Delta(answer, job.params.size) for answer in answers]
        self.corrections: list[list[Settled]] | None = None
        self.params: F32 = np.empty_like(job.params)
        self.momentum: F32 = np.empty_like(job.momentum)
        self.spare: list[Scratch] = []

    def result(self) -> MergeResult | None:
        mode = self.job.tensors.mode
        if mode == MergeMode.RDA and self.deltas:
            squares = self.rda()
        else:
            if self.job.correction and self.deltas:
                self.correct(self.sums(self.products))
            means: Coefficients = [shares(self.weights, self.total)] * self.cut.num_tensors
            if mode == MergeMode.ISO and self.deltas:
                self.passes(lambda block, scratch: self.accumulate(block, means, scratch))
                self.flatten()
                squares = self.passes(lambda block, scratch: self.finish(block, ONE, scratch))
            else:
                squares = self.passes(lambda block, scratch: self.average(block, means, scratch))
        total = 0.0
        for (square,) in squares.tolist():
            total += square
        if not math.isfinite(total):
            return None
        self.params.flags.writeable = False
        self.momentum.flags.writeable = False
        return MergeResult(self.params, self.momentum, math.sqrt(total))

    def rda(self) -> F64:
        """The passes of RDA: lengths, directions, and the rescaled step."""
        products = self.sums(self.products)
        squares = products[:, : len(self.deltas)]
        if self.job.correction and self.correct(products):
            corrected = self.sums(self.corrected_squares)
            squares = np.where(np.isnan(corrected), squares, corrected)
        norms = np.sqrt(squares).tolist()
        coefficients: Coefficients = [directions(one, self.weights, self.total) for one in norms]
        lengths = np.sqrt(self.sums(lambda block, scratch: self.accumulate(block, coefficients, scratch)))[:, 0].tolist()
        lost = [length < RDA_MIN_DIRECTION for length in lengths]
        if any(lost):  # no direction: these tensors get the plain mean
            means = shares(self.weights, self.total)
            again: Coefficients = [means if one else None for one in lost]
            self.passes(lambda block, scratch: self.accumulate(block, again, scratch))
        scales = [
            ONE if gone else np.float32(radial_mean(one, self.weights, self.total) / length)
            for one, length, gone in zip(norms, lengths, lost, strict=True)
        ]
        return self.passes(lambda block, scratch: self.finish(block, scales[block.tensor], scratch))

    def correct(self, squares: F64) -> bool:
        """Settles what HeLoCo does to each tensor of each answer, from the sums of `products`; False if to none."""
        count = len(self.deltas)
        judged = []
        for row in squares.tolist():
            lengths = [math.sqrt(one) for one in row[:count]]
            momentum = math.sqrt(row[-1])
            # The gradient is the negated delta, so its product with the momentum is the negated one.
            judged.append([judge(length, momentum, -dot) for length, dot in zip(lengths, row[count:-1], strict=True)])
        oblique = [[one if isinstance(one, Oblique) else None for one in row] for row in judged]
        blended: list[list[float]] = []
        if any(one is not None for row in oblique for one in row):
            blended = np.sqrt(self.sums(lambda block, scratch: self.blended_squares(block, oblique, scratch))).tolist()
        self.corrections = [
            [
                Turned(one.own, one.pull, one.stretch(blended[tensor][m])) if isinstance(one, Oblique) else one
                for m, one in enumerate(row)
            ]
            for tensor, row in enumerate(judged)
        ]
        return any(one is not None for row in judged for one in row)

    def flatten(self) -> None:
        """iso of every tensor whose shape fits, inside the accumulator; each matrix is one task."""
        hold_blas()
        shapes = self.job.tensors.shapes
        ends = np.cumsum(self.job.tensors.numels.astype(np.int64)).tolist()

        def one(tensor: int) -> None:
            rows, cols = (int(size) for size in shapes[tensor])
            values = self.momentum[ends[tensor - 1] if tensor else 0 : ends[tensor]]
            if rows * cols == values.size:
                values[:] = flatten(values.reshape(rows, cols)).reshape(-1)

        if shapes is not None:
            list(self.map(quiet(one), range(len(ends))))

    # Passes: each does one block and returns its numbers; `passes` gives one row a block, `sums` one row a tensor.

    def passes(self, work: Callable[[Block, Scratch], Sequence[float]]) -> F64:
        def task(part: range) -> list[Sequence[float]]:
            try:
                scratch = self.spare.pop()  # atomic, as is append: at most one for each thread is ever made
            except IndexError:
                scratch = Scratch()
            rows = [work(block, scratch) for block in self.cut.blocks(part)]
            self.spare.append(scratch)
            return rows

        return np.array([row for rows in self.map(quiet(task), self.cut.tasks) for row in rows], np.float64)

    def sums(self, work: Callable[[Block, Scratch], Sequence[float]]) -> F64:
        return self.cut.per_tensor(self.passes(work))

    def products(self, block: Block, scratch: Scratch) -> Sequence[float]:
        """d_m.d_m of every answer; with the correction also d_m.b of every answer, and b.b."""
        left, product = scratch.left[: block.size], scratch.product[: block.size]
        squares, dots = [], []
        if self.job.correction:
            momentum = scratch.exact_momentum(self.old_momentum, block)
        for delta in self.deltas:
            np.copyto(left, delta.block(block, scratch.wire))
            if self.job.correction:
                dots.append(product_sum(left, momentum, product))
            squares.append(product_sum(left, left, left))
        if self.job.correction:
            return [*squares, *dots, product_sum(momentum, momentum, product)]
        return squares

    def blended_squares(
        self, block: Block, oblique: Sequence[Sequence[Oblique | None]], scratch: Scratch
    ) -> Sequence[float]:
        """x.x of the f64 blends, for the answers that get one."""
        squares = []
        for delta, what in zip(self.deltas, oblique[block.tensor], strict=True):
            if what is None:
                squares.append(0.0)
            else:
                blended = self.blend(delta, what.own, what.pull, block, scratch)
                squares.append(product_sum(blended, blended, blended))
        return squares

    def corrected_squares(self, block: Block, scratch: Scratch) -> Sequence[float]:
        """d'_m.d'_m of every answer that is corrected, NaN for the others."""
        assert self.corrections is not None
        return [
            math.nan if what is None else scratch.squares(self.corrected(m, block, scratch))
            for m, what in enumerate(self.corrections[block.tensor])
        ]

    def blend(self, delta: Delta, own: float, pull: float, block: Block, scratch: Scratch) -> F64:
        left, product = scratch.left[: block.size], scratch.product[: block.size]
        np.copyto(left, delta.block(block, scratch.wire))
        return blend(left, scratch.exact_momentum(self.old_momentum, block), own, -pull, product, left)

    def corrected(self, m: int, block: Block, scratch: Scratch) -> F32:
        """The (negated) corrected gradient d'_m, valid until the next call."""
        what = self.corrections[block.tensor][m] if self.corrections is not None else None
        delta = self.deltas[m]
        if what is None:
            return delta.block(block, scratch.wire)
        out = scratch.corrected[: block.size]
        if isinstance(what, Opposed):
            values = delta.block(block, scratch.wire)
            return oppose(values, self.old_momentum[block.start : block.stop], -what.pull, out)
        np.copyto(out, self.blend(delta, what.own, what.pull, block, scratch), casting="same_kind")
        return np.multiply(out, what.stretch, out=out)

    def add_up(self, block: Block, coefficients: Sequence[np.float32 | None], total: F32, scratch: Scratch) -> None:
        """total = sum over m of coefficient_m * -d'_m, in f32 from zeros."""
        term = scratch.term[: block.size]
        fresh = True
        for m, coefficient in enumerate(coefficients):
            if coefficient is None:
                continue
            values = self.corrected(m, block, scratch)
            if fresh:  # 0 + x is x, except that it makes +0 of -0
                np.multiply(values, -coefficient, out=total)
                np.add(total, ZERO, out=total)
                fresh = False
            else:
                np.multiply(values, -coefficient, out=term)
                np.add(total, term, out=total)
        if fresh:
            total.fill(ZERO)

    def accumulate(self, block: Block, coefficients: Coefficients, scratch: Scratch) -> Sequence[float]:
        """The merged gradient (or RDA's direction) into the accumulator; its square."""
        chosen = coefficients[block.tensor]
        if chosen is None:
            return [0.0]
        total = self.momentum[block.start : block.stop]
        self.add_up(block, chosen, total, scratch)
        return [scratch.squares(total)]

    def finish(self, block: Block, scale: np.float32, scratch: Scratch) -> Sequence[float]:
        """Takes the block out of the accumulator, rescales it and steps."""
        delta = np.multiply(self.momentum[block.start : block.stop], scale, out=scratch.total[: block.size])
        return self.step(block, delta, scratch)

    def average(self, block: Block, coefficients: Coefficients, scratch: Scratch) -> Sequence[float]:
        """avg and step in one go: each value is read once and written once."""
        delta = scratch.total[: block.size]
        chosen = coefficients[block.tensor]
        self.add_up(block, chosen if chosen is not None else (), delta, scratch)
        return self.step(block, delta, scratch)

    def step(self, block: Block, delta: F32, scratch: Scratch) -> Sequence[float]:
        """The outer step; the square of delta, or NaN when a new value is not finite.

        Only the new parameters are looked at: inf or NaN in delta or in the new momentum reaches them in any case, since
        p - lr (delta + mu b) has no way back from inf or NaN to a number, whatever lr and mu are (0 inf is NaN).
        """
        here = slice(block.start, block.stop)
        params, momentum = self.params[here], self.momentum[here]
        old = self.old_params[here], self.old_momentum[here]
        step(*old, delta, self.rate, self.decay, (params, momentum), scratch.term[: block.size])
        return [scratch.squares(delta) if scratch.all_finite(params) else math.nan]


def quiet(work: Callable[[T], R]) -> Callable[[T], R]:
    """`work` without numpy's warnings: an overflow is looked for in the result instead."""

    def run(item: T) -> R:
        with np.errstate(all="ignore"):
            return work(item)

    return run
