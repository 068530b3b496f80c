"""How a part of the coordinator says that the run cannot go on."""

from __future__ import annotations


class RunError(Exception):
    """The run ends with exit 1. The text reads `what; where; what to do`. Never leaves the coordinator."""
