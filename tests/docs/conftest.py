"""Fixtures of the documentation's tests."""

from __future__ import annotations

from tests.e2e.conftest import processes

__all__ = ["processes"]
