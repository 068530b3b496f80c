"""Tests of the PyTorch side.  All of them are `full`: `make test-full` installs what they need."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator

import pytest

from tests.e2e.processes import Processes

# `make test` does without torch, and must be able to collect what it then leaves out.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Nothing of this folder is in `make test`, and to load torch takes as long as many of its tests."""
    return True if config.getoption("markexpr") == "not full" else None


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Start processes with this; the test fails if it leaves one running."""
    with Processes() as started:
        yield started


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Listen at the SDK's own logger: it stops propagating where nobody on the way prints its lines."""
    logger = logging.getLogger("yeto_learner")
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)
