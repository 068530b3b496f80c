"""What a merge needs and what it returns: the only values that cross between coordinator and merge kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from yeto_proto._generated.messages import Buffer
    from yeto_proto._generated.types import Dtype, MergeMode

F32 = NDArray[np.float32]


class Link(NamedTuple):
    """One connection group: a learner and the generation of its connection. Sorts by number, as merges do."""

    learner_id: int
    generation: int

    def __str__(self) -> str:
        return f"learner {self.learner_id} generation {self.generation}"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class MergeTensors:
    """How one fragment splits into tensors, in HELLO layout order (one per fragment, shared by its jobs).
    Known by identity, so that what follows from it need be computed only once.

    `numels` counts the values of each tensor; their sum is the fragment's length. `shapes` is an (n, 2) array
    of (rows, cols) for an iso fragment and None for avg and RDA.
    """

    mode: MergeMode
    numels: NDArray[np.uint64]
    shapes: NDArray[np.uint64] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """One accepted push.

    `delta` holds the wire bytes (local - anchor) in `dtype`, already checked for length and finiteness; the
    merge negates them exactly once while it decodes. `weight` is the f64 weight that will be used: finite,
    >= 0, and 0 for a push that saw no tokens.
    """

    link: Link
    weight: float
    dtype: Dtype
    delta: Buffer


class Accumulator:
    """What the answers of one attempt have come to so far under `--fold on-arrival` (D35).

    The one value here that is written to: the attempt owns it, its folds change it one after the other, and
    the merge that closes the round uses it up. Memory: 4 bytes a value, committed by the first fold.

    `values` is the f32 sum of the whole fragment; the first fold puts an array of its own there. Of the
    answers that weigh something, `first_weight` is w1 of the first, and `total` is W, the sum of w / w1.
    `first_norms` and `radii` hold n1 and R of each tensor; RDA alone uses them. n1 is the first length that
    is not 0, so that a tensor that stood still in the first answer does not silence the later ones; 2^-64
    where that is longer.
    """

    __slots__ = ("first_norms", "first_weight", "radii", "total", "values")

    def __init__(self, tensors: MergeTensors) -> None:
        self.values: F32 = np.zeros(int(tensors.numels.sum()), np.float32)
        self.first_weight = 0.0
        self.total = 0.0
        self.first_norms: NDArray[np.float64] = np.zeros(tensors.numels.size)
        self.radii: NDArray[np.float64] = np.zeros(tensors.numels.size)


@dataclass(frozen=True, slots=True)
class FoldJob:
    """One answer that goes into the sums of its attempt: everything `core.merge.fold` may read.

    `momentum` is the fragment's read-only momentum, which no commit can change before the round closes;
    `correction` turns HeLoCo on. The job writes to `into` and to nothing else.
    """

    step: int
    attempt: int
    fragment_id: int
    momentum: F32
    tensors: MergeTensors
    answer: Answer
    correction: bool
    into: Accumulator


@dataclass(frozen=True, slots=True)
class MergeJob:
    """One outer step of one fragment: everything `core.merge.run` may read.

    `params` and `momentum` are read-only f32 arrays of the fragment's length; a job never writes to them.
    `answers` is sorted by (learner id, generation). It is empty exactly when the answers were folded on
    arrival: then `folded` holds their sums, which the merge uses up. `lr` and `mu` are the f32 outer learning
    rate and momentum; `correction` turns HeLoCo on.
    """

    step: int
    attempt: int
    fragment_id: int
    params: F32
    momentum: F32
    tensors: MergeTensors
    answers: tuple[Answer, ...]
    lr: float
    mu: float
    correction: bool
    folded: Accumulator | None = None


@dataclass(frozen=True, slots=True)
class MergeResult:
    """New arrays that replace the old ones, and the f64 L2 norm of the merged delta (corrected, before the
    outer step). All values are finite; a merge that is not gives no result at all (D33)."""

    params: F32
    momentum: F32
    gnorm: float
