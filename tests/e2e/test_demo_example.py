"""The ten-line learner of the README trains with a real syncer."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.e2e.processes import Processes

SCRIPT = Path(__file__).parents[2] / "site" / "docs" / "examples" / "numpy_learner.py"


def test_two_learners_find_the_truth_together(processes: Processes) -> None:
    syncer = processes.syncer(
        "--learners", "2", "--quorum", "2", "--total-steps", "40", "--sync-interval-steps", "50"
    )
    learners = [
        processes.run(sys.executable, str(SCRIPT), f"127.0.0.1:{syncer.port}", str(learner_id))
        for learner_id in range(2)
    ]
    assert [learner.wait(300) for learner in learners] == [0, 0], learners[0].stderr.text
    syncer.finished(0)
    results = {learner.stdout.text for learner in learners}
    assert len(results) == 1, "every learner ends with the same parameters"
    found = re.fullmatch(r"distance from the truth: (\d\.\d{4})", results.pop())
    assert found
    assert float(found.group(1)) < 0.1, "it started at 0.97"
