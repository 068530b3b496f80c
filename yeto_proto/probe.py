"""A HELLO that only asks: `yeto-learner doctor` sends one, and a syncer recognizes it."""

from __future__ import annotations

from typing import Final

__all__ = ["NOBODY"]

NOBODY: Final = 2**32 - 1
"""A learner id that no run has: ids end below the number of learners, which is a u32."""
