"""Fixtures of the tests with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Processes

HERE = Path(__file__).parent
PATIENCE_S = 900
"""Seconds for one test, longer than several of its waits together: which of them took too long is what a
failure should say."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test of this folder its time, unless it asks for another one."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Start processes with this; the test fails if it leaves one running."""
    with Processes() as started:
        yield started
