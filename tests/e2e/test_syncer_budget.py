"""The learner-budget cutoff of a real process: whole rounds are cut off, an unmarked checkpoint is left."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.processes import Processes, Syncer
from tests.e2e.raw import Trainer, drive, hello, train
from tests.e2e.test_syncer_run import QUICK, initial, small_layout, tape_records
from yeto_proto._generated.messages import BudgetDone, FinalManifest, Shutdown
from yeto_proto.files import read_snapshot
from yeto_syncer.tape_file import kind_of, read

BUDGET = 12
SCRIPT = Path(__file__).parents[2] / "site" / "docs" / "examples" / "learner_budget.py"


def start(processes: Processes, path: Path) -> tuple[Syncer, list[Trainer]]:
    """A run in budget mode with two learners that have answered a few pulls."""
    syncer = processes.syncer(
        *("--learners", "2", "--total-steps", "1000000", *QUICK, "--outer-momentum", "0"),
        *("--checkpoint-path", str(path), "--event-tape", str(path.with_suffix(".tape"))),
        *("--checkpoint-every", "0", "--learner-budget-steps", str(BUDGET)),
    )
    layout = small_layout()
    learners = [Trainer(syncer.port, hello(layout, number, streams=1), target=1.0) for number in range(2)]
    learners[0].initialize(initial(layout))
    drive(learners, lambda: all(len(learner.answered) >= 6 for learner in learners), "six answers each")
    for learner in learners:
        learner.answer = lambda pull: None  # type: ignore[method-assign]  # its budget is used up
    return syncer, learners


@pytest.mark.rule("syncer.budget.cutoff")
@pytest.mark.rule("syncer.budget.consolidation")
def test_the_cutoff_leaves_an_unmarked_checkpoint_and_the_run_can_be_consolidated(
    processes: Processes, tmp_path: Path
) -> None:
    path = tmp_path / "state.ckpt"
    syncer, learners = start(processes, path)
    for learner in learners:
        learner.send(BudgetDone(BUDGET))
    drive(learners, lambda: all(learner.ended for learner in learners), "the end of both")
    for learner in learners:
        assert not any(isinstance(message, FinalManifest | Shutdown) for _, message in learner.seen)
        learner.close()
    assert "learner-budget cutoff checkpoint written" in syncer.finished(0)
    cut = read_snapshot(path)
    assert not path.with_name("state.ckpt.final").exists()
    assert [record["step"] for record in tape_records(path.with_suffix(".tape"))] == list(
        range(1, cut.global_step + 1)
    )
    fragments = len(cut.fragments)
    consolidation = processes.syncer(
        *("--learners", "2", "--quorum", "2", "--total-steps", str(cut.global_step + fragments)),
        *(
            "--checkpoint-path",
            str(path),
            "--resume",
            "--mark-final-checkpoint",
            "--sync-interval-steps",
            "0",
        ),
    )
    frozen = [
        Trainer(consolidation.port, hello(small_layout(), number, generation=2), target=1.0)
        for number in range(2)
    ]
    train(frozen)
    for learner in frozen:
        assert len(learner.answered) == fragments
        learner.close()
    consolidation.finished(0)
    final = read_snapshot(path)
    assert final.global_step == cut.global_step + fragments
    assert path.with_name("state.ckpt.final").exists()
    assert not any(
        np.array_equal(before.params, after.params)
        for before, after in zip(cut.fragments, final.fragments, strict=True)
    )


@pytest.mark.rule("syncer.budget.ends_run")
@pytest.mark.parametrize(
    "reports",
    [
        pytest.param((BUDGET + 1,), id="wrong count"),
        pytest.param((BUDGET, BUDGET), id="twice", marks=pytest.mark.full),
    ],
)
def test_a_report_that_cannot_be_ends_the_run(
    processes: Processes, tmp_path: Path, reports: tuple[int, ...]
) -> None:
    path = tmp_path / "state.ckpt"
    syncer, learners = start(processes, path)
    for steps in reports:
        learners[1].send(BudgetDone(steps))
    learners[0].react = lambda: None  # type: ignore[method-assign]
    learners[1].react = lambda: None  # type: ignore[method-assign]  # it may be told why
    drive(learners, lambda: all(learner.ended for learner in learners), "the end of both")
    for learner in learners:
        learner.close()
    assert "error: " in syncer.finished(1)
    assert not path.exists()


def test_the_documented_script_plays_the_whole_benchmark(processes: Processes, tmp_path: Path) -> None:
    """Two learners of the SDK, two rounds in flight, two syncer processes, and the verdict of the tape."""
    script = processes.run(sys.executable, str(SCRIPT), "--budget", "60", "--folder", str(tmp_path))
    assert script.wait(400.0) == 0, script.stderr.text
    found = re.search(r"^cutoff at step (\d+)$", script.stdout.text, re.MULTILINE)
    assert found
    cut = int(found.group(1))
    first, last = cut + 1, cut + 4
    assert script.stdout.lines[-1] == (
        f"consolidation steps {first}..{last}: all 2 learners are in each of them, with 60 local steps"
    )
    records = list(read(tmp_path / "tape.jsonl"))
    dropped = [record["step"] for record in records if kind_of(record) == "round_dropped"]
    assert dropped == [first, first + 1], "the gate drops both rounds in flight, whole"
    starts = [record for record in records if kind_of(record) == "run_started"]
    assert [(start["step"], start["resumed"]) for start in starts] == [(0, False), (cut, True)]
    ends = [record["message"] for record in records if kind_of(record) == "run_ended"]
    assert ends == [
        f"learner-budget cutoff complete at step {cut}",
        f"training complete at step {last}",
    ]
    assert [record["step"] for record in records if kind_of(record) == "commit"] == list(range(1, last + 1))
    final = read_snapshot(tmp_path / "state.ckpt")
    assert final.global_step == last and (tmp_path / "state.ckpt.final").exists()
