"""Walks over a fragment, spread over threads, and what the gradients of its answers need of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import numpy as np

from yeto_syncer.core.merge.arrays import F64
from yeto_syncer.core.merge.correction import Opposed
from yeto_syncer.core.merge.gradients import Gradients, Turned
from yeto_syncer.core.merge.plan import Columns, Cut, Empty, Scratch, Strip

T = TypeVar("T")
R = TypeVar("R")


class Map(Protocol):
    """The builtin `map`, or that of a `concurrent.futures.Executor`: results in the order of the items."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]: ...


class Passes:
    """A pass does one strip after the other and returns columns of numbers, one number a reduction block.

    `passes` puts them under each other in block order, and `sums` adds up the blocks of each tensor. Bits do
    not depend on `map`.
    """

    def __init__(self, cut: Cut, gradients: Gradients, map: Map, empty: Empty) -> None:
        self.cut = cut
        self.gradients = gradients
        self.map = map
        self.empty = empty
        self.scratches: list[Scratch] = []

    def passes(self, work: Callable[[Strip, Scratch], Columns]) -> F64:
        def task(part: range) -> list[tuple[float, ...]]:
            try:
                # Atomic, as is append: at most one for each thread is ever made.
                scratch = self.scratches.pop()
            except IndexError:
                scratch = Scratch(self.cut.longest, self.empty)
            rows: list[tuple[float, ...]] = []
            for strip in self.cut.strips(part):
                rows.extend(zip(*work(strip, scratch), strict=True))
            self.scratches.append(scratch)
            return rows

        return np.array([row for rows in self.map(quiet(task), self.cut.tasks) for row in rows], np.float64)

    def sums(self, work: Callable[[Strip, Scratch], Columns]) -> F64:
        return self.cut.per_tensor(self.passes(work))

    def correct(self, lengths: bool) -> F64:
        """Settles all corrections. Gives the squared lengths (tensors, answers) of the corrected gradients.

        Without `lengths` it spares the passes that only they need, and gives those before the correction.
        """
        gradients = self.gradients
        products = self.sums(gradients.products)
        squares = products[:, : len(gradients.deltas)]
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


def quiet(work: Callable[[T], R]) -> Callable[[T], R]:
    """`work` without numpy's warnings: an overflow is looked for in the result instead."""

    def run(item: T) -> R:
        with np.errstate(all="ignore"):
            return work(item)

    return run
