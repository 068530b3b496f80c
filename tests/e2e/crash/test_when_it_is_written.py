"""When checkpoints are written, by the real command: the last step once, the start once, and behind the
rounds with the memory that the flag's help states."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.crash.rig import PATIENCE_S, Files, join, serve, start
from tests.e2e.processes import Processes, Syncer
from tests.e2e.raw import Trainer, drive, hello, train
from yeto_proto.layout import build_layout

pytestmark = pytest.mark.timeout(900)  # many processes, one after the other

TOTAL = 12


def written(said: str) -> list[tuple[str, int]]:
    """Kind and step of each checkpoint that a syncer has logged, in order."""
    found = re.findall(r"checkpoint written kind=(\S+) step=(\d+)", said)
    return [(kind, int(step)) for kind, step in found]


def whole_run(processes: Processes, files: Files, *flags: str, generation: int = 1) -> str:
    """The log of a run to its end."""
    syncer = start(processes, files, "--total-steps", str(TOTAL), *flags)
    serve(syncer, generation)
    return syncer.finished(0, timeout=PATIENCE_S)


@pytest.mark.rule("syncer.checkpoint.terminal_once")
@pytest.mark.parametrize(
    "every", [1, 4, *(pytest.param(each, marks=pytest.mark.full) for each in (0, 5, TOTAL, TOTAL + 1))]
)
def test_the_last_step_is_written_once(processes: Processes, tmp_path: Path, every: int) -> None:
    """Whether or not it is a multiple of --checkpoint-every."""
    writes = written(whole_run(processes, Files(tmp_path), "--checkpoint-every", str(every)))
    assert [write for write in writes if write[1] == TOTAL] == [("terminal", TOTAL)]
    assert writes[-1] == ("terminal", TOTAL)
    if every == 1:
        per_round = [("per-round", step) for step in range(1, TOTAL)]
        assert writes == [("version-zero", 0), *per_round, ("terminal", TOTAL)]
    elif every:
        periodic = [("periodic", step) for step in range(every, TOTAL, every)]
        assert writes == [*periodic, ("terminal", TOTAL)]


@pytest.mark.rule("syncer.checkpoint.terminal_once")
def test_behind_the_rounds_the_last_step_is_written_once_too(processes: Processes, tmp_path: Path) -> None:
    """A periodic write that comes due while another runs is taken when that has ended, of the newest cut."""
    flags = ("--checkpoint-every", "3", "--background-checkpoint")
    files = Files(tmp_path)
    writes = written(whole_run(processes, files, *flags))
    assert writes[-1] == ("terminal", TOTAL)
    assert all(kind == "periodic" and step >= 3 for kind, step in writes[:-1])
    steps = [step for _, step in writes[:-1]]
    assert steps == sorted(steps) and len(steps) <= 3
    straight = Files(tmp_path / "straight")
    straight.folder.mkdir()
    whole_run(processes, straight, "--checkpoint-every", "0")
    assert files.checkpoint.read_bytes() == straight.checkpoint.read_bytes()


@pytest.mark.parametrize(
    "behind",
    [pytest.param((), marks=pytest.mark.full), ("--background-checkpoint",)],
    ids=["blocking", "behind"],
)
def test_the_start_is_written_once_and_not_after_a_resume(
    processes: Processes, tmp_path: Path, behind: tuple[str, ...]
) -> None:
    files = Files(tmp_path)
    flags = ("--checkpoint-every", "50", "--checkpoint-on-start", *behind)
    syncer = start(processes, files, "--total-steps", str(TOTAL), *flags)
    learners = join(syncer, 1)
    syncer.stderr.wait_for("checkpoint written kind=on-start step=0", PATIENCE_S)
    assert files.check(set()) == 0  # INIT is safe before anything was merged
    train(learners, PATIENCE_S)
    for each in learners:
        each.close()
    assert written(syncer.finished(0, timeout=PATIENCE_S)) == [("on-start", 0), ("terminal", TOTAL)]
    again = start(processes, files, "--total-steps", str(TOTAL + 3), *flags)
    serve(again, generation=2)
    assert written(again.finished(0, timeout=PATIENCE_S)) == [("terminal", TOTAL + 3)]


# -- memory --------------------------------------------------------------------------------------------------

NUMEL = 6 << 20
SLACK = 40 << 20
"""Pages that the allocators and the interpreter hold more of in one run than in another."""


class Patient(Trainer):
    """Keeps its ACK back until it is allowed, so that the syncer stays."""

    allowed = False

    def finish(self) -> None:
        if self.allowed:
            super().finish()


def wait_for_manifests(learners: list[Patient]) -> None:
    """Until both hold the final cut."""
    drive(learners, lambda: all(each.manifest is not None for each in learners), "the final cut", PATIENCE_S)


def peak(syncer: Syncer) -> int:
    """Its largest resident memory so far, in bytes."""
    status = Path(f"/proc/{syncer.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


@pytest.mark.full
def test_a_background_write_needs_at_most_one_more_copy_of_the_state(
    processes: Processes, tmp_path: Path
) -> None:
    layout = build_layout({f"w{number}": NUMEL // 6 for number in range(6)}, 6)
    peaks = []
    for name, flags in (
        ("blocking", ("--checkpoint-every", "3")),
        ("behind", ("--checkpoint-every", "3", "--background-checkpoint")),
    ):
        files = Files(tmp_path / name, taped=False)
        files.folder.mkdir()
        syncer = start(processes, files, "--total-steps", "36", *flags)
        learners = [Patient(syncer.port, hello(layout, number), target=1.0) for number in range(2)]
        learners[0].initialize([np.zeros(fragment.numel, np.float32) for fragment in layout.fragments])
        wait_for_manifests(learners)
        peaks.append(peak(syncer))
        for each in learners:
            each.allowed = True
        train(learners, PATIENCE_S)
        for each in learners:
            each.close()
        assert len(written(syncer.finished(0, timeout=PATIENCE_S))) >= 3
    assert peaks[1] - peaks[0] <= 8 * NUMEL + SLACK, [each >> 20 for each in peaks]
