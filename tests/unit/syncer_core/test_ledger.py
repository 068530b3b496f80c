"""The ledger: sums of what each learner claims, whatever it claims."""

from __future__ import annotations

import pytest

from yeto_proto._generated.files import U64_MAX
from yeto_proto.files.model import LedgerEntry
from yeto_syncer.core.ledger import Ledger


def test_it_continues_from_a_checkpoint_in_ascending_id() -> None:
    ledger = Ledger({3: LedgerEntry(2, 48, 96_000)})
    ledger.charge(3, 24, 4_000)
    ledger.charge(0, 10, 0)
    assert list(ledger.snapshot().items()) == [(0, LedgerEntry(1, 10, 0)), (3, LedgerEntry(3, 72, 100_000))]


@pytest.mark.rule("syncer.strays.contained")
def test_no_claim_makes_a_checkpoint_impossible() -> None:
    ledger = Ledger({1: LedgerEntry(U64_MAX, U64_MAX - 1, 5)})
    ledger.charge(1, 2**32 - 1, U64_MAX)
    assert ledger.snapshot() == {1: LedgerEntry(U64_MAX, U64_MAX, U64_MAX)}
