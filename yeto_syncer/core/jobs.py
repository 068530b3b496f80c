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


@dataclass(frozen=True, slots=True)
class MergeTensors:
    """How one fragment splits into tensors, in HELLO layout order (one per fragment, shared by its jobs).

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


@dataclass(frozen=True, slots=True)
class MergeJob:
    """One outer step of one fragment: everything `core.merge.run` may read.

    `params` and `momentum` are read-only f32 arrays of the fragment's length; a job never writes to them.
    `answers` is never empty and sorted by (learner id, generation). `lr` and `mu` are the f32 outer learning
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


@dataclass(frozen=True, slots=True)
class MergeResult:
    """New arrays that replace the old ones, and the f64 L2 norm of the merged delta (corrected, before the
    outer step). All values are finite; a merge that is not gives no result at all (D33)."""

    params: F32
    momentum: F32
    gnorm: float
