"""A run whose learners have converged: deltas so short that f32 hardly holds them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.e2e.processes import Processes
from tests.e2e.raw import F32, Trainer, hello, train
from tests.e2e.test_syncer_run import initial, small_layout


class Converged(Trainer):
    """Hardly anything moves any more."""

    def delta(self, anchor: F32) -> F32:
        return np.full(anchor.size, 1e-40 * (1 + self.link[0]), np.float32)


@pytest.mark.rule("round.merge.finite")
@pytest.mark.parametrize("fold", ["at-close", pytest.param("on-arrival", marks=pytest.mark.full)])
def test_rounds_of_subnormal_deltas_are_committed(processes: Processes, fold: str) -> None:
    """The reciprocal of their length overflows f32; the run ended with "merge not finite" over it."""
    layout = small_layout()
    steps = ("--total-steps", "8", "--sync-interval-steps", "0")
    syncer = processes.syncer("--learners", "2", "--quorum", "2", *steps, "--fold", fold)
    learners = [Converged(syncer.port, hello(layout, number), 1.0) for number in range(2)]
    learners[0].initialize(initial(layout))
    train(learners)
    text = syncer.finished()
    assert text.count(" outer step ") == 8
    assert "non-finite" not in text
    for learner in learners:
        assert all(np.isfinite(values).all() for _, values in learner.final.values())
        learner.close()
