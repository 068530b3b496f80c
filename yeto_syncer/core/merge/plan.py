"""How a fragment merge is cut into strips and tasks, and the memory that one task works in.

A strip is at most STRIP elements of one tensor, beginning where a reduction block begins: what one numpy call
works on. It is short enough to stay in cache from one call to the next, and long enough that two threads
seldom want the interpreter at the same moment: each call lets it go and must get it back, and calls on 65,536
elements gain almost nothing from a second thread. A task is a run of strips of about TASK elements: what one
thread does in one go. The cut depends on the layout alone, so it cannot make bits depend on threads.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from yeto_proto._generated.constants import Q4_BLOCK, REDUCTION_BLOCK
from yeto_syncer.core.jobs import MergeTensors
from yeto_syncer.core.merge.arrays import F32, F64, sums_of_blocks

# Numbers of one strip: columns with one number for each of its reduction blocks.
Columns: TypeAlias = Sequence[list[float]]

# Gives an f32 array of so many values, whatever they are.
Empty: TypeAlias = Callable[[int], F32]

STRIP = 4 * REDUCTION_BLOCK
TASK = 16 * REDUCTION_BLOCK


def empty_array(numel: int) -> F32:
    """An array of its own."""
    return np.empty(numel, np.float32)


@dataclass(frozen=True, slots=True)
class Strip:
    """Elements start..stop of the fragment; all of them belong to one tensor."""

    tensor: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def blocks(self) -> int:
        """How many reduction blocks it covers; the last may be short."""
        return -(-self.size // REDUCTION_BLOCK)


class Cut:
    """The strips of a fragment, and its tasks as ranges of strip numbers."""

    def __init__(self, numels: NDArray[np.uint64]) -> None:
        sizes = numels.astype(np.int64)
        self.edges = np.concatenate(([0], np.cumsum(sizes)))
        counts = -(-sizes // STRIP)
        self.tensors = np.repeat(np.arange(sizes.size), counts)
        within = np.arange(self.tensors.size) - np.repeat(np.cumsum(counts) - counts, counts)
        self.starts = self.edges[self.tensors] + within * STRIP
        self.stops = np.minimum(self.starts + STRIP, self.edges[self.tensors + 1])
        self.longest = min(STRIP, int(sizes.max()))
        bounds = np.flatnonzero(np.diff(self.starts // TASK)) + 1
        self.tasks = [range(a, b) for a, b in itertools.pairwise([0, *bounds.tolist(), self.tensors.size])]
        self.num_tensors = sizes.size
        self.tensor_of_block = np.repeat(np.arange(sizes.size), -(-sizes // REDUCTION_BLOCK))

    def strips(self, task: range) -> Iterator[Strip]:
        part = slice(task.start, task.stop)
        columns = (self.tensors[part].tolist(), self.starts[part].tolist(), self.stops[part].tolist())
        for tensor, start, stop in zip(*columns, strict=True):
            yield Strip(tensor, start, stop)

    def per_tensor(self, block_sums: F64) -> F64:
        """From (blocks, k) sums to (tensors, k) sums, block sums added in order from 0.0."""
        totals = np.empty((self.num_tensors, block_sums.shape[1]))
        for column, sums in enumerate(block_sums.T):  # bincount adds its weights one after the other
            totals[:, column] = np.bincount(self.tensor_of_block, weights=sums, minlength=self.num_tensors)
        return totals


_CUTS: weakref.WeakKeyDictionary[MergeTensors, Cut] = weakref.WeakKeyDictionary()


def cut(tensors: MergeTensors) -> Cut:
    """The cut of a fragment; made by its first round, since a tiny one takes longer to cut than to merge."""
    known = _CUTS.get(tensors)
    if known is None:
        known = _CUTS[tensors] = Cut(tensors.numels)
    return known


class Scratch:
    """Arrays as long as the longest strip, for one running task; handed on from task to task in a merge.

    They are parts of one block of memory, so that `empty` can give the same block to the next merge.
    """

    def __init__(self, longest: int, empty: Empty = empty_array) -> None:
        size = longest + 2 * Q4_BLOCK  # a q4 block of 256 codes may straddle both ends of a strip
        rows = empty(10 * size).reshape(10, size)
        doubles: F64 = rows[:6].reshape(3, 2 * size).view(np.float64)[:, :longest]
        self.left: F64 = doubles[0]
        self.product: F64 = doubles[1]
        self.momentum: F64 = doubles[2]
        self.wire: F32 = rows[6]
        self.total: F32 = rows[7, :longest]
        self.term: F32 = rows[8, :longest]
        self.corrected: F32 = rows[9, :longest]
        self.finite = self.term.view(np.bool_)  # looked for when no term is needed any more
        self.momentum_of = -1

    def exact_momentum(self, momentum: F32, strip: Strip) -> F64:
        """The fragment's old momentum in f64; converted once for all answers that need it in this strip."""
        exact = self.momentum[: strip.size]
        if self.momentum_of != strip.start:
            np.copyto(exact, momentum[strip.start : strip.stop])
            self.momentum_of = strip.start
        return exact

    def squares(self, values: F32) -> list[float]:
        """sum(values^2) of each reduction block, in f64."""
        squares = self.left[: values.size]
        np.square(values, out=squares, dtype=np.float64)
        return sums_of_blocks(squares)

    def all_finite(self, values: F32) -> bool:
        return bool(np.isfinite(values, out=self.finite[: values.size]).all())
