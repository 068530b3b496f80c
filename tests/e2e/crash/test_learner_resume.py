"""Learner and syncer processes killed in turn: no local step is merged twice, and none is lost that the rules
of resuming promise to keep. The marks of worker.py tell, step by step."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.processes import Processes, Running, Syncer, reserved_port, wait_until
from yeto_proto.files import read_snapshot

pytestmark = pytest.mark.timeout(900)  # many processes, one after the other

WORKER = Path(__file__).with_name("worker.py")
PLAIN = (
    *("--outer-lr", "1", "--outer-momentum", "0", "--delta-correction", "none"),
    *("--sync-interval-steps", "0", "--grace-ms", "0", "--min-round-interval-ms", "20", "--quorum", "1"),
)
"""A merge of one learner adds its delta to the parameters, and nothing else."""
PATIENCE_S = 300.0

Death = dict[str, Any]


@pytest.fixture
def port() -> Iterator[int]:
    """The port of all the syncers of a test."""
    with reserved_port() as reserved:
        yield reserved


def death(after: int, *, pushed: bool) -> Death:
    """At the first boundary from this local step on at which a delta of the anchor was handed out, or not."""
    return {"after": after, "pushed": pushed}


class Life:
    """One learner over all its processes."""

    def __init__(self, processes: Processes, folder: Path, port: int, learner: int = 0) -> None:
        self._processes = processes
        self.folder = folder
        folder.mkdir()
        self._job = {"folder": str(folder), "address": f"127.0.0.1:{port}", "learner": learner}
        self._lives = 0
        self.process: Running | None = None

    def start(self, end: Death | None = None) -> None:
        """A new process, which may kill itself."""
        job = {**self._job, "life": self._lives, "death": end}
        self._lives += 1
        self.process = self._processes.run(sys.executable, str(WORKER), json.dumps(job))

    @property
    def code(self) -> int | None:
        assert self.process is not None
        return self.process.process.poll()

    def boundaries(self) -> list[dict[str, Any]]:
        """All boundaries of all lives."""
        return [json.loads(line) for line in (self.folder / "boundaries.jsonl").read_text().splitlines()]

    def ended(self) -> np.ndarray:
        """The final parameters of a life that came to its end."""
        assert self.process is not None
        assert self.process.wait(PATIENCE_S) == 0, self.process.stderr.text
        final: np.ndarray = np.load(self.folder / "final.npy")
        return final


class Server:
    """The syncer over all its processes, always on one port: a reserved one, so that no other process can get
    it while no syncer runs."""

    def __init__(self, processes: Processes, port: int, checkpoint: Path, *flags: str) -> None:
        self._processes = processes
        self._flags = (*PLAIN, *flags, "--checkpoint-path", str(checkpoint), "--resume-if-exists")
        self.checkpoint = checkpoint
        self.port = port
        self.process: Syncer | None = None

    def start(self, crash: str | None = None) -> None:
        environ = {} if crash is None else {"YETO_CRASH_AT": crash}
        command = ("--port", str(self.port), *self._flags)
        self.process = self._processes.syncer_command(*command, environ=environ).listening(PATIENCE_S)

    @property
    def code(self) -> int | None:
        assert self.process is not None
        return self.process.process.poll()


def in_turn(server: Server, life: Life, crashes: Iterable[str], deaths: Iterable[Death]) -> None:
    """Let both be killed where they are told to, start them again, until the run is complete."""
    points: Iterator[str] = iter(crashes)
    ends: Iterator[Death] = iter(deaths)
    life.start(next(ends, None))
    while True:
        wait_until(lambda: life.code is not None or server.code is not None, "an end", PATIENCE_S)
        assert server.process is not None and life.process is not None
        if server.code is not None:
            if server.code == 0:
                break
            assert server.process.wait() == -signal.SIGKILL, server.process.stderr.text
            server.start(next(points, None))
        if life.code is not None:
            if life.code == 0:
                break
            assert life.process.wait() == -signal.SIGKILL, life.process.stderr.text
            life.start(next(ends, None))
    server.process.finished(0, timeout=PATIENCE_S)
    assert next(points, None) is None and next(ends, None) is None  # all of them have happened


def ones(values: np.ndarray) -> set[int]:
    """The steps that were merged; it fails if one was merged twice, or by halves."""
    assert set(np.unique(values).tolist()) <= {0.0, 1.0}, np.unique(values)
    return set(np.flatnonzero(values).tolist())


def handed_out(boundaries: list[dict[str, Any]]) -> dict[int, list[set[int]]]:
    """By the version that they are based on, the steps of each delta that was handed to the sender."""
    found: dict[int, list[set[int]]] = {}
    for each in boundaries:
        for delta in each["handed_out"]:
            found.setdefault(delta["base"], []).append(set(delta["ids"]))
    return found


def deaths_of(boundaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last boundary of each life but the last."""
    lives = {each["life"]: each for each in boundaries}
    return [lives[life] for life in sorted(lives)[:-1]]


CRASHES = ["after Merged:4", "checkpoint.synced:6", "before PushFragment:3", "before Deliver:5"]
DEATHS = [death(8, pushed=False), death(25, pushed=True), death(45, pushed=False), death(60, pushed=True)]


@pytest.mark.rule("learner.anchor.released")
@pytest.mark.parametrize(
    ("steps", "crashes", "deaths"),
    [
        pytest.param(15, CRASHES[:2], DEATHS[:2]),
        pytest.param(30, [], DEATHS, marks=pytest.mark.full),
        pytest.param(30, CRASHES, [], marks=pytest.mark.full),
        pytest.param(30, CRASHES, DEATHS, marks=pytest.mark.full),
    ],
    ids=["some", "learner", "syncer", "both"],
)
def test_killed_in_turn_every_delta_is_merged_exactly_once(
    processes: Processes, tmp_path: Path, port: int, steps: int, crashes: list[str], deaths: list[Death]
) -> None:
    flags = ("--learners", "1", "--total-steps", str(steps), "--checkpoint-every", "1")
    server = Server(processes, port, tmp_path / "state.ckpt", *flags)
    server.start(crashes[0] if crashes else None)
    life = Life(processes, tmp_path / "learner", server.port)
    in_turn(server, life, crashes[1:], deaths)

    final = life.ended()
    state = read_snapshot(server.checkpoint)
    assert state.global_step == steps and state.fragments[0].params.tobytes() == final.tobytes()
    merged = ones(final)
    boundaries = life.boundaries()
    # With a checkpoint for each step, one of the deltas that were handed out from each version is there in
    # the end, whole and alone, whoever died when; a second one was made because the first was lost.
    handed = handed_out(boundaries)
    assert sorted(handed) == list(range(steps))
    for base, deltas in handed.items():
        assert merged & set().union(*deltas) in deltas, base
    assert merged <= {number for deltas in handed.values() for delta in deltas for number in delta}
    assert state.ledger[0].merges == steps and state.ledger[0].steps == len(merged) >= 3 * steps
    for last in deaths_of(boundaries):
        if not last["pushed"]:
            assert set(last["ids"]) <= merged  # progress that nobody had been given yet


@pytest.mark.parametrize(
    ("crashes", "deaths"),
    [
        pytest.param(["after Merged:7", "after Merged:6"], [], id="learner lives", marks=pytest.mark.full),
        pytest.param(["after Merged:7", "before Merged:6"], DEATHS[:2], id="both", marks=pytest.mark.full),
    ],
)
def test_a_syncer_that_comes_back_older_merges_nothing_twice(
    processes: Processes, tmp_path: Path, port: int, crashes: list[str], deaths: list[Death]
) -> None:
    """Its last steps are gone with the crash, as --checkpoint-every allows; progress that had not been pushed
    moves onto the older parameters."""
    steps = 24
    flags = ("--learners", "1", "--total-steps", str(steps), "--checkpoint-every", "5")
    server = Server(processes, port, tmp_path / "state.ckpt", *flags)
    server.start(crashes[0])
    life = Life(processes, tmp_path / "learner", server.port)
    in_turn(server, life, crashes[1:], deaths)

    final = life.ended()
    state = read_snapshot(server.checkpoint)
    assert state.global_step == steps and state.fragments[0].params.tobytes() == final.tobytes()
    merged = ones(final)
    assert state.ledger[0].merges == steps and state.ledger[0].steps == len(merged)
    boundaries = life.boundaries()
    rewound = [
        before
        for before, after in pairwise(boundaries)
        if before["life"] == after["life"] and after["version"] < before["version"]
    ]
    assert rewound or deaths
    for before in rewound:
        if not before["pushed"]:
            assert set(before["ids"]) <= merged


@pytest.mark.full
def test_progress_of_a_dead_learner_survives_a_run_that_goes_on(
    processes: Processes, tmp_path: Path, port: int
) -> None:
    """Saved anchors move what was not pushed onto parameters that others have moved meanwhile."""
    flags = ("--learners", "2", "--total-steps", "1000000", "--checkpoint-every", "1")
    server = Server(processes, port, tmp_path / "state.ckpt", *flags)
    server.start()
    first = Life(processes, tmp_path / "first", server.port, learner=0)
    other = Life(processes, tmp_path / "other", server.port, learner=1)
    first.start(death(4, pushed=False))
    other.start()
    wait_until(lambda: first.code is not None, "the death", PATIENCE_S)
    last = first.boundaries()[-1]
    assert last["ids"] and not last["pushed"]

    def state() -> tuple[int, np.ndarray]:
        saved = read_snapshot(server.checkpoint)
        return saved.global_step, saved.fragments[0].params

    moved = state()[0] + 3
    wait_until(lambda: state()[0] >= moved, "steps of the other", PATIENCE_S)
    assert not state()[1][last["ids"]].any()
    first.start()
    opened = first.folder / "opened1"
    wait_until(
        lambda: opened.exists() and opened.read_text().endswith("]]"), "its first broadcast", PATIENCE_S
    )
    version, held = json.loads(opened.read_text())
    # What the other merged meanwhile, and on top of it what this one had not pushed. (Later a broadcast that
    # overtakes its answer replaces both, as for any running learner that leaves nothing of its own.)
    assert version >= moved and set(last["ids"]) <= set(held)
    assert server.process is not None
    server.process.signal(signal.SIGTERM)
    server.process.finished(0, timeout=PATIENCE_S)
    assert state()[1][last["ids"]].max() <= 1  # a share of one merge, or all of it
    for life in (first, other):
        assert life.process is not None
        life.process.kill()
