"""The demo's training step in torch: the same model and AdamW on the same memory as the numpy parameters."""

from __future__ import annotations

import torch
from torch.nn import functional

from yeto_learner.demo.model import Parameters
from yeto_learner.demo.optimizer import BETAS, DECAY, EPSILON
from yeto_learner.demo.settings import Settings
from yeto_learner.demo.trainer import Batches


class TorchTrainer:
    """Trains in the memory of the arrays, so that what the learner installs there takes part at once."""

    def __init__(self, settings: Settings, parameters: Parameters, batches: Batches) -> None:
        torch.set_num_threads(1)  # three learners and a syncer share the machine
        self._layers = settings.model.layers
        self._batches = batches
        self._tensors = {name: torch.from_numpy(value).requires_grad_() for name, value in parameters.items()}
        matrices = [tensor for tensor in self._tensors.values() if tensor.ndim > 1]
        vectors = [tensor for tensor in self._tensors.values() if tensor.ndim == 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
            lr=settings.rate,
            betas=BETAS,
            eps=EPSILON,
        )

    def step(self) -> float:
        contexts, targets = (torch.from_numpy(part).long() for part in self._batches.next())
        loss = functional.cross_entropy(self._logits(contexts), targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def _logits(self, contexts: torch.Tensor) -> torch.Tensor:
        tensors = self._tensors
        state = functional.embedding(contexts, tensors["embed.weight"]).flatten(1)
        for layer in range(self._layers):
            linear = state @ tensors[f"layers.{layer}.mlp.weight"] + tensors[f"layers.{layer}.mlp.bias"]
            active = functional.gelu(linear, approximate="tanh")
            state = state + active if layer else active
        return state @ tensors["lm_head.weight"]
