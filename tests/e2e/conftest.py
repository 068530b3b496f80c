"""Fixtures of the tests with real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.processes import Processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Start processes with this; the test fails if it leaves one running."""
    with Processes() as started:
        yield started
