"""Fixtures of the tests of foreign implementations."""

from __future__ import annotations

from tests.e2e.conftest import processes

__all__ = ["processes"]
