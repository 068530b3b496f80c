"""`Learner` with a real syncer process that is stopped, or killed with all that it knew, and comes back."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.learner.rig import wait_until
from tests.e2e.processes import Processes, reserved_port
from tests.e2e.test_learner_real_syncer import QUICK, STEPS, Fleet
from yeto_proto.files import read_snapshot

HOLD = 3


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


def run_flags(port: int, path: Path) -> tuple[str, ...]:
    return ("--port", str(port), "--learners", "2", "--checkpoint-path", str(path), *QUICK)


def held(fleet: Fleet) -> None:
    """Both learners have come to the step from which they wait."""
    wait_until(lambda: len(fleet.learners) == 2 and all(each.global_step >= HOLD for each in fleet.learners))


@pytest.mark.parametrize("dtype", ["f32", pytest.param("q4", marks=pytest.mark.full)])
def test_a_syncer_that_died_before_its_first_checkpoint_gets_what_learner_0_knows(
    processes: Processes, tmp_path: Path, caplog: pytest.LogCaptureFixture, dtype: str
) -> None:
    """Nobody touches a learner: the run begins at step 0 again, with the values that it had."""
    caplog.set_level(logging.INFO, logger="yeto_learner")
    path, fleet = tmp_path / "state.ckpt", Fleet(hold_at=HOLD)
    with reserved_port() as port:
        flags = run_flags(port, path)
        late = (*flags, "--checkpoint-every", str(STEPS), "--resume-if-exists")
        first = processes.syncer_command(*late).listening()
        fleet.start(f"127.0.0.1:{port}", dtype=dtype, init_probe_s=0.0)
        held(fleet)
        first.kill()
        assert not path.exists()
        fleet.may_pass.set()
        second = processes.syncer_command(*late).listening()
        fleet.join()
        second.finished(0)
    assert "resumed" not in second.stderr.text
    assert lines(caplog, "in case it has no parameters")
    snapshot = read_snapshot(path)
    assert snapshot.global_step == STEPS
    for number in range(2):
        for values, fragment in zip(fleet.flat(number), snapshot.fragments, strict=True):
            assert np.array_equal(values, fragment.params)


def test_a_syncer_that_waits_with_its_parameters_ignores_them(
    processes: Processes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Learner 0 cannot tell why a syncer says nothing; one that has a checkpoint keeps it."""
    caplog.set_level(logging.INFO, logger="yeto_learner")
    path, fleet = tmp_path / "state.ckpt", Fleet(hold_at=HOLD)
    with reserved_port() as port:
        flags = run_flags(port, path)
        first = processes.syncer_command(*flags).listening()
        fleet.start(f"127.0.0.1:{port}", dtype="f32", init_probe_s=0.0)
        held(fleet)
        first.kill()
        before = read_snapshot(path).global_step
        assert before >= HOLD
        fleet.may_pass.set()
        second = processes.syncer_command(*flags, "--resume").listening()
        fleet.join()
        second.finished(0)
    assert f"training starts step={before}" in second.stderr.text
    assert "parameters initialized" not in second.stderr.text
    assert read_snapshot(path).global_step == STEPS


def test_a_stopped_syncer_is_one_line_and_its_learners_come_back(
    processes: Processes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="yeto_learner")
    path, fleet = tmp_path / "state.ckpt", Fleet(hold_at=HOLD)
    with reserved_port() as port:
        flags = run_flags(port, path)
        restart = (*flags, "--resume-if-exists", "--shutdown-timeout-s", "1")
        first = processes.syncer_command(*restart).listening()
        address = f"127.0.0.1:{port}"
        fleet.start(address, dtype="f32")
        held(fleet)
        first.signal(signal.SIGTERM)
        first.finished(0)
        closed = f"the syncer at {address} closed the connection"
        wait_until(lambda: len(lines(caplog, closed)) == 2)
        fleet.may_pass.set()
        second = processes.syncer_command(*restart).listening()
        fleet.join()
        second.finished(0)
    wait_until(lambda: len(lines(caplog, f"connected again to {address} after ")) == 2)
    assert lines(caplog, closed) == [f"{closed}; it is dialled again until it is back"] * 2
    assert len(lines(caplog, f"no syncer at {address} yet")) <= 2
    assert not lines(caplog, "is lost")
    assert read_snapshot(path).global_step == STEPS
