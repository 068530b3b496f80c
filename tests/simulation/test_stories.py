"""What makes a failure of a world worth having: it can be replayed, and its shortest story is told."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.worlds import failure_of, play, shrink, story, world_of

pytestmark = pytest.mark.timeout(900)

REPLAYED = 7


def test_a_seed_replays_its_world() -> None:
    one, other = world_of(REPLAYED, verbose=True), world_of(REPLAYED, verbose=True)
    one.play()
    other.play()
    assert one.story == other.story
    assert one.tally == other.tally
    assert len(one.faults) > 1, "a world worth replaying"


def test_a_world_without_its_faults_is_another_story() -> None:
    with_all, without = world_of(REPLAYED), world_of(REPLAYED, faults=())
    with_all.play()
    without.play()
    assert any(name.startswith("fault") for name in with_all.tally)
    assert not any(name.startswith("fault") for name in without.tally)
    assert with_all.setup == without.setup
    assert with_all.story != without.story


@pytest.mark.timeout(3600)
def test_a_failing_seed_tells_its_shortest_story() -> None:
    bug, first = BUGS["a duplicate is accepted"]
    with bug():
        seed, failure = next(
            (seed, failure)
            for seed in range(first, first + 500)
            if (failure := failure_of(seed)) is not None and len(failure.world.faults) > 4
        )
        shortest = shrink(seed, failure)
        assert shortest.promise == failure.promise
        assert len(shortest.world.faults) <= 2 < len(failure.world.faults)
        again = failure_of(seed, shortest.world.faults)
        assert again is not None and again.promise == failure.promise
        with pytest.raises(AssertionError) as raised:
            play(seed, Counter())
    told = story(seed, shortest)
    assert str(raised.value) == told, "what the suite says of a seed that fails is its shortest story"
    lines = told.splitlines()
    assert lines[0].startswith(f"seed {seed}: Broken: learner ")
    assert "was accepted twice in step " in lines[0]
    assert sum(line.startswith("fault: ") for line in lines) == len(shortest.world.faults)
    assert len(lines) <= 100
    step = lines[0].rpartition(" ")[2]
    assert f"for step {step} attempt" in told, "it tells who was asked for the step"
    assert f", {step}: answers accepted" in told, "and whose answer came first"
