"""`yeto-learner demo` as a user runs it: it keeps its promises and never leaves a process behind."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.processes import Processes, Running, alive, wait_until
from yeto_proto.files import read_snapshot, verify_marker
from yeto_proto.layout import Layout

BOUND_S = 400.0
"""For a whole quick run while other tests run beside it; on an idle machine it takes 12 seconds."""

TRIES = 3
"""Of a test that has to do something while the demo trains, and may be held up for longer than that."""


class DemoRun:
    """A demo and its output folder, by which its processes are known."""

    def __init__(self, processes: Processes, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.running: Running = processes.run(
            sys.executable, "-m", "yeto_learner", "demo", "--quick", "--output", str(folder), *flags
        )

    def children(self) -> list[psutil.Process]:
        """Everything that the demo started and that still runs, wherever it hangs in the process tree."""
        return [process for process in psutil.process_iter() if self._is_child(process)]

    def child(self, mark: str) -> psutil.Process:
        """The child whose command line holds `mark`."""
        found = [process for process in self.children() if mark in " ".join(process.cmdline())]
        if not found:
            raise LookupError(mark)
        assert len(found) == 1
        return found[0]

    def ended(self, code: int) -> str:
        """Waits for the end, checks exit code and processes, and returns standard error."""
        assert self.running.wait(BOUND_S) == code, self.running.stderr.text
        wait_until(lambda: not self.children(), "the children's end")
        assert "Traceback" not in self.running.stderr.text
        return self.running.stderr.text

    def _is_child(self, process: psutil.Process) -> bool:
        try:
            return (
                process.pid != self.running.pid
                and alive(process)
                and any(str(self.folder) in part for part in process.cmdline())
            )
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "out"


@pytest.mark.timeout(1500)
def test_a_quick_run_keeps_its_promises(processes: Processes, folder: Path) -> None:
    folder.mkdir()
    (folder / "checkpoint.yeto").write_bytes(b"of an earlier run")
    (folder / "notes.txt").write_text("not the demo's")
    for _ in range(TRIES):
        demo = DemoRun(processes, folder, "--json", "--seed", "3")
        demo.running.wait(BOUND_S)
        if not re.search("when the machine is less busy|nothing moved for", demo.running.stderr.text):
            break
    assert demo.ended(0) == ""
    (line,) = demo.running.stdout.lines
    outcome = json.loads(line)
    assert outcome["ok"] is True
    assert len(outcome["promises"]) == 8
    assert all(promise["kept"] for promise in outcome["promises"])
    loss = outcome["held_out_loss"]
    assert loss["before"] == pytest.approx(np.log(256), abs=0.05)
    assert loss["merged"] < 2 / 3 * loss["before"]
    assert loss["merged"] < loss["alone_on_one_shard"]
    assert 0 < loss["alone_on_all_text"] < loss["alone_on_one_shard"]

    # What the files say, read anew.
    snapshot = read_snapshot(folder / "checkpoint.yeto")
    assert verify_marker(folder / "checkpoint.yeto") == snapshot.global_step == outcome["rounds"] == 96
    layout = Layout.from_json((folder / "layout.json").read_text())
    assert layout.fingerprint() == snapshot.fingerprint
    for learner in range(3):
        with np.load(folder / "parameters" / f"learner-{learner}.npz") as parameters:
            for fragment, state in zip(layout.fragments, snapshot.fragments, strict=True):
                flat = np.concatenate([parameters[tensor.name].reshape(-1) for tensor in fragment.tensors])
                assert flat.tobytes() == state.params.tobytes()
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    rounds = [record for record in records if "gnorm" in record]
    assert [record["step"] for record in rounds] == list(range(1, 97))
    generations = {
        member["generation"] for record in rounds for member in record["responders"] if member["id"] == 1
    }
    assert len(generations) == 2
    killed, back = outcome["killed_after_round"], outcome["returned_in_round"]
    assert killed < back
    assert 1 in rounds[back - 1]["responded"]
    assert 1 not in rounds[back - 2]["responded"]
    assert json.loads((folder / "result.json").read_text()) == outcome
    assert "8 of 8 promises kept" in (folder / "report.html").read_text("utf-8")
    assert (folder / "notes.txt").read_text() == "not the demo's"


PHASES = {
    "syncer": r"starting the syncer",
    "learners": r"starting the learners",
    "training": r"s  training$",
    "return": r"learner 1 started again",
    "alone": r"two learners alone",
}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("phase", "signum", "code"),
    [
        ("syncer", signal.SIGTERM, 143),
        pytest.param("learners", signal.SIGINT, 130, marks=pytest.mark.full),
        ("training", signal.SIGINT, 130),
        pytest.param("training", signal.SIGTERM, 143, marks=pytest.mark.full),
        pytest.param("return", signal.SIGTERM, 143, marks=pytest.mark.full),
        pytest.param("alone", signal.SIGINT, 130, marks=pytest.mark.full),
    ],
)
def test_a_signal_ends_everything(
    phase: str, signum: signal.Signals, code: int, processes: Processes, folder: Path
) -> None:
    for _ in range(TRIES):
        demo = DemoRun(processes, folder)
        demo.running.stdout.wait_for(PHASES[phase], BOUND_S)
        demo.running.signal(signum)
        if demo.running.wait(BOUND_S) == code:  # else it may have been over before the signal came
            break
    assert demo.ended(code) == f"interrupted by {signum.name}"


def test_children_end_when_the_demo_itself_is_killed(processes: Processes, folder: Path) -> None:
    demo = DemoRun(processes, folder)
    demo.running.stdout.wait_for(PHASES["learners"], BOUND_S)
    wait_until(lambda: len(demo.children()) >= 5, "a syncer, three learners and the spare one", BOUND_S)
    demo.running.kill()
    wait_until(lambda: not demo.children(), "the children's end")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (
            '"learner_id": 2',
            r"error: learner-2 ended with exit code -9: .*; .*learner-2\.log; look at this log",
        ),
        pytest.param(
            "yeto_syncer",
            r"error: syncer ended with exit code -9: .*; .*syncer\.log; look at this log",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_process_that_dies_ends_the_demo(
    mark: str, message: str, processes: Processes, folder: Path
) -> None:
    for _ in range(TRIES):
        demo = DemoRun(processes, folder)
        demo.running.stdout.wait_for(PHASES["training"], BOUND_S)
        with suppress(LookupError, psutil.NoSuchProcess):
            demo.child(mark).kill()
        if demo.running.wait(BOUND_S) != 0:  # else it was over before the kill came
            break
    assert re.fullmatch(message, demo.ended(1))


def test_a_port_that_is_taken(processes: Processes, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo = DemoRun(processes, folder, "--port", str(port))
        line = demo.ended(1)
    assert re.fullmatch(rf"error: syncer: cannot listen on [^;\n]+:{port}: [^;\n]+; --port; [^;\n]+", line)


def test_a_folder_that_cannot_be_written(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    demo = DemoRun(processes, tmp_path / "file" / "out")
    reason = "cannot write the output folder: Not a directory"
    assert demo.ended(1) == f"error: {reason}; {demo.folder}; give another --output"


def test_a_disk_without_room(processes: Processes, folder: Path) -> None:
    code = f"""
import resource, sys
from yeto_learner.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.exit(main(["demo", "--output", {str(folder)!r}]))
"""
    running = processes.run(sys.executable, "-c", code)
    assert running.wait() == 1
    assert re.fullmatch(
        r"error: cannot write: File too large; .*out.*; free some space .*", running.stderr.text
    )


def test_a_folder_that_another_demo_is_writing(processes: Processes, folder: Path) -> None:
    folder.mkdir()
    (folder / "checkpoint.yeto").write_bytes(b"of the other run")
    with (folder / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        demo = DemoRun(processes, folder)
        assert "another demo is writing this folder" in demo.ended(1)
    assert (folder / "checkpoint.yeto").read_bytes() == b"of the other run"


def test_a_file_that_cannot_be_replaced(processes: Processes, folder: Path) -> None:
    folder.mkdir()
    (folder / "report.html").mkdir()
    demo = DemoRun(processes, folder)
    assert demo.ended(1).startswith("error: cannot write the output folder: Is a directory")
    assert (folder / "report.html").is_dir()
