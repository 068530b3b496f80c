"""How a fragment merge is cut into blocks and tasks, and the memory that one task works in.

A block is at most REDUCTION_BLOCK elements of one tensor, from the tensor's start: the unit in which products are summed
(D30) and, at 256 KiB of f32, also about the largest piece whose operands stay in cache from one operation to the next.
A task is a run of consecutive blocks of about TASK_ELEMENTS: what one thread does in one go. The cut depends on the layout
alone, so it cannot make bits depend on threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from yeto_proto import dtypes
from yeto_proto._generated.constants import Q4_BLOCK, REDUCTION_BLOCK
from yeto_proto._generated.types import Dtype
from yeto_syncer.core.jobs import Answer
from yeto_syncer.core.merge.arrays import F32, F64

# Long enough that handing it to a thread is noise, short enough that the last one does not keep the other cores waiting.
TASK_ELEMENTS = 16 * REDUCTION_BLOCK


@dataclass(frozen=True, slots=True)
class Block:
    """Elements start..stop of the fragment; all of them belong to one tensor."""

    index: int
    tensor: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class Cut:
    """The blocks of a fragment, and its tasks as ranges of block numbers."""

    def __init__(self, numels: NDArray[np.uint64]) -> None:
        sizes = numels.astype(np.int64)
        ends = np.cumsum(sizes)
        counts = -(-sizes // REDUCTION_BLOCK)
        self.tensors = np.repeat(np.arange(sizes.size), counts)
        within = np.arange(self.tensors.size) - np.repeat(np.cumsum(counts) - counts, counts)
        self.starts = np.repeat(ends - sizes, counts) + within * REDUCTION_BLOCK
        self.stops = np.minimum(self.starts + REDUCTION_BLOCK, ends[self.tensors])
        edges = np.flatnonzero(np.diff(self.starts // TASK_ELEMENTS)) + 1
        bounds = [0, *edges.tolist(), self.tensors.size]
        self.tasks = [range(low, high) for low, high in zip(bounds, bounds[1:], strict=False)]
        self.num_tensors = sizes.size

    def blocks(self, task: range) -> Iterator[Block]:
        part = slice(task.start, task.stop)
        columns = (self.tensors[part].tolist(), self.starts[part].tolist(), self.stops[part].tolist())
        for index, tensor, start, stop in zip(task, *columns, strict=True):
            yield Block(index, tensor, start, stop)

    def per_tensor(self, block_sums: F64) -> F64:
        """(blocks, k) sums of single blocks to (tensors, k) sums of whole tensors, added in block order from 0.0."""
        totals = np.empty((self.num_tensors, block_sums.shape[1]))
        for column, sums in enumerate(block_sums.T):  # bincount adds its weights one after the other
            totals[:, column] = np.bincount(self.tensors, weights=sums, minlength=self.num_tensors)
        return totals


class Scratch:
    """Block-sized arrays of one running task, handed from task to task within one merge."""

    def __init__(self) -> None:
        # A q4 block of 256 codes may straddle both ends of a reduction block.
        self.wire = np.empty(REDUCTION_BLOCK + 2 * Q4_BLOCK, np.float32)
        self.total = np.empty(REDUCTION_BLOCK, np.float32)
        self.term = np.empty(REDUCTION_BLOCK, np.float32)
        self.corrected = np.empty(REDUCTION_BLOCK, np.float32)
        self.finite = np.empty(REDUCTION_BLOCK, np.bool_)
        self.left = np.empty(REDUCTION_BLOCK, np.float64)
        self.product = np.empty(REDUCTION_BLOCK, np.float64)
        self.momentum = np.empty(REDUCTION_BLOCK, np.float64)
        self.momentum_of = -1

    def exact_momentum(self, momentum: F32, block: Block) -> F64:
        """The fragment's old momentum in f64; converted once for all answers that need it in this block."""
        exact = self.momentum[: block.size]
        if self.momentum_of != block.index:
            np.copyto(exact, momentum[block.start : block.stop])
            self.momentum_of = block.index
        return exact

    def squares(self, values: F32) -> float:
        """sum(values^2) of one block in f64."""
        left = self.left[: values.size]
        np.copyto(left, values)
        np.multiply(left, left, out=left)
        return float(np.add.reduce(left))

    def all_finite(self, values: F32) -> bool:
        return bool(np.isfinite(values, out=self.finite[: values.size]).all())


class Delta:
    """One answer's pushed delta (local - anchor), read as f32 a block at a time.

    Its values are *not* negated here: the one negation sits in the sign of the coefficients that the merge multiplies them
    with. That saves a pass over every push and gives the same bits, since rounding to nearest is symmetric:
    (-c) x = c (-x), s + (-c) x = s - c x, and a sum of negated products is the negated sum.
    """

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

    def block(self, block: Block, scratch: F32) -> F32:
        """The values of one block: a view of the wire bytes (f32) or decoded into `scratch`."""
        if self.values is not None:
            return self.values[block.start : block.stop]
        start, stop = block.start, block.stop
        if self.dtype == Dtype.Q4:  # its blocks run from the fragment's start, reduction blocks from the tensor's
            start -= start % Q4_BLOCK
            stop = min(self.numel, -(-stop // Q4_BLOCK) * Q4_BLOCK)
        out = scratch[: stop - start]
        dtypes.decode_range(self.dtype, self.bytes, self.numel, start, stop, out)
        return out[block.start - start : block.stop - start]
