"""What a snapshot holds, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from yeto_proto._generated.files import SnapshotVersion, TrailerForm
from yeto_proto._generated.types import IsoBackend

__all__ = [
    "F32Array",
    "FragmentState",
    "LedgerEntry",
    "Snapshot",
    "SnapshotHead",
    "SnapshotVersion",
    "Trailer",
    "TrailerForm",
]

F32Array: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class FragmentState:
    """One fragment at a commit: its version, and parameters and momentum as flat float32 arrays (numel,)."""

    version: int
    params: F32Array
    momentum: F32Array

    @property
    def numel(self) -> int:
        return self.params.size

    def __eq__(self, other: object) -> bool:
        """Equal versions and equal bits, so that a NaN equals itself and 0.0 differs from -0.0."""
        if not isinstance(other, FragmentState):
            return NotImplemented
        return (
            self.version == other.version
            and _same_bits(self.params, other.params)
            and _same_bits(self.momentum, other.momentum)
        )


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one learner has contributed, over all resumes."""

    merges: int = 0
    steps: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """Everything before the first fragment.  The backend is unknown in V1, the fingerprint in V1 and V2."""

    version: SnapshotVersion
    iso_backend: IsoBackend | None
    fingerprint: bytes | None
    global_step: int
    num_fragments: int


@dataclass(frozen=True, slots=True)
class Trailer:
    """What stands behind the ledger.  Files of the two sweep forms can be inspected, but not resumed."""

    form: TrailerForm = TrailerForm.NONE
    fingerprint: bytes | None = None
    contract: bytes | None = None
    sweep_fragments: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole checkpoint.  A syncer writes V3 with backend, fingerprint and session contract, 32 bytes each.

    `trailer` says what a file that was read really holds behind the ledger.  Left at None, a V3 snapshot gets
    the contract form, or the fingerprint form when there is no contract, and V1 and V2 get nothing.
    """

    version_tag: SnapshotVersion
    iso_backend: IsoBackend | None
    fingerprint: bytes | None
    global_step: int
    fragments: Sequence[FragmentState]
    ledger: Mapping[int, LedgerEntry]
    contract: bytes | None
    trailer: Trailer | None = None

    @property
    def num_fragments(self) -> int:
        return len(self.fragments)

    @property
    def versions(self) -> list[int]:
        """The version of each fragment."""
        return [fragment.version for fragment in self.fragments]

    @property
    def numels(self) -> list[int]:
        """The number of values of each fragment."""
        return [fragment.numel for fragment in self.fragments]

    @property
    def head(self) -> SnapshotHead:
        return SnapshotHead(
            self.version_tag, self.iso_backend, self.fingerprint, self.global_step, self.num_fragments
        )

    def actual_trailer(self) -> Trailer:
        """`trailer`, or what a writer chooses when it is None."""
        if self.trailer is not None:
            return self.trailer
        if self.version_tag is not SnapshotVersion.V3:
            return Trailer()
        form = TrailerForm.FINGERPRINT if self.contract is None else TrailerForm.CONTRACT
        return Trailer(form, self.fingerprint, self.contract)


def _same_bits(one: F32Array, other: F32Array) -> bool:
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))
