"""The resume record as a file."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from yeto_learner.core.boundary import RecordedFragment
from yeto_learner.record import ResumeRecord, SavedAnchor, read_record, write_record
from yeto_proto._generated.types import Dtype

RECORD = ResumeRecord(
    steps=12,
    tokens=480,
    global_step=7,
    fragments=(RecordedFragment(5, 3, 120, True, 7), None),
    fingerprint=bytes(range(32)),
    anchors={0: SavedAnchor(Dtype.BF16, np.arange(8, dtype=np.uint8))},
)


def test_a_record_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sync.npz"
    write_record(path, RECORD)
    back = read_record(path)
    assert (back.steps, back.tokens, back.global_step) == (12, 480, 7)
    assert (back.fragments, back.fingerprint) == (RECORD.fragments, RECORD.fingerprint)
    assert back.anchors[0].dtype is Dtype.BF16
    np.testing.assert_array_equal(back.anchors[0].data, RECORD.anchors[0].data)
    assert [entry.name for entry in tmp_path.iterdir()] == ["sync.npz"]


def test_a_record_replaces_the_older_one_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "sync.npz"
    write_record(path, RECORD)
    write_record(path, ResumeRecord(1, 2, 0, (None,), None))
    back = read_record(path)
    assert (back.steps, back.fragments, back.fingerprint, back.anchors) == (1, (None,), None, {})


def test_a_missing_record_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "none.npz")


@pytest.mark.parametrize("content", [b"", b"not a record", b"PK\x03\x04broken"])
def test_another_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sync.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"sync\.npz is not a resume record"):
        read_record(path)


@pytest.mark.parametrize("meta", [{}, {"record_version": 99}, {"record_version": 1, "steps": 1}])
def test_a_record_with_another_content_is_refused(tmp_path: Path, meta: dict[str, int]) -> None:
    path = tmp_path / "sync.npz"
    np.savez(path, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8))
    with pytest.raises(ValueError, match="is not a resume record"):
        read_record(path)


def test_a_failed_write_leaves_the_old_record_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.npz"
    write_record(path, RECORD)
    before = path.read_bytes()

    def full(stream: BinaryIO, **arrays: object) -> None:
        stream.write(b"the beginning")
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="no space left"):
        write_record(path, RECORD)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
