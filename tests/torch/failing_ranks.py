"""Two ranks that fail in one way after the other: `failing_ranks.py ADDRESS`, under torchrun."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from yeto_learner.torch import TorchLearner
from yeto_proto import YetoError

dist.init_process_group("gloo")
rank = dist.get_rank()


def tell(what: str, action: Callable[[], object]) -> None:
    """Each rank says what it got, in the order of ranks."""
    try:
        action()
        said = "nothing"
    except (ValueError, RuntimeError, TimeoutError, YetoError) as error:
        said = f"{type(error).__name__}: {error}"
    told: list[object] = [None, None]
    dist.all_gather_object(told, said)
    if rank == 0:
        for number, each in enumerate(told):
            print(f"{what} | rank {number} | {each}", flush=True)


def make(module: nn.Module, **options: object) -> TorchLearner:
    arguments = {"num_fragments": 2, "num_streams": 0, "session_contract": "test", "dtype": "f32", **options}
    return TorchLearner(module, sys.argv[1], **arguments)  # type: ignore[arg-type]


tell("other models", lambda: make(nn.Linear(3, 2 + rank)))
tell("bad option", lambda: make(nn.Linear(3, 2), num_fragments=1.5))
module = nn.Linear(3, 2)
learner = make(module)
learner.open()
if rank == 1:
    kept, module.weight = module.weight, nn.Parameter(torch.zeros(2, 3))
tell("replaced", lambda: learner.step(1))
if rank == 1:
    module.weight = kept
tell("well again", lambda: learner.step(1))
tell("no final cut", lambda: learner.finish(0.2))
tell("no connection", lambda: learner.versions)
learner.close()
dist.destroy_process_group()
