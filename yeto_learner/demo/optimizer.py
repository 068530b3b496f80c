"""AdamW (Loshchilov and Hutter, 2019) over a dict of numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

BETAS = (0.9, 0.98)
EPSILON = 1e-8  # of Adam, not of the wire
DECAY = 0.01


@dataclass
class AdamW:
    """Decoupled weight decay is applied to matrices only, as usual for language models.

    m <- beta1 m + (1 - beta1) g        v <- beta2 v + (1 - beta2) g^2
    p <- p - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay p)
    """

    rate: float
    beta1: float = BETAS[0]
    beta2: float = BETAS[1]
    epsilon: float = EPSILON
    decay: float = DECAY
    steps: int = 0
    _first: dict[str, Array] = field(default_factory=dict, repr=False)
    _second: dict[str, Array] = field(default_factory=dict, repr=False)

    def step(self, parameters: Mapping[str, Array], gradients: Mapping[str, Array]) -> None:
        """Updates `parameters` in place. Names of `gradients` must be among those of `parameters`."""
        self.steps += 1
        correction1 = 1.0 - self.beta1**self.steps
        correction2 = math.sqrt(1.0 - self.beta2**self.steps)
        for name, gradient in gradients.items():
            parameter = parameters[name]
            first = self._first.setdefault(name, np.zeros_like(parameter))
            second = self._second.setdefault(name, np.zeros_like(parameter))
            first *= self.beta1
            first += (1.0 - self.beta1) * gradient
            second *= self.beta2
            second += (1.0 - self.beta2) * np.square(gradient)
            update = np.sqrt(second)
            update /= correction2
            update += self.epsilon
            np.divide(first, update, out=update)
            update *= self.rate / correction1
            if parameter.ndim > 1:
                parameter *= 1.0 - self.rate * self.decay
            parameter -= update
