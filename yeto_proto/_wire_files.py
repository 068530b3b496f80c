"""Byte layouts of the files: snapshot V1 to V3, final marker, final state.  Little-endian, no padding.

The only place where these numbers stand; everything else in `files` imports them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from construct import Bytes, Int8ul, Int32ul, Int64ul, Struct

from ._generated.constants import HASH_BYTES

F32: Final = np.dtype("<f4")


class SnapshotVersion(IntEnum):
    """The three forms of a snapshot; only V3 is written by a syncer."""

    V1 = 1
    V2 = 2
    V3 = 3


class TrailerForm(IntEnum):
    """What may stand behind the ledger, named by its length in bytes."""

    NONE = 0
    FINGERPRINT = 32
    SWEEP_WITHOUT_CONTRACT = 40
    CONTRACT = 68
    SWEEP = 72


MAGICS: Final = {
    SnapshotVersion.V1: 0xD1705A7E,
    SnapshotVersion.V2: 0xD1705A7F,
    SnapshotVersion.V3: 0xD1705A80,
}
CONTRACT_TAG: Final = 0x52544353
SWEEP_TAG: Final = 0x50535750

MAGIC: Final = Int32ul
# What stands between the magic and the fragments, by version.
PREFIXES: Final = {
    SnapshotVersion.V1: Struct("global_step" / Int64ul),
    SnapshotVersion.V2: Struct("iso_backend" / Int8ul, "global_step" / Int64ul),
    SnapshotVersion.V3: Struct(
        "iso_backend" / Int8ul, "fingerprint" / Bytes(HASH_BYTES), "global_step" / Int64ul
    ),
}
# Magic, backend, fingerprint and step; the fragment count follows.
PREFIX_BYTES: Final = {version: MAGIC.sizeof() + PREFIXES[version].sizeof() for version in SnapshotVersion}
COUNT: Final = Int32ul
NUMEL: Final = Int64ul
FRAGMENT: Final = Struct("version" / Int64ul, "numel" / Int64ul)
LEDGER_ENTRY: Final = np.dtype(
    [("learner_id", "<u4"), ("merges", "<u8"), ("steps", "<u8"), ("tokens", "<u8")]
)
ARRAYS_PER_FRAGMENT: Final = 2  # params, then momentum


@dataclass(frozen=True, slots=True)
class TrailerLayout:
    """Fields of a trailer form, and the value that its tag must have."""

    struct: Struct
    tag: int | None = None


_FINGERPRINT: Final = "fingerprint" / Bytes(HASH_BYTES)
_TAG: Final = "tag" / Int32ul
_SWEEP: Final = "sweep_fragments" / Int32ul
_CONTRACT: Final = "contract" / Bytes(HASH_BYTES)

TRAILERS: Final = {
    TrailerForm.NONE: TrailerLayout(Struct()),
    TrailerForm.FINGERPRINT: TrailerLayout(Struct(_FINGERPRINT)),
    TrailerForm.SWEEP_WITHOUT_CONTRACT: TrailerLayout(Struct(_FINGERPRINT, _TAG, _SWEEP), SWEEP_TAG),
    TrailerForm.CONTRACT: TrailerLayout(Struct(_FINGERPRINT, _TAG, _CONTRACT), CONTRACT_TAG),
    TrailerForm.SWEEP: TrailerLayout(Struct(_FINGERPRINT, _TAG, _SWEEP, _CONTRACT), SWEEP_TAG),
}

U32_MAX: Final = (1 << 32) - 1
U64_MAX: Final = (1 << 64) - 1
