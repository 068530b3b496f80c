"""Runs of the real server with `--iso-backend torch-svd`, its workers being numpy ones or scripts."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.processes import Processes, Syncer, alive, wait_until
from tests.e2e.raw import F32, Trainer, drive, hello, train
from tests.e2e.test_syncer_files import error_of
from tests.e2e.test_syncer_run import QUICK, tape_records
from tests.unit.svd_children import numpy_python, script
from yeto_proto._generated.messages import BudgetDone, PullReq
from yeto_proto._generated.types import IsoBackend, MergeMode
from yeto_proto.files import Snapshot, read_snapshot
from yeto_proto.layout import Layout, build_layout

STEPS = 6
TRIES = 3
SLOW_END = "closed its standard output"
"""What is said of a worker whose end takes more than a second; then another one has to show its exit code."""
SIGNALS = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)]
RUN = ("--learners", "2", "--total-steps", str(STEPS), *QUICK)
TENSORS = {
    "a.weight": (24, 10),
    "b.weight": (10, 24),
    "c.weight": (16, 16),
    "d.weight": (1, 40),
    "e.bias": 30,
}


def matrices() -> Layout:
    """Three fragments, the matrices in iso ones."""
    layout = build_layout(TENSORS, 3, matrix_merge="iso")
    modes = {fragment.merge_mode for fragment in layout.fragments}
    assert modes == {MergeMode.ISO, MergeMode.AVG}
    return layout


class Pulled(Trainer):
    """A learner that pulls every fragment towards a matrix of its own, so that all spectra are full."""

    def delta(self, anchor: F32) -> F32:
        goal = np.random.default_rng([int(self.target), anchor.size]).standard_normal(anchor.size)
        return self.rate * (goal.astype(np.float32) - anchor)

    def answer(self, pull: PullReq) -> None:
        with contextlib.suppress(ConnectionError):  # a syncer that fails is gone before its end is read
            super().answer(pull)


def learners(syncer: Syncer, generation: int = 1) -> list[Pulled]:
    layout = matrices()
    made = [
        Pulled(syncer.port, hello(layout, number, generation=generation), target=number)
        for number in range(2)
    ]
    generator = np.random.default_rng(1)
    made[0].initialize([generator.standard_normal(f.numel).astype(np.float32) for f in layout.fragments])
    return made


def svd(python: str, *devices: str) -> list[str]:
    """The flags of the backend."""
    flags = ["--iso-backend", "torch-svd", "--iso-worker-python", python]
    return (
        [*flags, "--iso-worker-devices", ",".join(devices)]
        if devices
        else [*flags, "--iso-worker-device", "cpu"]
    )


def finish(groups: list[Pulled]) -> None:
    """Train to the end and hang up."""
    train(groups)
    for group in groups:
        group.close()


def lost(groups: list[Pulled]) -> None:
    """Serve the learners until the syncer has closed both, and hang up."""
    drive(groups, lambda: all(group.ended for group in groups), "the end of both")
    for group in groups:
        group.close()


def workers(syncer: Syncer) -> list[psutil.Process]:
    return psutil.Process(syncer.pid).children()


def checkpoint(path: Path) -> list[str]:
    return ["--checkpoint-path", str(path), "--mark-final-checkpoint"]


def complete(processes: Processes, folder: Path, *flags: str) -> Snapshot:
    """A whole run; its terminal checkpoint."""
    folder.mkdir()
    path, tape = folder / "state.ckpt", folder / "tape.jsonl"
    syncer = processes.syncer(*RUN, *flags, *checkpoint(path), "--event-tape", str(tape))
    finish(learners(syncer))
    assert "training complete" in syncer.finished()
    assert [record["step"] for record in tape_records(tape)] == list(range(1, STEPS + 1))
    assert path.with_name("state.ckpt.final").exists()
    return read_snapshot(path)


@pytest.mark.rule("iso_worker.pool.drain")
@pytest.mark.parametrize("devices", [pytest.param((), marks=pytest.mark.full), ("cpu:0", "cpu:1")])
def test_both_backends_agree_and_the_checkpoint_says_which_one_it_was(
    processes: Processes, tmp_path: Path, devices: tuple[str, ...]
) -> None:
    scalar = complete(processes, tmp_path / "scalar")
    workers = complete(processes, tmp_path / "svd", *svd(numpy_python(tmp_path), *devices))
    assert (scalar.iso_backend, workers.iso_backend) == (IsoBackend.SCALAR, IsoBackend.TORCH_SVD)
    moved = 0.0
    for one, other in zip(scalar.fragments, workers.fragments, strict=True):
        np.testing.assert_allclose(one.params, other.params, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(one.momentum, other.momentum, rtol=2e-5, atol=2e-5)
        moved = max(moved, float(np.abs(one.momentum).max()))
    assert moved > 0.1


def test_a_checkpoint_continues_under_its_own_backend_alone(processes: Processes, tmp_path: Path) -> None:
    python = numpy_python(tmp_path)
    for number, flags in enumerate(([], svd(python))):
        folder = tmp_path / str(number)
        before = complete(processes, folder, *flags)
        path = folder / "state.ckpt"
        more = ("--learners", "2", "--total-steps", str(STEPS + 3), *QUICK, *checkpoint(path), "--resume")
        other = [] if flags else svd(python)
        refused = processes.syncer_command("--port", "0", *more, *other)
        error = error_of(refused.finished(1))
        assert "iso backend mismatch" in error and str(path) in error
        assert refused.stdout.text == ""
        syncer = processes.syncer(*more, *flags)
        finish(learners(syncer, generation=2))
        syncer.finished()
        after = read_snapshot(path)
        assert (after.global_step, after.iso_backend) == (STEPS + 3, before.iso_backend)


# -- start ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("iso_worker.probe.must")
@pytest.mark.parametrize(
    ("body", "says", "seconds"),
    [
        pytest.param(None, "cannot be started", "600", marks=pytest.mark.full),
        ("raise SystemExit(1)", "SVD worker 0 (cpu): exited with 1", "600"),
        ("hang()", "SVD worker 0 (cpu): was not ready within 1 s", "1"),
    ],
)
def test_a_worker_that_cannot_start_ends_the_syncer_before_it_listens(
    processes: Processes, tmp_path: Path, body: str | None, says: str, seconds: str
) -> None:
    python = str(tmp_path / "nobody") if body is None else script(tmp_path, body)
    port_file = tmp_path / "port"
    flags = (*RUN, "--port", "0", "--port-file", str(port_file), *svd(python))
    error = SLOW_END
    for _ in range(TRIES):
        syncer = processes.syncer_command(*flags, environ={"YETO_ISO_WORKER_STARTUP_TIMEOUT_S": seconds})
        error = error_of(syncer.finished(1))
        if SLOW_END not in error:
            break
    assert says in error and "; --iso-worker-python; " in error
    assert syncer.stdout.text == ""
    assert not port_file.exists()


def test_a_time_that_is_none_is_refused(processes: Processes, tmp_path: Path) -> None:
    environ = {"YETO_ISO_WORKER_DRAIN_TIMEOUT_S": "0"}
    syncer = processes.syncer_command(*RUN, "--port", "0", *svd(numpy_python(tmp_path)), environ=environ)
    assert "YETO_ISO_WORKER_DRAIN_TIMEOUT_S must be" in error_of(syncer.finished(1))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_the_workers_start_leaves_none(
    processes: Processes, tmp_path: Path, number: int
) -> None:
    started = tmp_path / "started"
    body = f"open({str(started)!r}, 'w').close()\nhang()\n"
    syncer = processes.syncer_command(*RUN, "--port", "0", *svd(script(tmp_path, body)))
    wait_until(started.exists, "the start of the worker")
    syncer.signal(number)
    assert syncer.finished(0) == ""


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.rule("iso_worker.pool.poison")
@pytest.mark.rule("iso_worker.pool.drain")
@pytest.mark.parametrize(
    ("body", "says", "seconds"),
    [
        ("read(); hang()", "gave no answer to a matrix of", "1"),
        ("raise SystemExit(3)", "exited with 3", "600"),
        pytest.param(
            "request, _ = read(); answer(request, b'no memory', 6); hang()",
            "answered COMPUTE_ERROR: no memory",
            "600",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_worker_that_fails_ends_the_run_without_a_checkpoint(
    processes: Processes, tmp_path: Path, body: str, says: str, seconds: str
) -> None:
    path = tmp_path / "state.ckpt"
    python = script(tmp_path, f"probe()\n{body}\n")
    flags = (*RUN, *checkpoint(path), "--checkpoint-every", "0", *svd(python))
    error = SLOW_END
    for _ in range(TRIES):
        syncer = processes.syncer(*flags, environ={"YETO_ISO_WORKER_REQUEST_TIMEOUT_S": seconds})
        lost(learners(syncer))
        error = error_of(syncer.finished(1))
        if SLOW_END not in error:
            break
    assert "SVD worker 0 (cpu): " in error and says in error and "restart from the last checkpoint" in error
    assert not path.exists() and not path.with_name("state.ckpt.final").exists()


@pytest.mark.rule("iso_worker.reply.status")
def test_a_result_that_overflows_is_tried_again_and_ends_the_run_after_three(
    processes: Processes, tmp_path: Path
) -> None:
    body = """
        probe()
        while True:
            request, _ = read()
            answer(request, b"too large", Status.NON_FINITE_OUTPUT)
    """
    tape = tmp_path / "tape.jsonl"
    syncer = processes.syncer(*RUN, "--event-tape", str(tape), *svd(script(tmp_path, body)))
    lost(learners(syncer))
    assert "merge not finite 3 times in a row" in error_of(syncer.finished(1))


# -- signals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", SIGNALS)
def test_a_supervisor_may_signal_the_workers_too(processes: Processes, tmp_path: Path, number: int) -> None:
    """The workers go on, so that the rounds in flight can be committed."""
    path = tmp_path / "state.ckpt"
    flags = ("--learners", "2", "--total-steps", "1000000", *QUICK, *checkpoint(path))
    syncer = processes.syncer(*flags, *svd(numpy_python(tmp_path), "cpu:0", "cpu:1"))
    groups = learners(syncer)
    drive(groups, lambda: len(groups[0].answered) >= 4, "four answers")
    for process in workers(syncer):
        process.send_signal(number)
    syncer.signal(number)
    lost(groups)
    syncer.finished(0)
    snapshot = read_snapshot(path)
    assert snapshot.global_step >= 3 and snapshot.iso_backend == IsoBackend.TORCH_SVD


def hung(
    processes: Processes, tmp_path: Path, *flags: str
) -> tuple[Syncer, list[Pulled], list[psutil.Process]]:
    """A run whose only worker never answers its first matrix."""
    asked = tmp_path / "asked"
    body = f"probe()\nread()\nopen({str(asked)!r}, 'w').close()\nhang()\n"
    syncer = processes.syncer(*RUN, *flags, *svd(script(tmp_path, body)))
    children = workers(syncer)
    assert len(children) == 1
    groups = learners(syncer)
    drive(groups, lambda: len(groups[1].answered) >= 1 and len(groups[0].answered) >= 1, "the first answers")
    wait_until(asked.exists, "the first matrix")
    return syncer, groups, children


def test_a_second_signal_does_not_wait_for_a_worker(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    syncer, groups, children = hung(processes, tmp_path, *checkpoint(path))
    syncer.signal(signal.SIGTERM)
    syncer.stderr.wait_for("stopping after the rounds in flight")
    syncer.signal(signal.SIGTERM)
    assert "second signal" in syncer.finished(128 + signal.SIGTERM)
    for group in groups:
        group.close()
    assert not path.exists()
    assert not any(map(alive, children))


@pytest.mark.rule("iso_worker.pool.children")
def test_workers_end_when_the_syncer_is_killed(processes: Processes, tmp_path: Path) -> None:
    syncer = processes.syncer(*RUN, *svd(numpy_python(tmp_path), "cpu:0", "cpu:1"))
    children = workers(syncer)
    assert len(children) == 2
    os.kill(syncer.pid, signal.SIGKILL)
    assert syncer.wait() == -signal.SIGKILL
    wait_until(lambda: not any(map(alive, children)), "the end of the workers")


@pytest.mark.rule("iso_worker.pool.drain")
def test_the_cutoff_waits_for_the_matrix_that_is_running_and_no_longer_than_it_may(
    processes: Processes, tmp_path: Path
) -> None:
    path = tmp_path / "state.ckpt"
    budget = ("--learner-budget-steps", "3", "--checkpoint-path", str(path), "--quorum-timeout-s", "1")
    syncer, groups, children = hung(processes, tmp_path, *budget)
    for group in groups:
        group.send(BudgetDone(3))
    lost(groups)
    assert "did not end within 1 s" in error_of(syncer.finished(1))
    assert not path.exists()
    assert not any(map(alive, children))


@pytest.mark.rule("iso_worker.pool.drain")
def test_the_cutoff_checkpoint_is_written_after_the_drain(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    flags = ("--learners", "2", "--total-steps", "1000000", *QUICK, "--checkpoint-every", "0")
    budget = ("--learner-budget-steps", "3", "--checkpoint-path", str(path))
    syncer = processes.syncer(*flags, *budget, *svd(numpy_python(tmp_path)))
    groups = learners(syncer)
    drive(groups, lambda: all(len(group.answered) >= 3 for group in groups), "three answers of both")
    for group in groups:
        group.send(BudgetDone(3))
    lost(groups)
    assert "learner-budget cutoff complete" in syncer.finished(0)
    assert read_snapshot(path).iso_backend == IsoBackend.TORCH_SVD
    assert not path.with_name("state.ckpt.final").exists()
