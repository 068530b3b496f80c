"""A short soak: `make soak` is the long one."""

from __future__ import annotations

import pytest

from tests.soak.run import soak


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_nothing_grows_and_nothing_breaks_under_hostile_load() -> None:
    assert soak(rounds=1000, every=20, seed=1) == []
