"""Whole worlds: the real syncer core and the real learner cores on a virtual clock and a faulty network."""

from __future__ import annotations

import pytest

from tests.simulation.worlds import failure_of, shrink, story


@pytest.mark.parametrize("seed", range(40))
def test_every_promise_holds_in_every_world(seed: int) -> None:
    failure = failure_of(seed)
    assert failure is None, story(seed, shrink(seed, failure))
