"""A thousand seeded worlds of real cores: every promise after every effect, and every run ends.

`YETO_SIM_SEEDS=20000` plays more of them, `YETO_SIM_FIRST=5000` others. A seed that fails is played again
with fewer and fewer of its faults, and the shortest story is told. The last batch that ends adds up what has
happened in all of them: each kind of fault, reason of a refusal and transition of a machine 50 times or more.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.tally import missing, table, transitions_counted
from tests.simulation.worlds import Failure, failure_of, shrink, story, world_of

SEEDS = int(os.environ.get("YETO_SIM_SEEDS", "1000"))
FIRST = int(os.environ.get("YETO_SIM_FIRST", "0"))
BATCHES = 20
ENOUGH_SEEDS = 1000  # the figures are demanded of so many

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "build" / "simulation.txt"  # shown at the end of the test run


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_world_keeps_its_promises_and_ends(batch: int, shared: Path) -> None:
    tally: Counter[str] = Counter()
    began = time.process_time()
    with transitions_counted(tally):
        for seed in range(FIRST + batch, FIRST + SEEDS, BATCHES):
            world = world_of(seed)
            try:
                world.play()
            except Exception as error:
                failure = Failure(world, error)
                raise AssertionError(story(seed, shrink(seed, failure))) from error
            tally.update(world.tally)
    _report(batch, tally, time.process_time() - began, shared)


def _report(batch: int, tally: Counter[str], seconds: float, shared: Path) -> None:
    """Leave what happened for the others; whoever is the last looks at all of it."""
    partial = shared / f"simulation-{batch}.tmp"
    partial.write_text(json.dumps({"seconds": seconds, "tally": tally}))
    partial.rename(partial.with_suffix(".json"))
    reports = [json.loads(path.read_text()) for path in shared.glob("simulation-*.json")]
    if len(reports) < BATCHES:
        return
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report["tally"])
    spent = sum(report["seconds"] for report in reports)
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(f"{SEEDS} seeds in {spent:.1f} s of one core\n{table(total)}\n")
    if SEEDS >= ENOUGH_SEEDS:
        assert missing(total) == []


def test_a_seed_replays_its_world() -> None:
    one, other = world_of(7, verbose=True), world_of(7, verbose=True)
    one.play()
    other.play()
    assert one.story == other.story
    assert one.tally == other.tally
    assert len(one.faults) > 1, "a world worth replaying"


def test_a_world_without_its_faults_is_another_story() -> None:
    with_all, without = world_of(7), world_of(7, faults=())
    with_all.play()
    without.play()
    assert not any(name.startswith("fault") for name in without.tally)
    assert with_all.setup == without.setup
    assert with_all.story != without.story


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    bug, first = BUGS[name]
    with bug():
        seed, failure = next(
            (seed, failure)
            for seed in range(first, first + 1000)
            if (failure := failure_of(seed)) is not None
        )
    assert failure_of(seed) is None, f"seed {seed} fails without the bug too"
    assert str(failure.error)


def test_a_failing_seed_tells_its_shortest_story() -> None:
    bug, first = BUGS["a duplicate is accepted"]
    with bug():
        seed, failure = next(
            (seed, failure)
            for seed in range(first, first + 200)
            if (failure := failure_of(seed)) is not None and len(failure.world.faults) > 4
        )
        shortest = shrink(seed, failure)
        assert shortest.promise == failure.promise
        assert len(shortest.world.faults) <= 2 < len(failure.world.faults)
        told = story(seed, shortest)
        again = failure_of(seed, shortest.world.faults)
    assert again is not None and again.promise == failure.promise
    assert told.startswith(f"seed {seed}: Broken: learner ")
    assert "was accepted twice" in told.splitlines()[0]
    assert sum(line.startswith("fault: ") for line in told.splitlines()) == len(shortest.world.faults)
    assert "answers accepted" in told, "it tells what led to the failure"
