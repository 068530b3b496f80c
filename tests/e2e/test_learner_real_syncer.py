"""Whole runs of `Learner` with a real `yeto-syncer` process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.e2e.processes import Processes, reserved_port
from yeto_learner import Learner, SessionRejectedError, Subscriber
from yeto_proto.files import read_snapshot

Arrays = dict[str, npt.NDArray[np.float32]]

WAIT = 300.0
STEPS = 12
QUICK = (
    *("--total-steps", str(STEPS), "--quorum", "2", "--grace-ms", "600000"),
    *("--sync-interval-steps", "0", "--checkpoint-every", "1"),
)


def parameters(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "embed": random.normal(size=(50, 8)).astype(np.float32),
        "layers.0.mlp": random.normal(size=(24, 16)).astype(np.float32),
        "layers.1.mlp": random.normal(size=(16, 24)).astype(np.float32),
        "layers.1.norm": np.ones(24, np.float32),
    }


class Fleet:
    """Learners on threads of their own, all pulled towards one target.

    With `hold_at` nobody goes on from this global step before `may_pass` is set: a run that needs them all
    cannot be over before the test has seen what it wants to see.
    """

    def __init__(self, hold_at: int | None = None) -> None:
        self.hold_at = hold_at
        self.may_pass = threading.Event()
        self.arrays: list[Arrays] = []
        self.learners: list[Learner] = []
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, address: str, count: int = 2, **options: object) -> None:
        for number in range(count):
            arrays = parameters(number)
            arguments: dict[str, object] = {
                "learner_id": number,
                "num_fragments": 3,
                "num_streams": 2,
                "session_contract": "a test",
                "connect_timeout_s": WAIT,
                "initial_cut_timeout_s": WAIT,
                "finalization_timeout_s": WAIT,
                **options,
            }
            learner = Learner(arrays, address, **arguments)  # type: ignore[arg-type]
            self.arrays.append(arrays)
            self.learners.append(learner)
            thread = threading.Thread(target=self._train, args=(learner, arrays, number))
            thread.start()
            self._threads.append(thread)

    def _train(self, learner: Learner, arrays: Arrays, number: int) -> None:
        pause = threading.Event()
        try:
            with learner:
                while not learner.done:
                    if self.hold_at is not None and learner.global_step >= self.hold_at:
                        self.may_pass.wait(WAIT)
                    for array in arrays.values():
                        array -= np.float32(0.05) * (array - np.float32(number))
                    learner.step(tokens=16)
                    pause.wait(0.002)
                learner.finish()
        except (RuntimeError, OSError) as error:
            self.errors.append(error)

    def join(self, errors: int = 0) -> None:
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive(), "a learner hangs"
        assert len(self.errors) == errors, self.errors

    def flat(self, number: int) -> list[npt.NDArray[np.float32]]:
        """The fragments of one learner."""
        return [
            np.concatenate([self.arrays[number][tensor.name].reshape(-1) for tensor in fragment.tensors])
            for fragment in self.learners[number].layout.fragments
        ]


@pytest.mark.parametrize(
    ("dtype", "streams"),
    [
        ("f32", 0),
        pytest.param("f32", 2, marks=pytest.mark.full),
        pytest.param("bf16", 0, marks=pytest.mark.full),
        ("bf16", 2),
        pytest.param("q4", 0, marks=pytest.mark.full),
        ("q4", 2),
    ],
)
def test_a_whole_run(processes: Processes, tmp_path: Path, dtype: str, streams: int) -> None:
    path = tmp_path / "state.ckpt"
    syncer = processes.syncer("--learners", "2", *QUICK, "--checkpoint-path", str(path))
    fleet = Fleet()
    fleet.start(f"127.0.0.1:{syncer.port}", dtype=dtype, num_streams=streams)
    fleet.join()
    syncer.finished()
    snapshot = read_snapshot(path)
    assert snapshot.global_step == STEPS
    for number in range(2):
        for mine, state in zip(fleet.flat(number), snapshot.fragments, strict=True):
            np.testing.assert_array_equal(mine, state.params)  # f32, bit for bit, in every session
        assert fleet.learners[number].versions == [state.version for state in snapshot.fragments]
        assert fleet.learners[number].rounds_answered >= STEPS - 3
    start = np.concatenate([array.reshape(-1) for array in parameters(0).values()])
    end = np.concatenate([array.reshape(-1) for array in fleet.arrays[0].values()])
    assert np.abs(end - 0.5).mean() < np.abs(start - 0.5).mean()  # between the two targets


def test_a_subscriber_sees_the_whole_run(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    syncer = processes.syncer("--learners", "3", *QUICK, "--observers", "2", "--checkpoint-path", str(path))
    address = f"127.0.0.1:{syncer.port}"
    arrays = parameters(9)
    with Subscriber(
        arrays, address, observer_id=2, num_fragments=3, num_streams=1, session_contract="a test"
    ) as subscriber:
        syncer.stderr.wait_for("learner connected learner=2")
        fleet = Fleet(hold_at=6)
        fleet.start(address)
        seen: list[int] = []
        while not subscriber.done:
            subscriber.update(timeout=1.0)
            seen.append(subscriber.global_step)
            if seen[-1] > 0 or fleet.errors:
                fleet.may_pass.set()
        subscriber.finish(WAIT)
        fleet.join()
    syncer.finished()
    assert seen == sorted(seen)
    assert 0 < seen[-1] <= STEPS
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, fleet.arrays[0][name])


def test_learners_follow_a_syncer_that_is_killed_and_resumes(processes: Processes, tmp_path: Path) -> None:
    flags = [
        "--learners",
        "2",
        *QUICK,
        "--checkpoint-path",
        str(tmp_path / "state.ckpt"),
        "--resume-if-exists",
    ]
    with reserved_port() as port:
        first = processes.syncer_command("--port", str(port), *flags).listening()
        fleet = Fleet(hold_at=4)
        fleet.start(f"127.0.0.1:{port}")
        wait_for(lambda: all(learner.global_step >= 4 for learner in fleet.learners) or bool(fleet.errors))
        first.kill()
        fleet.may_pass.set()
        second = processes.syncer_command("--port", str(port), *flags).listening()
        fleet.join()
        second.finished()
    snapshot = read_snapshot(tmp_path / "state.ckpt")
    for number in range(2):
        for mine, state in zip(fleet.flat(number), snapshot.fragments, strict=True):
            np.testing.assert_array_equal(mine, state.params)


def wait_for(ready: Callable[[], bool]) -> None:
    """For states that have no event of their own."""
    deadline = time.monotonic() + WAIT
    ticker = threading.Event()
    while not ready():
        assert time.monotonic() < deadline, "what must happen did not happen"
        ticker.wait(0.01)


def test_a_layout_that_differs_is_refused_with_the_difference(processes: Processes) -> None:
    syncer = processes.syncer("--learners", "2", *QUICK)
    address = f"127.0.0.1:{syncer.port}"
    good = Fleet()
    good.start(address, count=1)
    syncer.stderr.wait_for("learner connected learner=0")  # whose session it is now
    other = {"embed": np.zeros((50, 9), np.float32)}
    with (
        pytest.raises(SessionRejectedError, match="session mismatch"),
        Learner(other, address, learner_id=1, num_fragments=3, session_contract="a test"),
    ):
        pass
    good.learners[0].client.close()
    good.join(errors=1)
    syncer.kill()
