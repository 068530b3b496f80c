"""Signals in every phase, and the exit codes that follow (D22, D23)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.processes import Processes, Syncer, wait_until
from tests.e2e.raw import Raw, Trainer, drive, hello, train
from tests.e2e.test_syncer_run import QUICK, initial, small_layout, tape_records
from yeto_proto._generated.messages import BcastFragment, FinalManifest, PullReq, Shutdown
from yeto_proto.files import read_snapshot

SIGNALS = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)]
ENDLESS = ("--learners", "2", "--total-steps", "1000000", *QUICK, "--outer-momentum", "0")


def two_trainers(syncer: Syncer) -> list[Trainer]:
    layout = small_layout()
    learners = [Trainer(syncer.port, hello(layout, number, streams=1), target=1.0) for number in range(2)]
    learners[0].initialize(initial(layout))
    return learners


def stuck(syncer: Syncer) -> list[Raw]:
    """Two learners of which one never answers, so that no round can close."""
    layout = small_layout()
    learners: list[Raw] = [
        Trainer(syncer.port, hello(layout, 0), target=1.0),
        Raw(syncer.port, hello(layout, 1)),
    ]
    assert isinstance(learners[0], Trainer)
    learners[0].initialize(initial(layout))
    drive(learners, lambda: any(isinstance(m, PullReq) for m in learners[1].inbox), "a PULL")
    return learners


@pytest.mark.rule("syncer.signal.first")
@pytest.mark.parametrize("number", SIGNALS)
def test_before_training_a_signal_ends_the_process_at_once(processes: Processes, number: int) -> None:
    syncer = processes.syncer(*ENDLESS)
    waiting = Raw(syncer.port, hello(small_layout(), 0))
    syncer.stderr.wait_for("learner connected")
    syncer.signal(number)
    waiting.until_ended()
    waiting.close()
    syncer.finished(0)


LOADING = """
import os, runpy, sys

class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "numpy":
            os.kill(os.getpid(), number)

number = int(sys.argv.pop(1))
sys.meta_path.insert(0, Interrupting)
runpy.run_module("yeto_syncer", run_name="__main__", alter_sys=True)
"""
"""The command, which gets the signal in the middle of its imports."""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_it_starts_is_no_traceback(processes: Processes, number: int, tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    flags = (*ENDLESS, "--port", "0", "--port-file", str(port_file))
    loading = processes.run(sys.executable, "-c", LOADING, str(int(number)), *flags)
    assert loading.wait() == 0
    assert (loading.stdout.text, loading.stderr.text) == ("", "")
    listening = processes.syncer_command(*flags)
    listening.stderr.wait_for("listening")
    listening.signal(number)
    listening.finished(0)
    assert not port_file.exists()


@pytest.mark.rule("syncer.signal.first")
@pytest.mark.parametrize(
    ("number", "every"),
    [
        (signal.SIGTERM, "1"),
        (signal.SIGINT, "3"),
        pytest.param(signal.SIGTERM, "0", marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, "3", marks=pytest.mark.full),
    ],
)
def test_in_training_the_rounds_in_flight_are_committed_and_saved(
    processes: Processes, tmp_path: Path, number: int, every: str
) -> None:
    path, tape = tmp_path / "state.ckpt", tmp_path / "tape.jsonl"
    files = ("--checkpoint-path", str(path), "--event-tape", str(tape), "--mark-final-checkpoint")
    syncer = processes.syncer(*ENDLESS, *files, "--checkpoint-every", every)
    learners = two_trainers(syncer)
    drive(learners, lambda: len(learners[0].answered) >= 10, "ten answers")
    syncer.signal(number)
    drive(learners, lambda: all(learner.ended for learner in learners), "the end of both")
    for learner in learners:
        assert not any(isinstance(message, FinalManifest | Shutdown) for _, message in learner.seen)
        learner.close()
    syncer.finished(0)
    snapshot = read_snapshot(path)
    records = tape_records(tape)
    assert snapshot.global_step == records[-1]["step"] >= 8
    assert not path.with_name("state.ckpt.final").exists()
    versions = dict(enumerate(fragment.version for fragment in snapshot.fragments))
    for learner in learners:
        assert all(learner.anchors[number][0] <= version for number, version in versions.items())


@pytest.mark.rule("syncer.resume.not_compared")
def test_a_stopped_run_continues_at_the_next_step(processes: Processes, tmp_path: Path) -> None:
    path, tape = tmp_path / "state.ckpt", tmp_path / "tape.jsonl"
    flags = (
        "--learners",
        "2",
        *QUICK,
        "--checkpoint-path",
        str(path),
        "--event-tape",
        str(tape),
        "--resume-if-exists",
    )
    syncer = processes.syncer("--total-steps", "1000000", *flags)
    learners = two_trainers(syncer)
    drive(learners, lambda: len(learners[0].answered) >= 10, "ten answers")
    syncer.signal(signal.SIGTERM)
    drive(learners, lambda: all(learner.ended for learner in learners), "the end of both")
    for learner in learners:
        learner.close()
    syncer.finished(0)
    stopped = read_snapshot(path)
    syncer = processes.syncer("--total-steps", str(stopped.global_step + 6), *flags)
    layout = small_layout()
    # INIT is not needed, and does no harm.
    learners = [Trainer(syncer.port, hello(layout, number, generation=2), target=1.0) for number in range(2)]
    learners[0].initialize(initial(layout, seed=2))
    train(learners)
    first_cut = [m for _, m in learners[1].seen if isinstance(m, BcastFragment)][:4]
    for message in first_cut:
        kept = stopped.fragments[message.fragment_id]
        assert message.version == kept.version
        assert np.array_equal(np.frombuffer(message.tensor, np.float32), kept.params)
    for learner in learners:
        learner.close()
    assert f"resumed step={stopped.global_step}" in syncer.finished(0)
    steps = [record["step"] for record in tape_records(tape)]
    assert steps == list(range(1, stopped.global_step + 7))


def test_without_a_checkpoint_path_the_loss_is_said(processes: Processes) -> None:
    syncer = processes.syncer(*ENDLESS)
    learners = two_trainers(syncer)
    drive(learners, lambda: len(learners[0].answered) >= 3, "answers")
    syncer.signal(signal.SIGTERM)
    drive(learners, lambda: all(learner.ended for learner in learners), "the end of both")
    for learner in learners:
        learner.close()
    assert "state of this run is lost" in syncer.finished(0)


def test_rounds_that_cannot_close_are_dropped_after_the_shutdown_timeout(
    processes: Processes, tmp_path: Path
) -> None:
    path = tmp_path / "state.ckpt"
    syncer = processes.syncer(*ENDLESS, "--checkpoint-path", str(path), "--shutdown-timeout-s", "0.5")
    learners = stuck(syncer)
    syncer.signal(signal.SIGTERM)
    drive(learners, lambda: all(learner.ended for learner in learners), "the end of both")
    for learner in learners:
        learner.close()
    syncer.finished(0)
    assert read_snapshot(path).global_step == 0


@pytest.mark.rule("syncer.exit.codes")
@pytest.mark.rule("syncer.signal.second")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_it_without_a_checkpoint(
    processes: Processes, tmp_path: Path, number: int
) -> None:
    path = tmp_path / "state.ckpt"
    syncer = processes.syncer(*ENDLESS, "--checkpoint-path", str(path), "--port-file", str(tmp_path / "port"))
    learners = stuck(syncer)
    syncer.signal(number)
    syncer.stderr.wait_for("stopping after the rounds in flight")
    syncer.signal(number)
    assert "second signal" in syncer.finished(128 + number)
    for learner in learners:
        learner.close()
    assert not path.exists()
    assert not (tmp_path / "port").exists()


def in_finalization(processes: Processes, path: Path, timeout: str) -> tuple[Syncer, Trainer, FinalManifest]:
    """A run whose learner holds the final cut and keeps its ACK back, and which gets a SIGTERM as soon as the
    manifest is out."""
    flags = (
        "--learners",
        "1",
        "--total-steps",
        "0",
        "--checkpoint-path",
        str(path),
        "--mark-final-checkpoint",
    )
    environ = {"YETO_CRASH_AT": "after FinalManifest:1:SIGTERM"}
    syncer = processes.syncer(*flags, "--final-ack-timeout-s", timeout, environ=environ)
    learner = Trainer(syncer.port, hello(small_layout(), 0), target=1.0)
    learner.initialize(initial(small_layout()))
    return syncer, learner, learner_waits_for_manifest(learner)


@pytest.mark.rule("syncer.signal.first")
def test_in_finalization_a_signal_does_not_cut_off_the_acks(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    syncer, learner, manifest = in_finalization(processes, path, "900")
    syncer.stderr.wait_for("stopping")
    learner.manifest = manifest
    train([learner])
    learner.close()
    syncer.finished(0)
    assert path.with_name("state.ckpt.final").exists()


@pytest.mark.rule("syncer.final_marker.removed")
def test_in_finalization_the_timeout_tells_after_a_signal_too(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    syncer, learner, _ = in_finalization(processes, path, "1")
    drive([learner], lambda: learner.ended, "the end")
    assert not learner.shut_down
    learner.close()
    said = syncer.finished(1)
    assert "stopping" in said and "learner 0" in said.rsplit("error: ")[-1]
    assert path.exists() and not path.with_name("state.ckpt.final").exists()


def learner_waits_for_manifest(learner: Trainer) -> FinalManifest:
    """Serve the learner until it holds the manifest, and take that away so that it does not answer."""
    found: list[FinalManifest] = []
    keep = learner.finish

    def hold() -> None:
        if learner.manifest is not None:
            found.append(learner.manifest)
            learner.manifest = None

    learner.finish = hold  # type: ignore[method-assign]  # this learner must not answer
    drive([learner], lambda: bool(found), "the manifest")
    learner.finish = keep  # type: ignore[method-assign]
    return found[0]


def test_the_console_script_is_the_same_program(processes: Processes) -> None:
    script = Path(sys.executable).with_name("yeto-syncer")
    running = processes.run(str(script), "--version")
    assert running.wait() == 0
    assert running.stdout.text.startswith("yeto-syncer ")


def test_it_runs_with_its_standard_streams_closed(processes: Processes, tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "yeto_syncer", *ENDLESS, "--port", "0", "--port-file", str(port_file)]
    running = processes.run("/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command)
    wait_until(lambda: running.process.poll() is not None or port_file.exists(), "the port or the end")
    assert running.process.poll() is None
    for number in range(3):  # none of them has become a socket
        assert Path(f"/proc/{running.pid}/fd/{number}").readlink() == Path("/dev/null")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
