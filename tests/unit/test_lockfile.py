"""The lock of a checkpoint path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from yeto_syncer.shell.lockfile import LockFile, LockHeldError

HOLDER = """
import sys
from yeto_syncer.shell.lockfile import LockFile
with LockFile(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_holder_at_a_time_and_named(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    with LockFile(path) as first:
        assert first.path == tmp_path / "state.ckpt.lock"
        first.acquire()  # holding it already is fine
        with pytest.raises(LockHeldError) as caught:
            LockFile(path).acquire()
        assert caught.value.pid == os.getpid()
        assert str(first.path) in str(caught.value)
        assert str(os.getpid()) in str(caught.value)
        assert caught.value.strerror == f"process {os.getpid()} holds the lock {first.path}"
    with LockFile(path):
        pass
    first.release()  # not held: nothing happens
    assert first.path.read_bytes() == b""


def test_a_holder_that_has_not_written_its_number(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    with LockFile(path) as held:
        held.path.write_bytes(b"")
        with pytest.raises(LockHeldError, match="another process"):
            LockFile(path).acquire()


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockHeldError) as caught:
            LockFile(path).acquire()
        assert caught.value.pid == holder.pid
        holder.kill()
        holder.wait()
        with LockFile(path):
            pass


def test_a_path_that_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LockFile(tmp_path / "none" / "state.ckpt").acquire()
