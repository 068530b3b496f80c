"""What each learner has contributed, cumulative across restarts."""

from __future__ import annotations

from collections.abc import Mapping

from yeto_proto._generated.files import U64_MAX
from yeto_proto.files.model import LedgerEntry


class Ledger:
    """Merges, inner steps and tokens per learner id."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[int, LedgerEntry] | None = None) -> None:
        self._entries = {
            learner: [entry.merges, entry.steps, entry.tokens] for learner, entry in (entries or {}).items()
        }

    def charge(self, learner_id: int, steps: int, tokens: int) -> None:
        """One answer of this learner was merged.

        A sum stays at the largest number that the file can hold: a learner may claim any number of tokens,
        and must not be able to make a checkpoint impossible.
        """
        entry = self._entries.setdefault(learner_id, [0, 0, 0])
        for place, amount in enumerate((1, steps, tokens)):
            entry[place] = min(entry[place] + amount, U64_MAX)

    def snapshot(self) -> dict[int, LedgerEntry]:
        """A copy in ascending id, as a checkpoint holds it."""
        return {
            learner: LedgerEntry(merges, steps, tokens)
            for learner, (merges, steps, tokens) in sorted(self._entries.items())
        }
