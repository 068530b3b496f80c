"""What each learner has contributed, cumulative across restarts."""

from __future__ import annotations

from collections.abc import Mapping

from yeto_proto.files.model import LedgerEntry


class Ledger:
    """Merges, inner steps and tokens per learner id."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[int, LedgerEntry] | None = None) -> None:
        self._entries = {
            learner: [entry.merges, entry.steps, entry.tokens] for learner, entry in (entries or {}).items()
        }

    def charge(self, learner_id: int, steps: int, tokens: int) -> None:
        """One answer of this learner was merged."""
        entry = self._entries.setdefault(learner_id, [0, 0, 0])
        entry[0] += 1
        entry[1] += steps
        entry[2] += tokens

    def snapshot(self) -> dict[int, LedgerEntry]:
        """A copy in ascending id, as a checkpoint holds it."""
        return {
            learner: LedgerEntry(merges, steps, tokens)
            for learner, (merges, steps, tokens) in sorted(self._entries.items())
        }
