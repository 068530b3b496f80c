"""Snapshots for the tests of the files: random ones, and the layouts that fit them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from hypothesis import strategies as st

from yeto_proto import files
from yeto_proto._generated.types import IsoBackend, MergeMode
from yeto_proto.files import FragmentState, LedgerEntry, Snapshot, SnapshotVersion, Trailer, TrailerForm
from yeto_proto.session import WireLayout

FINGERPRINT = bytes(range(32))
CONTRACT = bytes(range(100, 132))

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
digests = st.binary(min_size=32, max_size=32)


@st.composite
def snapshots(draw: Any) -> Snapshot:
    """Any snapshot that a file can hold, in every version and with every trailer."""
    rng = np.random.default_rng(draw(u32))
    version = draw(st.sampled_from(SnapshotVersion))
    fragments = [
        FragmentState(draw(u64), *rng.integers(0, 2**32, (2, numel), dtype=np.uint32).view(np.float32))
        for numel in draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    ]
    ledger = draw(st.dictionaries(u32, st.builds(LedgerEntry, u64, u64, u64), max_size=4))
    fingerprint = draw(digests)
    form = draw(st.sampled_from(TrailerForm))
    contract = draw(digests) if form in (TrailerForm.CONTRACT, TrailerForm.SWEEP) else None
    sweep = form in (TrailerForm.SWEEP, TrailerForm.SWEEP_WITHOUT_CONTRACT)
    trailer = Trailer(
        form,
        None if form is TrailerForm.NONE else fingerprint,
        contract,
        draw(st.integers(1, 2**32 - 1)) if sweep else None,
    )
    return Snapshot(
        version,
        None if version is SnapshotVersion.V1 else draw(st.sampled_from(IsoBackend)),
        fingerprint if version is SnapshotVersion.V3 else None,
        draw(u64),
        fragments,
        ledger,
        contract,
        trailer,
    )


def cut(
    step: int = 5,
    numels: tuple[int, ...] = (3, 2),
    version: SnapshotVersion = SnapshotVersion.V3,
    trailer: Trailer | None = None,
    contract: bytes | None = CONTRACT,
) -> Snapshot:
    """A snapshot that a run could have written at this step."""
    fragments = [
        FragmentState(
            files.expected_version(step, fragment, len(numels)),
            np.arange(numel, dtype=np.float32) + fragment,
            np.full(numel, 0.5, np.float32),
        )
        for fragment, numel in enumerate(numels)
    ]
    v3 = version is SnapshotVersion.V3
    return Snapshot(
        version,
        None if version is SnapshotVersion.V1 else IsoBackend.SCALAR,
        FINGERPRINT if v3 else None,
        step,
        fragments,
        {0: LedgerEntry(5, 120, 240_000), 3: LedgerEntry(2, 48, 96_000)},
        contract if v3 or trailer is not None else None,
        trailer,
    )


def file_bytes(snapshot: Snapshot) -> bytes:
    stream = io.BytesIO()
    files.write_to(stream, snapshot)
    return stream.getvalue()


def layout(*fragments: tuple[int, ...]) -> WireLayout:
    """A numeric layout from the numels of each fragment's tensors."""
    return WireLayout.build((MergeMode.RDA, numels, None) for numels in fragments)
