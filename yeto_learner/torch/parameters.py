"""The tensors of a module as the values of a `Learner`: one whole tensor at a time on the CPU of rank 0."""

from __future__ import annotations

import torch

from yeto_learner.core.values import F32

from .ranks import Ranks
from .tensors import ModuleTensors

__all__ = ["TorchParameters"]


class TorchParameters:
    """Reads and writes blocks of the tensor in hand; the next one, or `flush`, puts it back.

    A CPU tensor in one piece is its own copy, so a plain module on the CPU costs no memory.
    """

    def __init__(self, tensors: ModuleTensors, ranks: Ranks) -> None:
        self._tensors, self._ranks = tensors, ranks
        self._indices = {name: index for index, name in enumerate(tensors.by_name)}
        self._name: str | None = None
        self._values = torch.empty(0)
        self._changed = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._tensors.shapes()

    def check(self) -> None:
        self._tensors.check()

    def read(self, name: str, start: int, stop: int) -> F32:
        values: F32 = self._take(name)[start:stop].to(torch.float32).numpy()
        return values

    def write(self, name: str, start: int, values: F32) -> None:
        source = values if values.flags.writeable else values.copy()  # torch warns of read-only memory
        self._take(name)[start : start + len(values)] = torch.from_numpy(source)
        self._changed = True

    def flush(self) -> None:
        if self._changed and self._name is not None:
            self._ranks.save(self._indices[self._name], self._values)
        self.drop()

    def drop(self) -> None:
        """Let the tensor in hand go without putting it back."""
        self._name, self._values, self._changed = None, torch.empty(0), False

    def _take(self, name: str) -> torch.Tensor:
        if name != self._name:
            self.flush()
            self._values = self._ranks.load(self._indices[name])
            self._name = name
        return self._values
