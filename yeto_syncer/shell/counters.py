"""What is counted while the server runs, by name and labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

Labels = tuple[tuple[str, str], ...]
"""Label names and values, sorted by name."""

NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Counters:
    """Sums that only grow."""

    def __init__(self) -> None:
        self._sums: Counter[tuple[str, Labels]] = Counter()

    def add(self, name: str, labels: Mapping[str, str] = NONE, amount: int = 1) -> None:
        """Add to the sum of this name and these labels."""
        self._sums[name, tuple(sorted(labels.items()))] += amount

    def items(self) -> Iterator[tuple[str, Labels, int]]:
        """Name, labels and sum, in a fixed order."""
        for (name, labels), amount in sorted(self._sums.items()):
            yield name, labels, amount
