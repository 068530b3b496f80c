"""Disks that are full or read-only, files that are damaged, and runs in two halves: with the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.e2e.crash.rig import PATIENCE_S, Files, join, serve, start
from tests.e2e.processes import Processes
from tests.e2e.raw import drive
from yeto_proto._generated.files import FRAGMENT, LEDGER_ENTRY
from yeto_proto._generated.messages import Error
from yeto_proto._generated.types import Dtype
from yeto_proto.files import TrailerForm, marker_path, read_snapshot

pytestmark = pytest.mark.timeout(900)  # many processes, one after the other

BEFORE, TOTAL = 4, 12
# Blocks of 512 bytes, or of 1024. Bytecode that the limit has cut would break every later import.
SMALL_FILES = ("/bin/sh", "-c", 'export PYTHONDONTWRITEBYTECODE=1; ulimit -f 8; exec "$@"', "sh")
NO_OVERRIDE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Takes from root what lets it write where nobody may."""

WRITES = {
    "per-round": ("--checkpoint-every", "1"),
    "periodic": ("--checkpoint-every", "3"),
    "behind": ("--checkpoint-every", "3", "--background-checkpoint"),
    "terminal": ("--checkpoint-every", "0"),
}


def error_of(stderr: str) -> str:
    """The one error line of a run that failed."""
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in stderr, stderr
    return errors[0]


@pytest.fixture
def finished(processes: Processes, tmp_path: Path) -> Files:
    """The files of a whole run of BEFORE steps, in a folder of their own."""
    folder = tmp_path / "run"
    folder.mkdir()
    files = Files(folder, taped=False)
    syncer = start(processes, files, "--total-steps", str(BEFORE), "--checkpoint-every", "0")
    serve(syncer)
    syncer.finished(0, timeout=PATIENCE_S)
    assert files.check({BEFORE}) == BEFORE
    return files


# -- no room, no right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["per-round", *(pytest.param(each, marks=pytest.mark.full) for each in [*WRITES][1:])]
)
def test_a_full_disk_is_named_and_leaves_the_old_file(
    processes: Processes, finished: Files, kind: str
) -> None:
    """The limit of a file's size stands in for a full disk: the same error in the same calls."""
    old = finished.checkpoint.read_bytes()
    assert len(old) > 8 * 1024
    flags = ("--total-steps", str(TOTAL), *WRITES[kind])
    syncer = start(processes, finished, *flags, under=SMALL_FILES)
    serve(syncer, generation=2)
    error = error_of(syncer.finished(1, timeout=PATIENCE_S))
    assert "File too large" in error and str(finished.checkpoint) in error and "checkpoint" in error
    assert finished.checkpoint.read_bytes() == old
    assert not marker_path(finished.checkpoint).exists()  # the run had gone on
    assert not list(finished.folder.glob("*.tmp"))
    syncer = start(processes, finished, "--total-steps", str(TOTAL))
    serve(syncer, generation=3)
    syncer.finished(0, timeout=PATIENCE_S)
    assert finished.check({TOTAL}) == TOTAL


@pytest.mark.parametrize("kind", ["per-round", "terminal"])
@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount; the limit above needs nobody's leave")
def test_a_full_tmpfs(processes: Processes, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this container may not mount")
    try:
        files = Files(folder, taped=False)
        syncer = start(processes, files, "--total-steps", str(BEFORE), "--checkpoint-every", "0")
        serve(syncer)
        syncer.finished(0, timeout=PATIENCE_S)
        old = files.checkpoint.read_bytes()
        room = os.statvfs(folder)
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(max(0, room.f_bavail * room.f_bsize - 4096)))
        syncer = start(processes, files, "--total-steps", str(TOTAL), *WRITES[kind])
        serve(syncer, generation=2)
        assert "No space left on device" in error_of(syncer.finished(1, timeout=PATIENCE_S))
        assert files.checkpoint.read_bytes() == old and not list(folder.glob("*.tmp"))
        ballast.unlink()
        syncer = start(processes, files, "--total-steps", str(TOTAL), *WRITES[kind])
        serve(syncer, generation=3)
        syncer.finished(0, timeout=PATIENCE_S)
        assert files.check({TOTAL}) == TOTAL
    finally:
        processes.end()
        subprocess.run(["umount", str(folder)], check=True)


def test_a_folder_that_becomes_read_only(processes: Processes, finished: Files) -> None:
    under = NO_OVERRIDE if os.geteuid() == 0 else ()
    old = finished.checkpoint.read_bytes()
    # The marker's removal is the first thing that needs the folder; without it that is a checkpoint.
    marker_path(finished.checkpoint).unlink()
    syncer = start(processes, finished, "--total-steps", str(TOTAL), *WRITES["per-round"], under=under)
    finished.folder.chmod(0o555)
    try:
        serve(syncer, generation=2)
        error = error_of(syncer.finished(1, timeout=PATIENCE_S))
        assert "Permission denied" in error and str(finished.checkpoint) in error
        assert finished.checkpoint.read_bytes() == old
        # And at the start, before anybody has connected.
        flags = ("--port", "0", "--learners", "2", *finished.flags(), "--total-steps", str(TOTAL))
        again = processes.syncer_command(*flags, under=under)
        assert f"the folder {finished.folder} cannot be written" in error_of(again.finished(1))
    finally:
        finished.folder.chmod(0o755)


@pytest.mark.full
def test_a_folder_that_is_moved_away(processes: Processes, finished: Files) -> None:
    """Whatever right somebody has, there is no writing into a file as if it were a folder."""
    old = finished.checkpoint.read_bytes()
    marker_path(finished.checkpoint).unlink()
    syncer = start(processes, finished, "--total-steps", str(TOTAL), *WRITES["per-round"])
    away = finished.folder.with_name("away")
    finished.folder.rename(away)
    finished.folder.write_text("in the way")
    serve(syncer, generation=2)
    assert "Not a directory" in error_of(syncer.finished(1, timeout=PATIENCE_S))
    assert (away / "state.ckpt").read_bytes() == old


# -- damage --------------------------------------------------------------------------------------------------

RESUMED = """
import sys
from yeto_syncer.cli import main
for path in sys.argv[1:]:
    print(path, flush=True)
    code = main(
        ["--learners", "2", "--total-steps", "99", "--port", "0", "--resume", "--checkpoint-path", path]
    )
    print("code", code, flush=True)
"""


def refusals(paths: list[Path]) -> list[str]:
    """The error with which the command refuses to continue from each file; it must refuse all."""
    before = [path.read_bytes() for path in paths]
    done = subprocess.run(
        [sys.executable, "-c", RESUMED, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout.splitlines() == [line for path in paths for line in (str(path), "code 1")]
    errors = done.stderr.splitlines()
    assert len(errors) == len(paths), done.stderr
    for path, content, error in zip(paths, before, errors, strict=True):
        assert error.startswith(f"error: cannot continue from {path}: "), error
        assert path.read_bytes() == content
    return errors


@pytest.mark.rule("snapshot.complete")
def test_a_checkpoint_cut_at_every_sixteenth_is_never_continued(finished: Files) -> None:
    whole = finished.checkpoint.read_bytes()
    paths = []
    for part in range(16):
        path = finished.folder / f"cut{part}.ckpt"
        path.write_bytes(whole[: len(whole) * part // 16])
        paths.append(path)
    for error in refusals(paths):
        assert "truncated" in error and " at byte " in error and "snapshot.complete" in error


def fields(data: bytes, numels: list[int], learners: int) -> Iterator[tuple[str, int, int, str]]:
    """Name, byte, bit, and the words of the refusal, for a field of each sort."""
    yield "magic", 0, 0, "snapshot.magic.must"
    yield "magic of another version", 3, 0, "snapshot.magic.must"
    yield "another backend", 4, 0, "snapshot.iso_backend.resume"
    yield "no backend", 4, 5, "snapshot.iso_backend.must"
    yield "fingerprint", 5, 0, "snapshot.trailer.must"
    yield "end of fingerprint", 36, 7, "snapshot.trailer.must"
    yield "global step", 37, 0, "snapshot.version.contiguous"
    yield "high global step", 44, 0, "beyond --total-steps|snapshot.version.contiguous"
    yield "fragment count", 45, 0, "snapshot."
    yield "high fragment count", 48, 6, "snapshot.complete"
    at = 49
    for number, numel in enumerate(numels):
        yield f"version {number}", at, number, "snapshot.version.contiguous"
        yield f"numel {number}", at + 8, 0, "snapshot."
        yield f"high numel {number}", at + 15, 7, "snapshot.complete"
        at += FRAGMENT.sizeof() + 8 * numel
    yield "ledger count", at, 0, "snapshot."
    yield "high ledger count", at + 3, 7, "snapshot.complete"
    yield "learner id", at + 4 + LEDGER_ENTRY.itemsize, 0, "snapshot.ledger.unique"
    at += 4 + learners * LEDGER_ENTRY.itemsize
    yield "fingerprint of the trailer", at, 0, "snapshot.trailer.must"
    yield "tag", at + 32, 0, "snapshot.trailer.must"
    assert at + TrailerForm.CONTRACT == len(data)


def test_one_flipped_bit_in_each_field_is_refused_by_name(finished: Files) -> None:
    whole = finished.checkpoint.read_bytes()
    state = read_snapshot(finished.checkpoint)
    flips = list(fields(whole, state.numels, len(state.ledger)))
    paths = []
    for place, (_, byte, bit, _) in enumerate(flips):
        data = bytearray(whole)
        data[byte] ^= 1 << bit
        path = finished.folder / f"flip{place}.ckpt"
        path.write_bytes(data)
        paths.append(path)
    for (name, _, _, words), error in zip(flips, refusals(paths), strict=True):
        assert any(word in error for word in words.split("|")), (name, error)


@pytest.mark.full
def test_a_flipped_contract_is_refused_to_the_first_learner(processes: Processes, finished: Files) -> None:
    """Only a HELLO can tell; the process goes on, for another run might be the right one."""
    data = bytearray(finished.checkpoint.read_bytes())
    data[-1] ^= 1
    finished.checkpoint.write_bytes(data)
    syncer = start(processes, finished, "--total-steps", str(TOTAL))
    (learner, other) = join_refused(syncer.port)
    assert "another session contract" in learner and "another session contract" in other
    syncer.signal(signal.SIGTERM)
    syncer.finished(0)
    assert finished.checkpoint.read_bytes() == bytes(data)


def join_refused(port: int) -> list[str]:
    """What two learners are told."""
    from tests.e2e.raw import Raw, hello
    from tests.e2e.test_syncer_run import small_layout

    texts = []
    for number in range(2):
        learner = Raw(port, hello(small_layout(), number))
        texts.append(learner.receive(Error).text)
        learner.close()
    return texts


# -- two halves ----------------------------------------------------------------------------------------------


@pytest.mark.rule("syncer.resume.file")
@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ("finished", Dtype.F32),
        *(
            pytest.param(how, dtype, marks=pytest.mark.full)
            for how, dtype in product(("finished", "stopped"), (Dtype.F32, Dtype.BF16, Dtype.Q4))
            if (how, dtype) != ("finished", Dtype.F32)
        ),
    ],
    ids=lambda each: each.name if isinstance(each, Dtype) else each,
)
def test_two_halves_make_the_whole_run_bit_for_bit(
    processes: Processes, tmp_path: Path, dtype: Dtype, how: str
) -> None:
    straight, halves = Files(tmp_path / "straight"), Files(tmp_path / "halves")
    for files in (straight, halves):
        files.folder.mkdir()
    syncer = start(processes, straight, "--total-steps", str(TOTAL), "--checkpoint-every", "5")
    serve(syncer, dtype=dtype)
    syncer.finished(0, timeout=PATIENCE_S)

    if how == "finished":
        syncer = start(processes, halves, "--total-steps", str(TOTAL // 2))
        serve(syncer, dtype=dtype)
    else:
        syncer = start(processes, halves, "--total-steps", str(TOTAL), "--min-round-interval-ms", "50")
        learners = join(syncer, 1, dtype)
        drive(learners, lambda: len(learners[0].answered) >= TOTAL // 2, "half of the answers")
        syncer.signal(signal.SIGTERM)
        drive(learners, lambda: all(each.ended or each.shut_down for each in learners), "an end")
        for each in learners:
            each.close()
    syncer.finished(0, timeout=PATIENCE_S)
    first = read_snapshot(halves.checkpoint)
    assert how == "stopped" or first.global_step == TOTAL // 2
    assert 0 < first.global_step <= TOTAL
    syncer = start(processes, halves, "--total-steps", str(TOTAL))
    serve(syncer, generation=2, dtype=dtype)
    syncer.finished(0, timeout=PATIENCE_S)

    assert halves.checkpoint.read_bytes() == straight.checkpoint.read_bytes()
    assert halves.final_state.read_bytes() == straight.final_state.read_bytes()
    state = read_snapshot(halves.checkpoint)
    assert any(fragment.momentum.any() for fragment in state.fragments)
    assert [entry.merges for entry in state.ledger.values()] == [TOTAL, TOTAL]
    records = [json.loads(line) for line in halves.tape.read_text().splitlines()]
    assert [record["step"] for record in records if "gnorm" in record] == list(range(1, TOTAL + 1))
