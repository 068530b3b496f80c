"""The snapshot writer: pieces, order of calls, and what the format cannot hold."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from tests.unit.snapshot_samples import CONTRACT, FINGERPRINT, cut, file_bytes
from yeto_proto._generated.errors import (
    BadArgument,
    WrongState,
)
from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import (
    FragmentState,
    LedgerEntry,
    SnapshotHead,
    SnapshotVersion,
    SnapshotWriter,
    Trailer,
    TrailerForm,
)

DATA = file_bytes(cut())


def test_a_fragment_may_be_written_in_pieces() -> None:
    stream = io.BytesIO()
    snapshot = cut()
    writer = SnapshotWriter(stream, snapshot.head)
    with pytest.raises(WrongState):
        writer.write_params(np.zeros(1, np.float32))
    first, second = snapshot.fragments
    writer.begin_fragment(first.version, 3)
    writer.write_params(first.params[:2])
    with pytest.raises(WrongState):
        writer.write_momentum(first.momentum)
    with pytest.raises(WrongState):
        writer.begin_fragment(second.version, 2)
    with pytest.raises(WrongState):
        writer.write_params(first.params)
    writer.write_params(first.params[2:])
    writer.write_momentum(first.momentum)
    with pytest.raises(WrongState, match="1 of 2"):
        writer.finish(snapshot.ledger, snapshot.actual_trailer())
    writer.fragment(second.version, second.params, second.momentum)
    with pytest.raises(WrongState, match="all 2"):
        writer.begin_fragment(1, 1)
    writer.finish(snapshot.ledger, snapshot.actual_trailer())
    assert stream.getvalue() == DATA
    assert writer.offset == len(DATA)


def head(**changes: Any) -> SnapshotHead:
    fields = {
        "version": SnapshotVersion.V3,
        "iso_backend": IsoBackend.SCALAR,
        "fingerprint": FINGERPRINT,
        "global_step": 1,
        "num_fragments": 1,
    }
    return SnapshotHead(**{**fields, **changes})


ONE = np.ones(1, np.float32)
GOOD = Trailer(TrailerForm.CONTRACT, FINGERPRINT, CONTRACT)


def write(
    head: SnapshotHead,
    version: int = 1,
    params: Any = ONE,
    momentum: Any = ONE,
    ledger: dict[int, LedgerEntry] | None = None,
    trailer: Trailer = GOOD,
) -> None:
    writer = SnapshotWriter(io.BytesIO(), head)
    writer.fragment(version, params, momentum)
    writer.finish(ledger or {}, trailer)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"head": head(iso_backend=None)}, "iso_backend"),
        ({"head": head(fingerprint=None)}, "fingerprint"),
        ({"head": head(fingerprint=b"short")}, "fingerprint"),
        ({"head": head(global_step=1 << 64)}, "global_step"),
        ({"head": head(global_step=-1)}, "global_step"),
        ({"head": head(num_fragments=0)}, "fragment_count"),
        ({"head": head(), "version": -1}, "version"),
        ({"head": head(), "params": np.empty(0, np.float32), "momentum": np.empty(0, np.float32)}, "numel"),
        ({"head": head(), "momentum": np.ones(2, np.float32)}, "momentum"),
        ({"head": head(), "params": np.ones(1)}, "params"),
        ({"head": head(), "ledger": {1 << 32: LedgerEntry()}}, "ledger.learner_id"),
        ({"head": head(), "ledger": {1: LedgerEntry(-1)}}, "ledger.merges"),
        ({"head": head(), "ledger": {1: LedgerEntry(0, 1 << 64)}}, "ledger.steps"),
        ({"head": head(), "ledger": {1: LedgerEntry(0, 0, 1 << 64)}}, "ledger.tokens"),
        ({"head": head(), "trailer": Trailer(TrailerForm.CONTRACT, FINGERPRINT)}, "contract"),
        ({"head": head(), "trailer": Trailer(TrailerForm.FINGERPRINT)}, "fingerprint"),
        ({"head": head(), "trailer": Trailer(TrailerForm.FINGERPRINT, CONTRACT)}, "trailer.fingerprint"),
        ({"head": head(), "trailer": Trailer(TrailerForm.SWEEP, FINGERPRINT, CONTRACT)}, "sweep_fragments"),
    ],
)
def test_what_the_format_cannot_hold(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(BadArgument) as caught:
        write(**arguments)
    assert caught.value.field == field


def test_a_strided_array_is_refused() -> None:
    writer = SnapshotWriter(io.BytesIO(), head())
    writer.begin_fragment(1, 2)
    with pytest.raises(BadArgument):
        writer.write_params(np.ones(4, np.float32)[::2])


@pytest.mark.rule("syncer.resume.trailer")
def test_the_default_trailer() -> None:
    assert cut().actual_trailer() == GOOD
    assert cut(contract=None).actual_trailer() == Trailer(TrailerForm.FINGERPRINT, FINGERPRINT)
    assert cut(version=SnapshotVersion.V2).actual_trailer() == Trailer()


def test_states_are_equal_by_their_bits() -> None:
    nan = np.float32([np.nan, 0])
    state = FragmentState(1, nan, nan)
    assert state == FragmentState(1, nan.copy(), nan.copy())
    assert state != FragmentState(2, nan, nan)
    assert state != FragmentState(1, nan, np.float32([np.nan, -0.0]))
    assert state != FragmentState(1, nan[:1], nan)
    assert state != "state"
    assert (state.numel, cut().versions, cut().numels, cut().num_fragments) == (2, [5, 4], [3, 2], 2)
