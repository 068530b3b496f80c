"""A learner that dies between the push of a delta and its next save comes back with a record that does not
know of the push; the journal beside it does. The marks of worker.py tell how often each step was merged."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.crash.test_learner_resume import PATIENCE_S, PLAIN, ones
from tests.e2e.processes import Processes
from yeto_learner.record import read_record, with_later_pushes
from yeto_proto.files import read_snapshot

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[3]
STEPS = 15


@pytest.mark.rule("learner.install.resumed")
@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(["merged"], id="once"),
        pytest.param(["merged", "handed out", "merged"], id="again and again", marks=pytest.mark.full),
    ],
)
def test_a_push_that_the_record_does_not_know_of_is_merged_once(
    processes: Processes, tmp_path: Path, deaths: list[str]
) -> None:
    checkpoint = tmp_path / "state.ckpt"
    syncer = processes.syncer_command(
        *("--port", "0", "--learners", "1", "--total-steps", str(STEPS), "--checkpoint-every", "1"),
        *PLAIN,
        *("--checkpoint-path", str(checkpoint)),
    ).listening(PATIENCE_S)
    folder = tmp_path / "learner"
    folder.mkdir()
    saved: list[list[int]] = []
    for life, until in enumerate([*deaths, None]):
        job = {"folder": str(folder), "address": f"127.0.0.1:{syncer.port}", "until": until, "life": life}
        worker = processes.run(
            *(sys.executable, "-m", "tests.e2e.crash.window_worker", json.dumps(job)), cwd=ROOT
        )
        if until is None:
            assert worker.wait(PATIENCE_S) == 0, worker.stderr.text
            break
        assert worker.wait(PATIENCE_S) == -signal.SIGKILL, worker.stderr.text
        last = json.loads((folder / "boundaries.jsonl").read_text().splitlines()[-1])
        assert last["life"] == life
        saved.append(last["saved"])
        record = read_record(folder / f"{(folder / 'newest').read_text()}.record.npz")
        assert record.unpushed == {0}  # by itself it would have the saved steps merged again
        if until == "merged":
            known, trusted = with_later_pushes(record)
            assert known.unpushed == set() and trusted

    syncer.finished(0, timeout=PATIENCE_S)
    final = np.load(folder / "final.npy")
    assert read_snapshot(checkpoint).fragments[0].params.tobytes() == final.tobytes()
    merged = ones(final)
    for until, steps in zip(deaths, saved, strict=True):
        if until == "merged":
            assert set(steps) <= merged
