"""The model's gradients against finite differences, and the optimizer against the formula of its paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

from yeto_learner.demo.model import VOCABULARY, ByteModel, Parameters
from yeto_learner.demo.optimizer import AdamW

SMALL = ByteModel(context=3, embed=4, hidden=6, layers=3)


def batch(model: ByteModel, count: int) -> tuple[np.ndarray, np.ndarray]:
    text = np.random.default_rng(5).integers(0, VOCABULARY, 200).astype(np.uint8)
    return model.windows(text, np.arange(count))


def in_f64(parameters: Parameters) -> Parameters:
    """The model computes in the precision of its parameters: f64 makes finite differences sharp."""
    return {name: value.astype(np.float64) for name, value in parameters.items()}  # type: ignore[misc]


@pytest.mark.parametrize("name", sorted(SMALL.init(0)))
def test_gradients_equal_finite_differences(name: str) -> None:
    parameters = in_f64(SMALL.init(3))
    for value in parameters.values():
        value += 0.1 * np.random.default_rng(1).standard_normal(value.shape)
    contexts, targets = batch(SMALL, 40)
    _, gradients = SMALL.gradients(parameters, contexts, targets)
    flat, gradient = parameters[name].reshape(-1), gradients[name].reshape(-1)
    # An embedding row that no context uses has no gradient: look where there is one.
    picked = np.argsort(-np.abs(gradient))[:12]
    assert np.abs(gradient[picked]).min() > 1e-6
    for index in picked:
        kept, losses = flat[index], []
        for shift in (1e-5, -1e-5):
            flat[index] = kept + shift
            losses.append(SMALL.gradients(parameters, contexts, targets)[0])
        flat[index] = kept
        # The scatter of the embedding adds up in f32, everything else in f64.
        assert gradient[index] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-7)


def test_an_untrained_model_knows_nothing() -> None:
    model = ByteModel()
    text = np.random.default_rng(0).integers(0, VOCABULARY, 2000).astype(np.uint8)
    assert model.loss(model.init(0), text) == pytest.approx(math.log(VOCABULARY), abs=0.05)


def test_the_loss_over_a_text_is_the_mean_over_its_windows() -> None:
    text = np.random.default_rng(0).integers(0, VOCABULARY, 3000).astype(np.uint8)
    parameters = SMALL.init(2)
    every, _ = SMALL.gradients(parameters, *SMALL.windows(text, np.arange(SMALL.positions(text))))
    assert SMALL.loss(parameters, text) == pytest.approx(every, rel=1e-5)
    assert SMALL.loss(parameters, text, limit=10**9) == SMALL.loss(parameters, text)
    assert SMALL.loss(parameters, text, limit=100) == pytest.approx(every, rel=0.1)


def test_windows_are_contexts_and_the_byte_that_follows() -> None:
    text = np.arange(10, dtype=np.uint8)
    contexts, targets = SMALL.windows(text, np.array([0, 6]))
    assert contexts.tolist() == [[0, 1, 2], [6, 7, 8]]
    assert targets.tolist() == [3, 9]
    assert SMALL.positions(text) == 7


def test_the_same_seed_gives_the_same_bits() -> None:
    one, again, other = SMALL.init(1), SMALL.init(1), SMALL.init(2)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["embed.weight"], other["embed.weight"])
    assert {value.dtype for value in one.values()} == {np.dtype(np.float32)}


def test_adamw_equals_its_formula() -> None:
    rng = np.random.default_rng(0)
    parameters = {
        "matrix": rng.standard_normal((3, 4)).astype(np.float32),
        "bias": rng.standard_normal(5).astype(np.float32),
    }
    optimizer = AdamW(rate=0.01, beta1=0.8, beta2=0.9, epsilon=1e-6, decay=0.1)
    expected = {name: value.astype(np.float64) for name, value in parameters.items()}
    first = {name: np.zeros_like(value) for name, value in expected.items()}
    second = {name: np.zeros_like(value) for name, value in expected.items()}
    for step in range(1, 8):
        gradients = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in parameters.items()}
        optimizer.step(parameters, gradients)
        for name, gradient in gradients.items():
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.9 * second[name] + 0.1 * gradient.astype(np.float64) ** 2
            direction = first[name] / (1 - 0.8**step) / (np.sqrt(second[name] / (1 - 0.9**step)) + 1e-6)
            decay = 0.1 * expected[name] if name == "matrix" else 0.0
            expected[name] = expected[name] - 0.01 * (direction + decay)
    for name, value in parameters.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=2e-6)


def test_a_few_steps_lower_the_loss() -> None:
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 20, np.uint8)
    model, optimizer = ByteModel(context=4, embed=8, hidden=16), AdamW(rate=0.02)
    parameters = model.init(0)
    before = model.loss(parameters, text)
    for _ in range(40):
        _, gradients = model.gradients(parameters, *model.windows(text, np.arange(0, 800, 7)))
        optimizer.step(parameters, gradients)
    assert model.loss(parameters, text) < before / 5
