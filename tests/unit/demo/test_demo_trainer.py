"""Both trainers make the same steps on the caller's own arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from yeto_learner.demo.model import Parameters
from yeto_learner.demo.settings import Settings, Task
from yeto_learner.demo.text import load_corpus
from yeto_learner.demo.trainer import Batches, make_trainer

SETTINGS = Settings(batch=64)


def train(settings: Settings, steps: int) -> tuple[Parameters, list[float]]:
    parameters = settings.model.init(0)
    batches = Batches(settings.model, load_corpus(3).shards[0], settings.batch, (0, 1))
    trainer = make_trainer(settings, parameters, batches)
    return parameters, [trainer.step() for _ in range(steps)]


def test_batches_repeat_for_one_seed_and_differ_for_another() -> None:
    text = load_corpus(3).shards[0]
    one, again, other = (Batches(SETTINGS.model, text, 8, (0, seed)).next() for seed in (1, 1, 2))
    np.testing.assert_array_equal(one[0], again[0])
    assert not np.array_equal(one[0], other[0])
    assert one[0].shape == (8, SETTINGS.model.context)


def test_numpy_trains_in_place() -> None:
    parameters, losses = train(SETTINGS, 30)
    assert losses[-1] < losses[0] - 1
    fresh = SETTINGS.model.init(0)
    assert all(not np.array_equal(parameters[name], fresh[name]) for name in fresh)


@pytest.mark.full
def test_torch_makes_the_same_steps() -> None:
    ours, losses = train(SETTINGS, 20)
    theirs, torch_losses = train(replace(SETTINGS, backend="torch"), 20)
    np.testing.assert_allclose(torch_losses, losses, rtol=2e-3)
    for name in ours:
        np.testing.assert_allclose(theirs[name], ours[name], atol=2e-3)


@pytest.mark.full
def test_what_is_written_into_the_arrays_is_trained_on_by_torch() -> None:
    settings = replace(SETTINGS, backend="torch")
    parameters = settings.model.init(0)
    trainer = make_trainer(
        settings, parameters, Batches(settings.model, load_corpus(3).shards[0], 64, (0, 1))
    )
    trainer.step()
    for value in parameters.values():
        value[...] = 0
    assert trainer.step() == pytest.approx(np.log(256), abs=1e-4)


def test_a_task_survives_the_command_line(tmp_path: Path) -> None:
    task = Task(
        "learner",
        1,
        tmp_path / "out.npz",
        SETTINGS.quick(),
        address="127.0.0.1:1",
        learner_id=1,
        contract="ab",
    )
    assert Task.from_json(task.to_json()) == task
