"""The merge engine: pure functions of arrays, no clock, no thread, no file.

`weight`, `avg`, `rda`, `iso`, `heloco` and `nesterov` are the formulas, each over ONE tensor as a 1-D or 2-D
float32 array (outer gradients: anchor - local, that is *after* the one negation). `run` merges a whole
fragment straight from the wire bytes of its pushes, block by block, and gives the same bits as these formulas
would. `fold` takes the answers of a round one by one instead, and `run` then closes it.

What is exact (D30): weights, norms, dot products and the iso spectrum are f64; element work is f32 with one
rounding per operation (never a fused multiply-add); sums of products run over blocks of 65,536 elements from
the tensor's start; learners are reduced in ascending (id, generation). So no result depends on threads or on
how the work was cut.
"""

from __future__ import annotations

from yeto_syncer.core.merge.correction import heloco
from yeto_syncer.core.merge.folding import fold
from yeto_syncer.core.merge.fragment import Flatten, flatten_each, run
from yeto_syncer.core.merge.outer import nesterov
from yeto_syncer.core.merge.passes import Map
from yeto_syncer.core.merge.plan import Empty
from yeto_syncer.core.merge.reduction import avg, rda, weight
from yeto_syncer.core.merge.spectrum import iso

__all__ = [
    "Empty",
    "Flatten",
    "Map",
    "avg",
    "flatten_each",
    "fold",
    "heloco",
    "iso",
    "nesterov",
    "rda",
    "run",
    "weight",
]
