"""The answers of one round as a source of corrected gradients, strip by strip, straight from wire bytes.

All values here are *deltas* (local - anchor), the negated gradients: the one negation sits in the sign of the
coefficients that they are multiplied with. That saves a pass over every push and gives the same bits, since
rounding to nearest is symmetric: (-c) x = c (-x), s + (-c) x = s - c x, and a sum of negated products is the
negated sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from yeto_proto import dtypes
from yeto_proto._generated.constants import Q4_BLOCK
from yeto_proto._generated.types import Dtype
from yeto_syncer.core.jobs import Answer
from yeto_syncer.core.merge.arrays import F32, F64, Coefficient, product_sums
from yeto_syncer.core.merge.correction import Oblique, Opposed, blend, judge, oppose
from yeto_syncer.core.merge.plan import Columns, Scratch, Strip

ZERO = np.float32(0.0)


@dataclass(frozen=True, slots=True)
class Turned:
    """An `Oblique` correction: blend, round to f32, multiply by `stretch` once the blend has been measured.

    `kept`, if there is one, is an array of the fragment's length that holds the rounded blend from then on.
    """

    blend: Oblique
    kept: F32 | None
    stretch: np.float32


Settled: TypeAlias = Opposed | Turned | None


class Delta:
    """One answer's pushed delta, read as f32 a strip at a time."""

    def __init__(self, answer: Answer, numel: int) -> None:
        self.dtype = answer.dtype
        self.bytes = answer.delta
        self.numel = numel
        self.values: F32 | None = None
        if answer.dtype == Dtype.F32:
            values = np.frombuffer(answer.delta, dtype="<f4")
            # Otherwise each operation would convert on its own, in small pieces.
            if values.flags.aligned and values.dtype.isnative:
                self.values = values

    def strip(self, strip: Strip, scratch: Scratch) -> F32:
        """The values of one strip: a view of the wire bytes (f32), or decoded into `scratch.wire`."""
        if self.values is not None:
            return self.values[strip.start : strip.stop]
        start, stop = strip.start, strip.stop
        if self.dtype == Dtype.Q4:  # its blocks count from the fragment's start, strips from the tensor's
            start -= start % Q4_BLOCK
            stop = min(self.numel, -(-stop // Q4_BLOCK) * Q4_BLOCK)
        out = scratch.wire[: stop - start]
        dtypes.decode_range(self.dtype, self.bytes, self.numel, start, stop, out)
        return out[strip.start - start : strip.stop - start]


class Gradients:
    """The answers in reduction order, and what HeLoCo does to each of them in each tensor.

    `spare` are arrays of the fragment's length that nobody needs until the merged gradient is stored: the
    rounded blends of that many answers are kept there, so that later passes need not blend again.
    """

    def __init__(self, answers: Sequence[Answer], momentum: F32, spare: Sequence[F32]) -> None:
        self.deltas = [Delta(answer, momentum.size) for answer in answers]
        self.momentum = momentum
        self.spare = spare
        self.corrections: list[list[Settled]] = []

    def squares(self, strip: Strip, scratch: Scratch) -> Columns:
        """d_m.d_m of every answer."""
        return [scratch.squares(delta.strip(strip, scratch)) for delta in self.deltas]

    def products(self, strip: Strip, scratch: Scratch) -> Columns:
        """d_m.d_m of every answer, then d_m.b of every answer, then b.b, where b is the momentum."""
        left, product = scratch.left[: strip.size], scratch.product[: strip.size]
        momentum = scratch.exact_momentum(self.momentum, strip)
        squares, dots = [], []
        for delta in self.deltas:
            np.copyto(left, delta.strip(strip, scratch))
            dots.append(product_sums(left, momentum, product))
            squares.append(product_sums(left, left, left))
        return [*squares, *dots, product_sums(momentum, momentum, product)]

    def judge(self, products: F64) -> None:
        """Decides on the corrections from the `products` of whole tensors; turns still lack their stretch."""
        count = len(self.deltas)
        self.corrections = []
        for row in products.tolist():
            spare = iter(self.spare)
            momentum = math.sqrt(row[-1])
            settled: list[Settled] = []
            for square, dot in zip(row[:count], row[count:-1], strict=True):
                what = judge(math.sqrt(square), momentum, -dot)
                kept = next(spare, None) if isinstance(what, Oblique) else None
                settled.append(Turned(what, kept, ZERO) if isinstance(what, Oblique) else what)
            self.corrections.append(settled)

    def any(self, *kinds: type[Opposed] | type[Turned]) -> bool:
        """Is a correction of one of these kinds made anywhere?"""
        return any(isinstance(what, kinds) for row in self.corrections for what in row)

    def measure(self, strip: Strip, scratch: Scratch) -> Columns:
        """x.x of every blend in f64 and d'.d' of every opposed gradient, NaN for the others; keeps blends."""
        squares = []
        for m, what in enumerate(self.corrections[strip.tensor]):
            if isinstance(what, Turned):
                blended = self._blend(m, what.blend, strip, scratch)
                if what.kept is not None:
                    np.copyto(what.kept[strip.start : strip.stop], blended, casting="same_kind")
                squares.append(product_sums(blended, blended, blended))
            elif what is not None:
                squares.append(scratch.squares(self.corrected(m, strip, scratch)))
            else:
                squares.append([math.nan] * strip.blocks)
        return squares

    def stretch(self, measured: F64) -> None:
        """Completes the corrections that turn, from what `measure` gave for whole tensors."""
        for row, squares in zip(self.corrections, measured.tolist(), strict=True):
            for m, what in enumerate(row):
                if isinstance(what, Turned):
                    factor = what.blend.stretch(math.sqrt(squares[m]))
                    row[m] = dataclasses.replace(what, stretch=factor)

    def turned_squares(self, strip: Strip, scratch: Scratch) -> Columns:
        """d'.d' of every turned gradient, NaN for the others."""
        return [
            scratch.squares(self.corrected(m, strip, scratch))
            if isinstance(what, Turned)
            else [math.nan] * strip.blocks
            for m, what in enumerate(self.corrections[strip.tensor])
        ]

    def forget(self) -> None:
        """The spare arrays have been written over: from here on blends are made anew."""
        for row in self.corrections:
            for m, what in enumerate(row):
                if isinstance(what, Turned):
                    row[m] = dataclasses.replace(what, kept=None)

    def corrected(self, m: int, strip: Strip, scratch: Scratch) -> F32:
        """The corrected d'_m, valid until the next call with this scratch."""
        what = self.corrections[strip.tensor][m] if self.corrections else None
        out = scratch.corrected[: strip.size]
        if isinstance(what, Turned):
            if what.kept is not None:
                return np.multiply(what.kept[strip.start : strip.stop], what.stretch, out=out)
            np.copyto(out, self._blend(m, what.blend, strip, scratch), casting="same_kind")
            return np.multiply(out, what.stretch, out=out)
        values = self.deltas[m].strip(strip, scratch)
        if what is None:
            return values
        return oppose(values, self.momentum[strip.start : strip.stop], -what.pull, out)

    def _blend(self, m: int, what: Oblique, strip: Strip, scratch: Scratch) -> F64:
        left, product = scratch.left[: strip.size], scratch.product[: strip.size]
        np.copyto(left, self.deltas[m].strip(strip, scratch))
        momentum = scratch.exact_momentum(self.momentum, strip)
        return blend(left, momentum, what.own, -what.pull, product, left)

    def add_up(self, coefficients: Sequence[Coefficient], strip: Strip, scratch: Scratch) -> F32:
        """sum over m of coefficient_m times the gradient -d'_m, in f32 from zeros, in `scratch.total`.

        A coefficient that is None adds nothing. With one in f64 the products are formed in f64 and rounded.
        """
        total, term = scratch.total[: strip.size], scratch.term[: strip.size]
        fresh = True
        for m, coefficient in enumerate(coefficients):
            if coefficient is None:
                continue
            values = self.corrected(m, strip, scratch)
            if fresh:  # 0 + x is x, except that it makes +0 of -0
                np.multiply(values, -coefficient, out=total)
                np.add(total, ZERO, out=total)
                fresh = False
            else:
                np.multiply(values, -coefficient, out=term)
                np.add(total, term, out=total)
        if fresh:
            total.fill(ZERO)
        return total
