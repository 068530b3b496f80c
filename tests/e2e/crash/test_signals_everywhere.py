"""SIGTERM and SIGINT in every phase of a run, at places where nothing but luck would send them otherwise, and
to a syncer that is process 1 of its container."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.e2e.crash.rig import PATIENCE_S, Files, join, serve, start
from tests.e2e.processes import Processes, wait_until
from tests.e2e.raw import Trainer, drive, hello
from tests.e2e.test_syncer_run import initial, small_layout
from tests.e2e.test_syncer_stop import stuck
from yeto_proto.files import marker_path, read_snapshot
from yeto_proto.layout import build_layout

pytestmark = pytest.mark.timeout(900)  # many processes, one after the other

TOTAL = 10
ENDLESS = (
    "--total-steps",
    "1000000",
)  # the run is never over before the signal, however late a thread sends it
EACH, LAST = ("--checkpoint-every", "1"), ("--checkpoint-every", "0")
BEHIND = ("--checkpoint-every", "3", "--background-checkpoint", "--checkpoint-on-start")

PHASES = [
    ("handshake", "after Opened", EACH),
    ("handshake of the second", "before HelloReceived:2", EACH),
    ("first write", "checkpoint.half", EACH),
    ("first write behind", "checkpoint.half", BEHIND),
    ("first broadcast", "before Delivered", EACH),
    ("gathering", "after PushFragment:9", EACH),
    ("merge", "before Merged:5", LAST),
    ("commit", "before Save:5", EACH),
    ("writing", "checkpoint.half:5", EACH),
    ("renaming", "checkpoint.renamed:5", EACH),
    ("writing behind", "checkpoint.half:2", BEHIND),
    ("broadcast", "after Deliver:5", EACH),
    ("tape", "before AppendTape:6", LAST),
]
EARLY = ("handshake", "handshake of the second", "first write")
AT_THE_END = [
    "checkpoint.half",
    "marker.synced",
    "final-state.half",
    "before DeliverFinal",
    "before FinalAck",
]


@pytest.mark.rule("syncer.signal.first")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)], ids=["TERM", "INT"]
)
@pytest.mark.parametrize(
    ("phase", "point", "flags"),
    [
        pytest.param(*each, marks=() if each[0] in ("merge", "writing") else (pytest.mark.full,))
        for each in PHASES
    ],
    ids=lambda each: each if isinstance(each, str) and ":" not in each else "",
)
def test_a_signal_stops_it_with_what_is_committed(
    processes: Processes,
    tmp_path: Path,
    phase: str,
    point: str,
    flags: tuple[str, ...],
    number: signal.Signals,
) -> None:
    files = Files(tmp_path)
    crash = f"{point if ':' in point else f'{point}:1'}:{number.name}"
    syncer = start(processes, files, *ENDLESS, *flags, crash=crash)
    serve(syncer)
    said = syncer.finished(0, timeout=PATIENCE_S)
    step = files.check(set())
    # The signal is seen at the next turn of the loop, with whatever else was there to read by then.
    if "stopped before training" in said:
        assert step in (None, 0) and phase in EARLY
    else:
        assert step is not None and f"stopped at step {step}" in said
    assert not marker_path(files.checkpoint).exists() and not files.final_state.exists()

    total = (step or 0) + 5
    again = start(processes, files, "--total-steps", str(total), *flags)
    serve(again, generation=2)
    assert "training complete" in again.finished(0, timeout=PATIENCE_S)
    assert files.check({total}) == total
    assert [entry.merges for entry in read_snapshot(files.checkpoint).ledger.values()] == [total, total]


@pytest.mark.rule("syncer.signal.first")
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(each, marks=() if each == "before FinalAck" else (pytest.mark.full,))
        for each in AT_THE_END
    ],
)
def test_at_the_end_a_signal_changes_nothing(processes: Processes, tmp_path: Path, point: str) -> None:
    files = Files(tmp_path)
    flags = ("--total-steps", str(TOTAL), *LAST)
    syncer = start(processes, files, *flags, crash=f"{point}:1:SIGTERM")
    learners = serve(syncer)
    assert "training complete" in syncer.finished(0, timeout=PATIENCE_S)
    assert all(each.shut_down for each in learners)
    assert files.check({TOTAL}) == TOTAL and marker_path(files.checkpoint).exists()


@pytest.mark.rule("syncer.signal.second")
@pytest.mark.parametrize(
    ("point", "order"),
    [
        ("checkpoint.half:5", "SIGTERM+SIGINT"),
        pytest.param("checkpoint.half:5", "SIGINT+SIGTERM", marks=pytest.mark.full),
        pytest.param("checkpoint.synced:5", "SIGTERM+SIGINT", marks=pytest.mark.full),
    ],
)
def test_two_signals_in_the_middle_of_a_write_leave_the_old_file(
    processes: Processes, tmp_path: Path, point: str, order: str
) -> None:
    files = Files(tmp_path)
    syncer = start(processes, files, *ENDLESS, *EACH, crash=f"{point}:{order}")
    serve(syncer)
    # Which of two pending signals is told first is the kernel's choice.
    assert syncer.wait(PATIENCE_S) in (128 + signal.SIGTERM, 128 + signal.SIGINT), syncer.stderr.text
    assert "second signal" in syncer.stderr.text and "Traceback" not in syncer.stderr.text
    assert files.check(set()) in (3, 4)  # the write that was under way may have come to its end
    again = start(processes, files, "--total-steps", str(TOTAL), *EACH)
    serve(again, generation=2)
    again.finished(0, timeout=PATIENCE_S)
    assert files.check({TOTAL}) == TOTAL


@pytest.mark.rule("syncer.signal.first")
def test_in_the_middle_of_init_it_ends_at_once(processes: Processes, tmp_path: Path) -> None:
    files = Files(tmp_path)
    syncer = start(processes, files, "--total-steps", "9", *EACH, crash="after InitParams:2:SIGTERM")
    layout = small_layout()
    learners = [Trainer(syncer.port, hello(layout, number), target=1.0) for number in range(2)]
    learners[0].initialize(initial(layout)[:2])  # and never the other fragments
    drive(learners, lambda: all(each.ended for each in learners), "the end", PATIENCE_S)
    for each in learners:
        each.close()
    assert "stopped before training" in syncer.finished(0, timeout=PATIENCE_S)
    assert files.check(set()) is None


@pytest.mark.full
def test_a_signal_during_a_merge_on_a_thread(processes: Processes, tmp_path: Path) -> None:
    """Too large to be merged between two events, so that the signal comes while it is merged."""
    files = Files(tmp_path)
    layout = build_layout({"a.weight": (300, 400), "b.weight": (300, 400)}, 2)
    crash = "after Merge:3:SIGTERM"
    syncer = start(processes, files, *ENDLESS, *LAST, crash=crash)
    learners = [Trainer(syncer.port, hello(layout, number), target=1.0) for number in range(2)]
    learners[0].initialize(initial(layout))
    drive(learners, lambda: all(each.ended for each in learners), "the end", PATIENCE_S)
    for each in learners:
        each.close()
    syncer.finished(0, timeout=PATIENCE_S)
    assert (files.check(set()) or 0) >= 3
    assert syncer.stderr.text.count("outer step") == read_snapshot(files.checkpoint).global_step


# -- process 1 -----------------------------------------------------------------------------------------------


def container() -> tuple[str, ...]:
    """A command that runs another as process 1 of a new process namespace."""
    for under in (
        ("unshare", "--pid", "--fork", "--kill-child"),
        ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"),
    ):
        try:
            if subprocess.run([*under, "true"], capture_output=True, check=False).returncode == 0:
                return under
        except FileNotFoundError:
            break
    pytest.skip("this system lets nobody make a process namespace")


def process_one(outer: int) -> psutil.Process:
    """The process that the started one has put into its namespace."""
    found: list[psutil.Process] = []

    def look() -> bool:
        found[:] = psutil.Process(outer).children()
        return bool(found)

    wait_until(look, "a process of its own")
    status = Path(f"/proc/{found[0].pid}/status").read_text()
    (ids,) = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")]
    assert ids[-1] == "1"
    return found[0]


@pytest.mark.rule("syncer.signal.first")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)], ids=["TERM", "INT"]
)
def test_as_process_1_it_stops_gracefully(processes: Processes, tmp_path: Path, number: int) -> None:
    files = Files(tmp_path)
    syncer = start(processes, files, *ENDLESS, *LAST, under=container())
    learners = join(syncer, 1)
    drive(learners, lambda: len(learners[0].answered) >= 6, "answers")
    os.kill(process_one(syncer.pid).pid, number)
    drive(learners, lambda: all(each.ended for each in learners), "the end", PATIENCE_S)
    for each in learners:
        each.close()
    said = syncer.finished(0, timeout=PATIENCE_S)
    assert f"stopped at step {files.check(set())}" in said


@pytest.mark.rule("syncer.signal.second")
def test_as_process_1_the_second_signal_ends_it(processes: Processes, tmp_path: Path) -> None:
    files = Files(tmp_path)
    syncer = start(processes, files, *ENDLESS, *LAST, under=container())
    learners = stuck(syncer)
    inner = process_one(syncer.pid).pid
    os.kill(inner, signal.SIGTERM)
    syncer.stderr.wait_for("stopping after the rounds in flight", PATIENCE_S)
    os.kill(inner, signal.SIGTERM)
    assert "second signal" in syncer.finished(128 + signal.SIGTERM, timeout=PATIENCE_S)
    for each in learners:
        each.close()
    assert not files.checkpoint.exists()
