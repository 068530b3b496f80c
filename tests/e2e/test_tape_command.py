"""`yeto-tape` over the tapes of a real syncer process."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.e2e.processes import Processes
from tests.e2e.raw import Trainer, drive, hello, train
from tests.e2e.test_syncer_run import QUICK, initial, small_layout
from yeto_syncer.tape_file import faults, kind_of, read

TAPE_COMMAND = (sys.executable, "-m", "yeto_syncer.tape_cli")


def test_a_tape_of_a_run_with_a_loss_is_told_and_judged(processes: Processes, tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    began = time.time()
    follower = processes.run(*TAPE_COMMAND, "follow", "--json", str(tape))
    syncer = processes.syncer(
        *("--learners", "2", "--total-steps", "4", *QUICK, "--event-tape", str(tape), "--pipeline", "1"),
    )
    layout = small_layout()
    lost, other = (Trainer(syncer.port, hello(layout, number), target=1.0) for number in range(2))
    lost.initialize(initial(layout))
    drive([lost, other], lambda: bool(lost.answered and other.answered), "the answers of step 1")
    # The other one keeps step 2 open until the lost one is back, so that step 3 captures both.
    drive([lost], lambda: len(lost.answered) >= 2, "the last answer of the learner that is lost")
    lost.close()
    syncer.stderr.wait_for("learner left.*learner=0 generation=1")
    back = Trainer(syncer.port, hello(layout, 0, generation=2), target=1.0)
    drive([back], lambda: len(back.anchors) == len(layout.fragments), "its catch-up")
    train([back, other])
    for learner in (back, other):
        learner.close()
    syncer.finished()
    records = list(read(tape))
    assert [fault for record in records for fault in faults(record)] == []
    # Seconds since 1970, whatever somebody does to the clock meanwhile.
    assert all(began - 3600 <= record["time"] <= time.time() + 3600 for record in records)
    kinds = [kind_of(record) for record in records]
    assert kinds[0] == "run_started" and kinds[-1] == "run_ended"
    [recovery] = [record for record in records if kind_of(record) == "recovery"]
    assert (recovery["id"], recovery["generation"], recovery["lost_generation"]) == (0, 2, 1)

    assert follower.wait() == 0
    assert [json.loads(line) for line in follower.stdout.lines] == records

    summary = processes.run(*TAPE_COMMAND, "summary", "--json", str(tape))
    assert summary.wait() == 0
    told = json.loads(summary.stdout.text)
    assert (told["rounds"], told["last_step"], told["goodput"]) == (4, 4, 1.0)
    assert told["recoveries"] == [recovery]

    judged = processes.run(
        *TAPE_COMMAND, "check", "--learners", "2", "--budget", "1", "--from", "0", str(tape)
    )
    assert judged.wait() == 0
    assert judged.stdout.text.startswith("consolidation steps 1..4: all 2 learners")
    judged = processes.run(
        *TAPE_COMMAND, "check", "--learners", "2", "--budget", "2", "--from", "0", str(tape)
    )
    assert judged.wait() == 1
    assert "step 1: learner 0 answered with 1 local steps, not with the budget of 2" in judged.stdout.lines
