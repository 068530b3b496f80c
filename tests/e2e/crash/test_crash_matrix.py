"""The shipped command, killed at every step of a write, a commit, a broadcast and the end of a run, and
continued: it ends with the bits of a run that was left alone."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.crash.rig import PATIENCE_S, Files, Mortal, newest, serve, start
from tests.e2e.processes import Processes
from yeto_proto.files import marker_path, read_marker, read_snapshot

pytestmark = pytest.mark.timeout(900)  # many processes, one after the other

BEFORE, TOTAL = 4, 10
"""The last steps of the run before, in the mode that has one, and of this run."""

MODES = {
    "each": ("--checkpoint-every", "1"),
    "some": ("--checkpoint-every", "3", "--checkpoint-on-start"),
    "behind": ("--checkpoint-every", "3", "--checkpoint-on-start", "--background-checkpoint"),
    "last": ("--checkpoint-every", "0"),
    "again": ("--checkpoint-every", "1"),  # after a finished run of BEFORE steps, whose marker is there
}

# In `each` the checkpoint of version zero is the first write, that of step n the (n + 1)th; in `last` the
# terminal checkpoint is the only one. Two PULLs and two PUSHes belong to each step.
POINTS: dict[str, list[str]] = {
    "each": [
        # write
        "checkpoint.created",
        "checkpoint.half",
        "checkpoint.durable",
        "checkpoint.created:5",
        "checkpoint.begun:5",
        "checkpoint.half:5",
        "checkpoint.written:5",
        "checkpoint.synced:5",
        "checkpoint.renamed:5",
        "checkpoint.durable:5",
        # commit
        "before PushFragment:9",
        "after PushFragment:9",
        "before Merge:5",
        "after Merge:5",
        "before Merged:5",
        "after Merged:5",
        "before Save:5",
        "before Saved:5",
        "after Saved:5",
        "before AppendTape:6",
        "after AppendTape:6",
        # broadcast
        "before Deliver",
        "after Deliver",
        "before Delivered",
        "before Deliver:5",
        "after Deliver:5",
        "before PullReq:9",
        "after PullReq:10",
    ],
    "some": ["checkpoint.half", "checkpoint.synced:2", "checkpoint.renamed:3", "after Merged:5"],
    "behind": ["checkpoint.half", "checkpoint.half:2", "checkpoint.synced:2", "checkpoint.renamed:2"],
    "last": [
        # the end
        "checkpoint.created",
        "checkpoint.half",
        "checkpoint.synced",
        "checkpoint.renamed",
        "checkpoint.durable",
        "before WriteMarker",
        "marker.created",
        "marker.synced",
        "marker.renamed",
        "marker.durable",
        "final-state.created",
        "final-state.half",
        "final-state.synced",
        "final-state.renamed",
        "final-state.durable",
        "before DeliverFinal",
        "after DeliverFinal:4",
        "before FinalManifest",
        "after FinalManifest:2",
        "before FinalAck",
        "after FinalAck",
        "after FinalAck:2",
        "before Shutdown",
        "after Shutdown:2",
        "before Exit",
    ],
    "again": [
        "before RemoveMarker",
        "marker.unlinked",
        "marker.removed",
        "after RemoveMarker",
        "checkpoint.half",
        "before Deliver:2",
        "checkpoint.renamed:6",
        "before WriteMarker",
        "marker.synced",
    ],
}

QUICK_POINTS = [
    ("each", "checkpoint.half:5"),
    ("each", "checkpoint.renamed:5"),
    ("each", "after Merged:5"),
    ("each", "after Deliver:5"),
    ("last", "marker.synced"),
    ("again", "marker.unlinked"),
]


def cases() -> list[object]:
    """All points; those of `make test` without the mark."""
    return [
        pytest.param(mode, point, marks=() if (mode, point) in QUICK_POINTS else (pytest.mark.full,))
        for mode, points in POINTS.items()
        for point in points
    ]


@dataclass(frozen=True)
class Outcome:
    """The bytes that a run leaves behind."""

    checkpoint: bytes
    final_state: bytes

    @classmethod
    def of(cls, files: Files) -> Outcome:
        return cls(files.checkpoint.read_bytes(), files.final_state.read_bytes())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run that nobody kills."""
    files = Files(tmp_path_factory.mktemp("undisturbed"))
    with Processes() as processes:
        syncer = start(processes, files, "--total-steps", str(TOTAL), *MODES["each"])
        serve(syncer)
        syncer.finished(0, timeout=PATIENCE_S)
    assert files.check({TOTAL}) == TOTAL
    return Outcome.of(files)


def held_by(learners: list[Mortal]) -> list[dict[int, tuple[int, bytes]]]:
    """The final cut of each learner."""
    return [
        {number: (version, values.tobytes()) for number, (version, values) in each.final.items()}
        for each in learners
    ]


@pytest.mark.rule("syncer.checkpoint.durable_before_visible")
@pytest.mark.rule("syncer.final_marker.removed")
@pytest.mark.parametrize(("mode", "point"), cases())
def test_a_run_killed_anywhere_ends_with_the_same_bits(
    processes: Processes, tmp_path: Path, undisturbed: Outcome, mode: str, point: str
) -> None:
    files = Files(tmp_path)
    finished = {TOTAL}
    generation = 1
    if mode == "again":
        finished.add(BEFORE)
        before = start(processes, files, "--total-steps", str(BEFORE), "--checkpoint-every", "0")
        serve(before)
        before.finished(0, timeout=PATIENCE_S)
        assert read_marker(files.checkpoint) == BEFORE
        generation += 1
    flags = ("--total-steps", str(TOTAL), *MODES[mode])

    victim = start(processes, files, *flags, crash=point)
    learners = serve(victim, generation)
    assert victim.wait(PATIENCE_S) == -signal.SIGKILL, victim.stderr.text
    step = files.check(finished)
    if mode == "each":
        assert newest(learners) <= (step or 0)  # nobody has seen what is not durable
    if marker_path(files.checkpoint).exists() and step == TOTAL:
        assert files.checkpoint.read_bytes() == undisturbed.checkpoint

    syncer = start(processes, files, *flags)
    learners = serve(syncer, generation + 1)
    assert "training complete" in syncer.finished(0, timeout=PATIENCE_S)
    assert files.check(finished) == TOTAL and read_marker(files.checkpoint) == TOTAL
    assert Outcome.of(files) == undisturbed
    state = read_snapshot(files.checkpoint)
    cut = {number: (each.version, each.params.tobytes()) for number, each in enumerate(state.fragments)}
    assert held_by(learners) == [cut, cut]
    assert {number: entry.merges for number, entry in state.ledger.items()} == {0: TOTAL, 1: TOTAL}
    assert not list(tmp_path.glob("*.tmp"))


def test_there_are_enough_points() -> None:
    """Of write, commit, broadcast and the end; and those of `make test` are among them."""
    every = {(mode, point) for mode, points in POINTS.items() for point in points}
    assert len(every) >= 25 and len(QUICK_POINTS) == 6 and set(QUICK_POINTS) <= every
