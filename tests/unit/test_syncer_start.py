"""What a syncer opens and reads before it listens."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from tests.unit.snapshot_samples import cut
from yeto_learner.arguments import parse_key
from yeto_proto.files import write_snapshot
from yeto_syncer.cli import build_parser, configuration
from yeto_syncer.shell import start
from yeto_syncer.shell.logs import Log
from yeto_syncer.shell.resolve import Resolved, resolve
from yeto_syncer.shell.run import Process


def settings_of(*flags: str) -> Resolved:
    given = vars(build_parser().parse_args(["--learners", "1", "--total-steps", "9", "--port", "0", *flags]))
    given = {name: value for name, value in given.items() if not name.startswith("print_")}
    return resolve(given, {}, {}, "")


@pytest.mark.parametrize(
    ("written", "key"),
    [
        (b"secret", b"secret"),
        (b"secret\n", b"secret"),
        (b"secret\r\n", b"secret"),
        (b"secret\n\n", b"secret\n"),
        (b"secret\r", b"secret\r"),
        (b"\x00\r\n\r\n", b"\x00\r\n"),
    ],
)
def test_syncer_and_learner_read_the_same_key(written: bytes, key: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.key"
    path.write_bytes(written)
    assert start.read_key(settings_of("--island-hmac-key-file", str(path)), {}) == key == parse_key(path)


def test_a_key_of_a_newline_alone_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "run.key"
    path.write_bytes(b"\n")
    with pytest.raises(start.StartError, match="is empty"):
        start.read_key(settings_of("--island-hmac-key-file", str(path)), {})


def test_a_checkpoint_that_was_loaded_is_held_by_the_core_alone(tmp_path: Path) -> None:
    """Else it stays in memory for the life of the process, beside what replaces it."""
    path = tmp_path / "run.ckpt"
    write_snapshot(path, cut())
    settings = settings_of("--checkpoint-path", str(path), "--resume")
    log = Log(io.StringIO(), "human", "error")
    with contextlib.ExitStack() as stack:
        prepared = start.prepare(configuration(settings), settings, {}, log, stack)
        assert prepared.resumed is not None
        process = Process(configuration(settings), settings, prepared, log)
        stack.callback(process.close)
        assert prepared.resumed is None


def test_whether_there_is_a_checkpoint_is_asked_behind_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever held the lock may have written its first checkpoint a moment ago."""
    path = tmp_path / "run.ckpt"
    lock = start._lock

    def written_meanwhile(checkpoint: Path, stack: contextlib.ExitStack) -> None:
        write_snapshot(checkpoint, cut())
        lock(checkpoint, stack)

    monkeypatch.setattr(start, "_lock", written_meanwhile)
    settings = settings_of("--checkpoint-path", str(path), "--resume-if-exists")
    with contextlib.ExitStack() as stack:
        prepared = start.prepare(
            configuration(settings), settings, {}, Log(io.StringIO(), "human", "error"), stack
        )
        assert prepared.resumed is not None and prepared.resumed.global_step == 5
