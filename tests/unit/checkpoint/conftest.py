"""Fixtures of the tests of `yeto-checkpoint`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.checkpoint.samples import LAYOUT, Command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Run the command with these arguments."""
    before = signal.getsignal(signal.SIGTERM)
    yield Command(capsys)
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def layout_file(tmp_path: Path) -> Path:
    """The layout of the samples, as a learner writes it."""
    path = tmp_path / "layout.json"
    path.write_text(LAYOUT.to_json())
    return path
