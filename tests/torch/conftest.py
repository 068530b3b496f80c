"""Tests of the PyTorch side.  All of them are `full`: `make test-full` installs what they need."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.e2e.processes import Processes

# `make test` does without torch, and must be able to collect what it then leaves out.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Start processes with this; the test fails if it leaves one running."""
    with Processes() as started:
        yield started
