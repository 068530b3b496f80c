"""A small byte-level language model in numpy: it reads the last `context` bytes and predicts the next one.

    x  = embed[bytes]                      one row per byte, joined:   (batch, context * embed)
    h  = gelu(x W0 + b0)                                               (batch, hidden)
    h  = h + gelu(h Wi + bi)               for each further layer      (batch, hidden)
    logits = h V                                                       (batch, 256)

The loss is the mean cross-entropy in nats per byte; a model that knows nothing has ln 256 = 5.545.
Parameters are a dict of float32 arrays under the names that a transformer would use, so that `build_layout`
puts embedding and head into one fragment and spreads the layers over the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yeto_learner.demo.text import Bytes

Array = npt.NDArray[np.float32]
Parameters = dict[str, Array]

VOCABULARY = 256
_GELU_SCALE = np.float32(math.sqrt(2.0 / math.pi))
_GELU_CUBIC = np.float32(0.044715)
_HALF, _ONE, _THREE = np.float32(0.5), np.float32(1.0), np.float32(3.0)


@dataclass(frozen=True)
class ByteModel:
    """Sizes of the model. It holds no parameters: they are always passed in."""

    context: int = 16
    embed: int = 24
    hidden: int = 192
    layers: int = 3

    def init(self, seed: int) -> Parameters:
        """Fresh parameters. The same seed gives the same bits in every process."""
        rng = np.random.default_rng(seed)

        def normal(rows: int, columns: int, std: float) -> Array:
            return (rng.standard_normal((rows, columns)) * std).astype(np.float32)

        width = self.context * self.embed
        parameters = {"embed.weight": normal(VOCABULARY, self.embed, 1.0)}
        for layer in range(self.layers):
            parameters[f"layers.{layer}.mlp.weight"] = normal(width, self.hidden, math.sqrt(1.0 / width))
            parameters[f"layers.{layer}.mlp.bias"] = np.zeros(self.hidden, np.float32)
            width = self.hidden
        # A small head: the first predictions are then close to uniform, and the first loss to ln 256.
        parameters["lm_head.weight"] = normal(self.hidden, VOCABULARY, 0.02)
        return parameters

    def windows(self, text: Bytes, starts: npt.NDArray[np.int64]) -> tuple[Bytes, Bytes]:
        """The contexts (n, context) that begin at `starts` and the bytes (n,) that follow them."""
        rows = text[starts[:, None] + np.arange(self.context + 1)]
        return rows[:, :-1], rows[:, -1]

    def positions(self, text: Bytes) -> int:
        """How many windows `text` has."""
        return len(text) - self.context

    def loss(self, parameters: Mapping[str, Array], text: Bytes, limit: int | None = None) -> float:
        """Mean loss in nats per byte over every window of `text`, or over `limit` windows spread evenly."""
        count = self.positions(text)
        starts = (
            np.arange(count)
            if limit is None
            else np.linspace(0, count - 1, min(limit, count)).astype(np.int64)
        )
        total = 0.0
        for first in range(0, len(starts), 1024):
            contexts, targets = self.windows(text, starts[first : first + 1024])
            states, _ = self._forward(parameters, contexts)
            logits = states[-1] @ parameters["lm_head.weight"]
            total += float(-_log_softmax(logits)[np.arange(len(targets)), targets].sum(dtype=np.float64))
        return total / len(starts)

    def gradients(
        self, parameters: Mapping[str, Array], contexts: Bytes, targets: Bytes
    ) -> tuple[float, Parameters]:
        """Loss of one batch and the gradient of every parameter."""
        batch = len(targets)
        rows = np.arange(batch)
        states, linears = self._forward(parameters, contexts)
        log_probabilities = _log_softmax(states[-1] @ parameters["lm_head.weight"])
        loss = float(-log_probabilities[rows, targets].mean(dtype=np.float64))

        d_logits: Array = np.exp(log_probabilities)
        d_logits[rows, targets] -= 1.0
        d_logits /= batch
        gradients: Parameters = {"lm_head.weight": states[-1].T @ d_logits}
        d_state: Array = d_logits @ parameters["lm_head.weight"].T
        for layer in reversed(range(self.layers)):
            d_linear: Array = d_state * _gelu_slope(linears[layer])
            gradients[f"layers.{layer}.mlp.weight"] = states[layer].T @ d_linear
            gradients[f"layers.{layer}.mlp.bias"] = d_linear.sum(axis=0)
            below: Array = d_linear @ parameters[f"layers.{layer}.mlp.weight"].T
            d_state = d_state + below if layer else below
        gradients["embed.weight"] = _scatter_rows(contexts, d_state.reshape(-1, self.embed))
        return loss, gradients

    def _forward(self, parameters: Mapping[str, Array], contexts: Bytes) -> tuple[list[Array], list[Array]]:
        """The input of every layer and, last, of the head; and what every layer passes to its gelu."""
        state = parameters["embed.weight"][contexts].reshape(len(contexts), self.context * self.embed)
        states, linears = [state], []
        for layer in range(self.layers):
            weight, bias = parameters[f"layers.{layer}.mlp.weight"], parameters[f"layers.{layer}.mlp.bias"]
            linear = state @ weight + bias
            state = state + _gelu(linear) if layer else _gelu(linear)
            linears.append(linear)
            states.append(state)
        return states, linears


# The tanh form of gelu: x/2 (1 + tanh(s (x + c x^3))).


def _gelu(x: Array) -> Array:
    return _HALF * x * (_ONE + _gelu_tanh(x))


def _gelu_slope(x: Array) -> Array:
    tanh = _gelu_tanh(x)
    inner = _GELU_SCALE * (_ONE + _THREE * _GELU_CUBIC * x * x)
    result: Array = _HALF * (_ONE + tanh) + _HALF * x * (_ONE - tanh * tanh) * inner
    return result


def _gelu_tanh(x: Array) -> Array:
    result: Array = np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x))
    return result


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _scatter_rows(contexts: Bytes, gradients: Array) -> Array:
    """Adds up the rows of `gradients` that belong to the same byte: (256, embed).

    Sorting and `reduceat` take a fifth of the time of `np.add.at`.
    """
    flat = contexts.reshape(-1)
    order = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=VOCABULARY)
    present = np.flatnonzero(counts)
    starts = np.concatenate(([0], np.cumsum(counts[present])[:-1]))
    result = np.zeros((VOCABULARY, gradients.shape[1]), np.float32)
    result[present] = np.add.reduceat(gradients[order], starts, axis=0)
    return result
