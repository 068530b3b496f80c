"""What the planner says, beside what a real run takes: bytes exactly, memory at most."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.processes import Processes
from tests.e2e.raw import Trainer, drive, hello, train
from tests.e2e.test_syncer_run import QUICK
from yeto_proto import build_layout
from yeto_proto._generated.messages import BcastFragment, FinalFragment
from yeto_proto._generated.types import Dtype
from yeto_proto.chunks import slices

VALUES = 1 << 20
FRAGMENTS = 4
STEPS = 8


@pytest.mark.parametrize(
    "dtype", [pytest.param(Dtype.F32, marks=pytest.mark.full), Dtype.BF16], ids=lambda dtype: dtype.name
)
def test_a_run_takes_what_was_planned(processes: Processes, tmp_path: Path, dtype: Dtype) -> None:
    layout = build_layout({f"t{number}": VALUES for number in range(FRAGMENTS)}, FRAGMENTS)
    (tmp_path / "layout.json").write_text(layout.to_json())
    command = processes.syncer_command(
        *("plan", "--layout", str(tmp_path / "layout.json"), "--learners", "2", "--link", "10Gbit"),
        *("--dtype", dtype.name.lower(), "--folder", str(tmp_path), "--json"),
    )
    assert command.wait() == 0, command.stderr.text
    plan = json.loads(command.stdout.text)
    wire = {item["name"]: item["value"] for item in plan["wire"]}
    disk = {item["name"]: item["value"] for item in plan["disk"]}

    checkpoint, final = tmp_path / "run.ckpt", tmp_path / "final.bin"
    syncer = processes.syncer(
        *("--learners", "2", "--total-steps", str(STEPS), *QUICK),
        *("--checkpoint-path", str(checkpoint), "--final-state", str(final)),
    )
    process = psutil.Process(syncer.pid)
    before = process.memory_info().rss
    learners = [
        Trainer(syncer.port, hello(layout, number, dtype=dtype, streams=2), target=1.0) for number in range(2)
    ]
    learners[0].initialize([np.full(VALUES, 0.5, np.float32)] * FRAGMENTS)
    # Whatever comes after the last round needs less: the cut is sent out of the state itself.
    drive(learners, lambda: all(len(each.answered) == STEPS for each in learners), "the answers", 300)
    drive(learners, lambda: any(isinstance(m, FinalFragment) for _, m in learners[0].seen), "the cut", 300)
    peak = peak_rss(syncer.pid)
    train(learners)
    for learner in learners:
        learner.close()
    syncer.finished()

    assert checkpoint.stat().st_size == disk["checkpoint"]
    assert final.stat().st_size >= disk["final state"]
    assert peak - before <= plan["memory_total"]
    catch_up = [m for _, m in learners[1].seen if isinstance(m, BcastFragment) and m.version == 0]
    assert sum(size(message) for message in catch_up) == wire["a catch-up"]
    cut = [m for _, m in learners[1].seen if isinstance(m, FinalFragment)]
    assert sum(size(message) for message in cut) == wire["the final cut to one learner"]


def size(message: BcastFragment | FinalFragment) -> int:
    """Bytes of a message in chunks."""
    return sum(len(buffer) for chunk in slices(message, 0) for buffer in chunk)


def peak_rss(pid: int) -> int:
    """The most memory that a process has held so far, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
