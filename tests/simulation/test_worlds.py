"""A thousand seeded worlds of real cores: every promise after every effect, and every run ends.

`YETO_SIM_SEEDS=20000` plays more of them, `YETO_SIM_FIRST=5000` others. A seed that fails is played again
with fewer and fewer of its faults, and its shortest story is told. The last test adds up what has happened in
all of them: each kind of fault, reason of a refusal and transition of a machine 50 times or more.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.tally import missing, table, transitions_counted
from tests.simulation.worlds import play

SEEDS = int(os.environ.get("YETO_SIM_SEEDS", "1000"))
FIRST = int(os.environ.get("YETO_SIM_FIRST", "0"))
BATCHES = 20  # so that all processes of a test run have their share
ENOUGH_SEEDS = 1000  # the figures are demanded of so many
PATIENCE = 3000.0  # seconds that the last test waits for batches of other processes


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def report_path(shared: Path, batch: int) -> Path:
    return shared / f"worlds-{batch}.json"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_world_keeps_its_promises_and_ends(batch: int, shared: Path) -> None:
    tally: Counter[str] = Counter()
    played = 0
    began = time.process_time()
    try:
        with transitions_counted(tally):
            for seed in range(FIRST + batch, FIRST + SEEDS, BATCHES):
                play(seed, tally)
                played += 1
    finally:
        report = {"played": played, "seconds": time.process_time() - began, "tally": tally}
        unfinished = report_path(shared, batch).with_suffix(".tmp")
        unfinished.write_text(json.dumps(report))
        unfinished.rename(report_path(shared, batch))


@pytest.mark.timeout(3600)
def test_everything_happens_often_enough(
    request: pytest.FixtureRequest, shared: Path, record_property: Any
) -> None:
    name = test_every_world_keeps_its_promises_and_ends.__name__
    chosen = [item for item in request.session.items if item.name.startswith(name)]
    assert len(chosen) == BATCHES, "this adds up what happened in all batches: choose them as well"
    deadline = time.monotonic() + PATIENCE
    while not all(report_path(shared, batch).exists() for batch in range(BATCHES)):
        assert time.monotonic() < deadline, "a batch has ended without a report"
        time.sleep(0.1)  # another process plays it
    reports = [json.loads(report_path(shared, batch).read_text()) for batch in range(BATCHES)]
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report["tally"])
    seconds = sum(report["seconds"] for report in reports)
    record_property("simulation", f"{SEEDS} worlds in {seconds:.1f} s of one core\n{table(total)}")
    assert sum(report["played"] for report in reports) == SEEDS
    if SEEDS >= ENOUGH_SEEDS:
        assert missing(total) == []
