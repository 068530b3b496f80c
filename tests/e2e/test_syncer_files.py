"""Files of a run that cannot be written, are held by somebody else, or must survive a kill."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.processes import Processes
from tests.e2e.raw import Raw, Trainer, drive, hello, train
from tests.e2e.test_syncer_run import QUICK, initial, small_layout, tape_records
from yeto_proto._generated.messages import BcastFragment, Error
from yeto_proto.files import read_snapshot
from yeto_proto.layout import build_layout

RUN = ("--learners", "2", "--total-steps", "8", *QUICK)


def error_of(stderr: str) -> str:
    """The one error line of a run that failed."""
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, stderr
    return errors[0]


def test_a_port_that_is_taken_is_one_clear_line(processes: Processes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        syncer = processes.syncer_command(*RUN, "--port", str(port))
        stderr = syncer.finished(1)
        assert stderr.count("\n") == 0
        assert f"127.0.0.1:{port}: Address already in use" in error_of(stderr)
        assert syncer.stdout.text == ""


@pytest.mark.rule("syncer.checkpoint.temp")
@pytest.mark.rule("syncer.checkpoint.lock")
def test_a_second_syncer_on_one_checkpoint_is_refused(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    first = processes.syncer(*RUN, "--checkpoint-path", str(path))
    second = processes.syncer_command(*RUN, "--checkpoint-path", str(path), "--port", "0")
    assert f"process {first.pid} holds the lock {path}.lock" in error_of(second.finished(1))
    first.kill()
    third = processes.syncer(*RUN, "--checkpoint-path", str(path))
    third.kill()


def test_a_fresh_run_warns_before_it_replaces_a_checkpoint(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    path.write_bytes(b"of an earlier run")
    first = processes.syncer(*RUN, "--checkpoint-path", str(path))
    first.kill()
    assert "this run will replace it" in first.stderr.text
    assert path.read_bytes() == b"of an earlier run"


@pytest.mark.rule("syncer.checkpoint.durable_before_visible")
def test_a_per_round_save_that_fails_shows_nothing_of_its_step(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    flags = (
        "--checkpoint-path",
        str(path),
        "--checkpoint-every",
        "1",
        "--event-tape",
        str(tmp_path / "tape"),
    )
    syncer = processes.syncer("--learners", "2", "--total-steps", "1000000", *QUICK, *flags)
    layout = small_layout()
    learners = [Trainer(syncer.port, hello(layout, number), target=1.0) for number in range(2)]
    learners[0].initialize(initial(layout))
    drive(learners, lambda: len(learners[0].answered) >= 1, "training")
    temporary = path.with_name("state.ckpt.tmp")
    blocked: list[bool] = []

    def obstruct() -> bool:
        # A folder in the place of the temporary file makes the next save fail. It can be made between two.
        if not blocked:
            try:
                temporary.mkdir()
                blocked.append(True)
            except FileExistsError:
                pass
        return all(learner.ended for learner in learners)

    drive(learners, obstruct, "the end of both")
    for learner in learners:
        learner.close()
    error = error_of(syncer.finished(1))
    assert "checkpoint" in error and str(path) in error
    saved = read_snapshot(path).global_step
    seen = max(m.version for learner in learners for _, m in learner.seen if isinstance(m, BcastFragment))
    assert seen <= saved
    assert [record["step"] for record in tape_records(tmp_path / "tape")] == list(range(1, saved + 1))


def test_a_background_save_that_fails_ends_the_run_at_the_next_one(
    processes: Processes, tmp_path: Path
) -> None:
    path = tmp_path / "state.ckpt"
    path.with_name("state.ckpt.tmp").mkdir()
    flags = ("--checkpoint-path", str(path), "--checkpoint-every", "2", "--background-checkpoint")
    syncer = processes.syncer("--learners", "2", "--total-steps", "1000000", *QUICK, *flags)
    learners = [Trainer(syncer.port, hello(small_layout(), number), target=1.0) for number in range(2)]
    learners[0].initialize(initial(small_layout()))
    drive(learners, lambda: all(learner.ended for learner in learners), "the end of both")
    for learner in learners:
        learner.close()
    assert str(path) in error_of(syncer.finished(1))
    assert not path.exists()


@pytest.mark.rule("syncer.tape.lines")
def test_a_full_tape_ends_the_run(processes: Processes) -> None:
    syncer = processes.syncer(*RUN, "--event-tape", "/dev/full")
    learners = [Trainer(syncer.port, hello(small_layout(), number), target=1.0) for number in range(2)]
    learners[0].initialize(initial(small_layout()))
    drive(learners, lambda: all(learner.ended for learner in learners), "the end of both")
    for learner in learners:
        learner.close()
    error = error_of(syncer.finished(1))
    assert "No space left on device" in error and "event tape" in error


@pytest.mark.rule("syncer.final_marker.removed")
def test_a_final_state_that_cannot_be_written_ends_the_run_unmarked(
    processes: Processes, tmp_path: Path
) -> None:
    final = tmp_path / "final.bin"
    flags = ("--checkpoint-path", str(tmp_path / "state.ckpt"), "--mark-final-checkpoint")
    syncer = processes.syncer(*RUN, *flags, "--final-state", str(final))
    final.with_name("final.bin.tmp").mkdir()
    learners = [Trainer(syncer.port, hello(small_layout(), number), target=1.0) for number in range(2)]
    learners[0].initialize(initial(small_layout()))
    drive(learners, lambda: all(learner.ended for learner in learners), "the end of both")
    for learner in learners:
        learner.close()
        assert not learner.final
    assert "final state" in error_of(syncer.finished(1))
    assert read_snapshot(tmp_path / "state.ckpt").global_step == 8
    assert not (tmp_path / "state.ckpt.final").exists()


@pytest.mark.rule("syncer.resume.file")
@pytest.mark.parametrize("every", ["1", pytest.param("2", marks=pytest.mark.full)])
def test_a_killed_run_resumes_from_its_checkpoint(processes: Processes, tmp_path: Path, every: str) -> None:
    path, tape = tmp_path / "state.ckpt", tmp_path / "tape.jsonl"
    flags = ("--learners", "2", "--total-steps", "30", *QUICK, "--checkpoint-every", every)
    files = ("--checkpoint-path", str(path), "--event-tape", str(tape), "--resume-if-exists")
    layout = small_layout()
    syncer = processes.syncer(*flags, *files)
    learners = [Trainer(syncer.port, hello(layout, number), target=1.0) for number in range(2)]
    learners[0].initialize(initial(layout))
    drive(learners, lambda: len(learners[0].answered) >= 12, "a dozen answers")
    syncer.kill()
    for learner in learners:
        learner.close()
    saved = read_snapshot(path)
    assert saved.global_step >= 8
    with tape.open("ab") as torn:
        torn.write(b'{"step": 1')
    syncer = processes.syncer(*flags, *files)
    learners = [Trainer(syncer.port, hello(layout, number, generation=2), target=1.0) for number in range(2)]
    train(learners)
    for learner in learners:
        learner.close()
    syncer.finished(0)
    first_cut = {m.fragment_id: m for _, m in reversed(learners[0].seen) if isinstance(m, BcastFragment)}
    for number, fragment in enumerate(saved.fragments):
        assert first_cut[number].version == fragment.version
        assert np.array_equal(np.frombuffer(first_cut[number].tensor, np.float32), fragment.params)
    assert read_snapshot(path).global_step == 30
    lines = tape.read_text().splitlines()
    steps = []
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            assert line == '{"step": 1'
            continue
        if "gnorm" in record:
            steps.append(record["step"])
    assert steps[-(30 - saved.global_step) :] == list(range(saved.global_step + 1, 31))


@pytest.mark.rule("syncer.session.first_match")
@pytest.mark.rule("hello.layout_fingerprint.session")
def test_a_learner_that_does_not_match_the_checkpoint_is_refused_and_the_run_waits(
    processes: Processes, tmp_path: Path
) -> None:
    path = tmp_path / "state.ckpt"
    layout = small_layout()
    flags = ("--learners", "1", "--sync-interval-steps", "0", "--checkpoint-path", str(path))
    syncer = processes.syncer("--total-steps", "2", *flags)
    learner = Trainer(syncer.port, hello(layout, 0), target=1.0)
    learner.initialize(initial(layout))
    train([learner])
    learner.close()
    syncer.finished()
    syncer = processes.syncer("--total-steps", "4", *flags, "--resume")
    other = build_layout({"embed": 300, "other": (40, 20)}, 2)
    for wrong in (hello(other, 0), hello(layout, 0, generation=2, contract=bytes(32))):
        refused = Raw(syncer.port, wrong)
        assert refused.receive(Error).text.startswith("snapshot does not match")
        refused.close()
    right = Trainer(syncer.port, hello(layout, 0, generation=3), target=1.0)
    train([right])
    right.close()
    syncer.finished()
    assert read_snapshot(path).global_step == 4


def test_a_checkpoint_that_does_not_fit_the_settings_is_refused_at_start(
    processes: Processes, tmp_path: Path
) -> None:
    path = tmp_path / "state.ckpt"
    common = ("--learners", "1", "--sync-interval-steps", "0", "--checkpoint-path", str(path), "--port", "0")
    syncer = processes.syncer(*common, "--total-steps", "2")
    learner = Trainer(syncer.port, hello(small_layout(), 0), target=1.0)
    learner.initialize(initial(small_layout()))
    train([learner])
    learner.close()
    syncer.finished()
    for flags, words in (
        (("--total-steps", "1"), "beyond --total-steps 1"),
        (("--total-steps", "8", "--iso-backend", "torch-svd"), "iso backend"),
    ):
        again = processes.syncer_command(*common, *flags, "--resume")
        assert words in error_of(again.finished(1))
        assert again.stdout.text == ""
