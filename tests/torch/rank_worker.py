"""One rank of a learner under test: `rank_worker.py KIND ADDRESS OUTPUT`, alone or under torchrun.

Its training is the same however many steps it takes, so that every kind of module must send the same bytes.
KIND: plain, ddp, fsdp2.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from yeto_learner.torch import TorchLearner

WAIT = 600.0


def build(kind: str) -> nn.Module:
    """Three layers of odd sizes, one of them bf16, one frozen."""
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3).to(torch.bfloat16), nn.Linear(3, 4))
    module[2].requires_grad_(False)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(module)
    if kind == "fsdp2":
        for layer in module:
            fully_shard(layer)
        fully_shard(module)
    return module


def train(module: nn.Module, start: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(start[name] * 1.25 + 0.125)


def full(tensor: torch.Tensor) -> np.ndarray:
    whole = tensor.detach()
    whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
    return whole.to(torch.float32).numpy()


def main(kind: str, address: str, output: str) -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", "0"))
    module = build(kind)
    start = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    learner = TorchLearner(
        module,
        address,
        num_fragments=2,
        dtype="f32",
        num_streams=1,
        session_contract="test",
        connect_timeout_s=WAIT,
        initial_cut_timeout_s=WAIT,
        finalization_timeout_s=WAIT,
    )
    with learner:
        while not learner.done:
            if learner.global_step == 0:
                train(module, start)
            learner.step(tokens=rank + 1)
        learner.finish()
    status = learner.done, learner.global_step, learner.local_step
    values = {name.removeprefix("module."): full(tensor) for name, tensor in module.named_parameters()}
    np.savez(Path(output) / f"rank{rank}.npz", status=np.array(status), **values)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
