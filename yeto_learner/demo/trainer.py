"""One local training step, in numpy or in torch, on parameters that the caller owns."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from yeto_learner.demo.model import ByteModel, Parameters
from yeto_learner.demo.optimizer import AdamW
from yeto_learner.demo.settings import Settings
from yeto_learner.demo.text import Bytes


class Trainer(Protocol):
    """Trains parameters that the caller owns, one step at a time."""

    def step(self) -> float:
        """Makes one step, updates the parameters in place and returns the loss of the batch."""
        ...


class Batches:
    """Random windows of a text: (batch, context) bytes and the (batch,) bytes that follow."""

    def __init__(self, model: ByteModel, text: Bytes, batch: int, seed: tuple[int, ...]) -> None:
        self._model, self._text, self._batch = model, text, batch
        self._random = np.random.default_rng(seed)

    def next(self) -> tuple[Bytes, Bytes]:
        starts = self._random.integers(0, self._model.positions(self._text), self._batch)
        return self._model.windows(self._text, starts)


class NumpyTrainer:
    """AdamW on hand-written gradients."""

    def __init__(self, settings: Settings, parameters: Parameters, batches: Batches) -> None:
        self._model, self._parameters, self._batches = settings.model, parameters, batches
        self._optimizer = AdamW(settings.rate)

    def step(self) -> float:
        loss, gradients = self._model.gradients(self._parameters, *self._batches.next())
        self._optimizer.step(self._parameters, gradients)
        return loss


def make_trainer(settings: Settings, parameters: Parameters, batches: Batches) -> Trainer:
    """The trainer that `settings.backend` names. Both change `parameters` in place."""
    if settings.backend == "torch":
        from yeto_learner.demo.torch_trainer import TorchTrainer

        return TorchTrainer(settings, parameters, batches)
    return NumpyTrainer(settings, parameters, batches)
