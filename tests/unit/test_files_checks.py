"""What a snapshot must satisfy before a run resumes from it: each rule alone, and their order."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.snapshot_samples import CONTRACT, FINGERPRINT, cut, file_bytes, layout
from yeto_proto import files
from yeto_proto._generated.errors import (
    BackendMismatch,
    BackendUnknown,
    BadTrailer,
    DuplicateLedger,
    GroupedLegacySnapshot,
    NotContiguous,
    SnapshotMismatch,
    Truncated,
    YetoError,
)
from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import Snapshot, SnapshotVersion, Trailer, TrailerForm

OTHER = bytes(32)
LAYOUT = layout((2, 1), (2,))  # fits cut(): fragments of 3 and 2 values
SINGLE = layout((3,), (2,))
V2 = SnapshotVersion.V2


def trailer(form: TrailerForm, fingerprint: bytes = FINGERPRINT, contract: bytes | None = None) -> Trailer:
    sweep = 2 if form in (TrailerForm.SWEEP, TrailerForm.SWEEP_WITHOUT_CONTRACT) else None
    return Trailer(form, fingerprint if form else None, contract, sweep)


SWEEP_WITHOUT_CONTRACT = cut(trailer=trailer(TrailerForm.SWEEP_WITHOUT_CONTRACT), contract=None)
# Not with a contract: V2 proves its layout with the fingerprint at most.
V2_WITH_FINGERPRINT = cut(version=V2, trailer=trailer(TrailerForm.FINGERPRINT), contract=None)


def load(snapshot: Snapshot, **session: Any) -> Snapshot:
    return files.load_for_resume(io.BytesIO(file_bytes(snapshot)), IsoBackend.SCALAR, **session)


HELLO_RULES = {
    "fingerprint": "snapshot.fingerprint.session",
    "num_fragments": "snapshot.fragment_count.session",
    "numel": "snapshot.numel.session",
    "contract": "snapshot.contract.session",
    "fragments": "snapshot.layout.grouped",
}
SESSION = {"layout": LAYOUT, "fingerprint": FINGERPRINT, "contract": CONTRACT}


@pytest.mark.rule("snapshot.magic.resume")
@pytest.mark.rule("snapshot.iso_backend.resume")
@pytest.mark.rule("snapshot.fingerprint.session")
@pytest.mark.rule("snapshot.fragment_count.session")
@pytest.mark.rule("snapshot.numel.session")
@pytest.mark.rule("snapshot.trailer.resume")
@pytest.mark.rule("snapshot.contract.session")
@pytest.mark.rule("snapshot.layout.grouped")
@pytest.mark.rule("snapshot.version.contiguous")
@pytest.mark.parametrize(
    ("snapshot", "session"),
    [
        (cut(), SESSION),
        (cut(trailer=trailer(TrailerForm.FINGERPRINT), contract=None), {**SESSION, "contract": FINGERPRINT}),
        (cut(trailer=Trailer(), contract=None), {**SESSION, "contract": FINGERPRINT}),
        (cut(0), SESSION),
        (cut(2**63), SESSION),
        (cut(version=V2), {**SESSION, "layout": SINGLE}),
        (
            V2_WITH_FINGERPRINT,
            {**SESSION, "layout": SINGLE},
        ),
    ],
)
def test_what_resumes(snapshot: Snapshot, session: dict[str, Any]) -> None:
    loaded = load(snapshot, **session)
    assert loaded.fragments == snapshot.fragments
    # The same in two steps, as a syncer does it: at start, then for a HELLO.
    loaded = load(snapshot)
    files.check_file(loaded, IsoBackend.SCALAR)
    files.check_session(loaded, *session.values())


def at_start(snapshot: Snapshot) -> None:
    load(snapshot)


def at_hello(snapshot: Snapshot, **changes: Any) -> None:
    loaded = load(snapshot)
    files.check_session(loaded, *{**SESSION, **changes}.values())


@pytest.mark.rule("snapshot.magic.resume")
@pytest.mark.rule("snapshot.iso_backend.resume")
@pytest.mark.rule("snapshot.trailer.resume")
@pytest.mark.rule("snapshot.version.contiguous")
@pytest.mark.parametrize(
    ("snapshot", "rule", "error", "words"),
    [
        (cut(version=SnapshotVersion.V1), "snapshot.magic.resume", BackendUnknown, "V1"),
        (
            replace(cut(), iso_backend=IsoBackend.TORCH_SVD),
            "snapshot.iso_backend.resume",
            BackendMismatch,
            "torch-svd",
        ),
        (
            cut(trailer=trailer(TrailerForm.SWEEP, contract=CONTRACT)),
            "snapshot.trailer.resume",
            BadTrailer,
            "policy sweep of 2",
        ),
        (SWEEP_WITHOUT_CONTRACT, "snapshot.trailer.resume", BadTrailer, "policy sweep"),
        (replace(cut(), global_step=4), "snapshot.version.contiguous", NotContiguous, "fragment 0"),
        (replace(cut(), global_step=6), "snapshot.version.contiguous", NotContiguous, "fragment 1"),
        (
            replace(cut(), fragments=cut(3).fragments[:1] + cut().fragments[1:]),
            "snapshot.version.contiguous",
            NotContiguous,
            "fragment 0",
        ),
    ],
)
@pytest.mark.rule("syncer.sweep.files")
def test_what_is_refused_at_start(snapshot: Snapshot, rule: str, error: type[YetoError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        at_start(snapshot)
    assert caught.value.rule == rule
    with pytest.raises(error):
        files.check_file(snapshot, IsoBackend.SCALAR)


@pytest.mark.rule("snapshot.fingerprint.session")
@pytest.mark.rule("snapshot.fragment_count.session")
@pytest.mark.rule("snapshot.numel.session")
@pytest.mark.rule("snapshot.contract.session")
@pytest.mark.rule("snapshot.layout.grouped")
@pytest.mark.parametrize(
    ("snapshot", "changes", "error", "field"),
    [
        (cut(), {"fingerprint": OTHER}, SnapshotMismatch, "fingerprint"),
        (cut(), {"layout": layout((3,))}, SnapshotMismatch, "num_fragments"),
        (cut(), {"layout": layout((3,), (2,), (1,))}, SnapshotMismatch, "num_fragments"),
        (cut(), {"layout": layout((2,), (2,))}, SnapshotMismatch, "numel"),
        (cut(), {"layout": layout((3,), (3,))}, SnapshotMismatch, "numel"),
        (cut(), {"contract": OTHER}, SnapshotMismatch, "contract"),
        (cut(), {"contract": FINGERPRINT}, SnapshotMismatch, "contract"),
        (cut(contract=None), {}, SnapshotMismatch, "contract"),
        (cut(version=V2), {}, GroupedLegacySnapshot, "fragments"),
        (
            V2_WITH_FINGERPRINT,
            {},
            GroupedLegacySnapshot,
            "fragments",
        ),
        (
            cut(version=V2, trailer=trailer(TrailerForm.FINGERPRINT, OTHER), contract=None),
            {"layout": SINGLE},
            SnapshotMismatch,
            "fingerprint",
        ),
    ],
)
def test_what_is_refused_at_a_hello(
    snapshot: Snapshot, changes: dict[str, Any], error: type[YetoError], field: str
) -> None:
    with pytest.raises(error) as caught:
        at_hello(snapshot, **changes)
    assert caught.value.field == field
    assert caught.value.rule == HELLO_RULES[field]
    with pytest.raises(error):
        load(snapshot, **{**SESSION, **changes})


def test_the_contract_rule_is_not_for_v2() -> None:
    snapshot = cut(version=V2, trailer=trailer(TrailerForm.CONTRACT, contract=OTHER), contract=OTHER)
    at_hello(snapshot, layout=SINGLE)


def test_a_backend_that_the_file_does_not_record() -> None:
    with pytest.raises(BackendUnknown):
        files.check_backend(cut(version=SnapshotVersion.V1).head, IsoBackend.SCALAR)


# Faults from the last rule to the first; each is added to those before it and must then be the one named.
Bytes = bytearray


def put(at: int, value: bytes) -> Callable[[Bytes], None]:
    def edit(data: Bytes) -> None:
        data[at : at + len(value)] = value

    return edit


FAULTS: list[tuple[type[YetoError], Callable[[Bytes], None]]] = [
    (NotContiguous, put(49, b"\7")),  # version of fragment 0
    (SnapshotMismatch, put(-32, b"\xff")),  # contract
    (BadTrailer, put(-36, b"\xff")),  # trailer tag
    (DuplicateLedger, put(125, b"\3")),  # ledger id of the first entry
    (SnapshotMismatch, put(57, b"\4")),  # numel of fragment 0
    (SnapshotMismatch, put(45, b"\1")),  # fragment count
    (SnapshotMismatch, put(5, b"\xff")),  # fingerprint
    (BackendMismatch, put(4, b"\1")),
    (BackendUnknown, put(4, b"\2")),
]


def test_the_first_broken_rule_is_named() -> None:
    data = Bytes(file_bytes(cut()))
    for error, edit in FAULTS:
        edit(data)
        with pytest.raises(error):
            files.load_for_resume(io.BytesIO(data), IsoBackend.SCALAR, **SESSION)


def test_a_size_that_does_not_fit_is_named_before_truncation() -> None:
    data = Bytes(file_bytes(cut()))
    put(57, b"\xff" * 8)(data)
    with pytest.raises(SnapshotMismatch):
        files.load_for_resume(io.BytesIO(data), IsoBackend.SCALAR, **SESSION)
    with pytest.raises(Truncated):
        files.load_for_resume(io.BytesIO(data), IsoBackend.SCALAR)


@given(step=st.integers(0, 2**64 - 1), fragments=st.integers(1, 40))
def test_versions_of_a_cut(step: int, fragments: int) -> None:
    versions = [files.expected_version(step, fragment, fragments) for fragment in range(fragments)]
    files.check_round_robin(versions, step)
    for fragment, version in enumerate(versions):
        if version:
            assert (version - 1) % fragments == fragment
            assert step - fragments < version <= step
        else:
            assert step <= fragment


@given(step=st.integers(0, 30), fragments=st.integers(1, 6))
def test_versions_of_a_cut_are_those_of_playing_it(step: int, fragments: int) -> None:
    versions = [0] * fragments
    for turn in range(1, step + 1):
        versions[(turn - 1) % fragments] = turn
    files.check_round_robin(versions, step)
    for fragment in range(fragments):
        versions[fragment] += 1
        with pytest.raises(NotContiguous):
            files.check_round_robin(versions, step)
        versions[fragment] -= 1
