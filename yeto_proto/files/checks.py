"""What a snapshot must satisfy before a run resumes from it, as one function per rule.

`check_file` holds what the file alone and the configuration decide, made when the process starts.
`check_session` holds what only a HELLO can decide, made for each HELLO until one fits.  Each raises for the
first rule that is broken, in the order of the functions below; nothing has been changed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from yeto_proto._generated.files import TRAILERS, SnapshotVersion
from yeto_proto._generated.types import IsoBackend

from ._rules import broken
from .model import Snapshot, SnapshotHead, Trailer


class NumericLayout(Protocol):
    """What the checks need of a layout; `WireLayout` has it."""

    @property
    def num_fragments(self) -> int: ...

    @property
    def fragment_numels(self) -> npt.NDArray[np.uint64]: ...

    def numels(self, fragment_id: int) -> npt.NDArray[np.uint64]: ...


def expected_version(global_step: int, fragment: int, num_fragments: int) -> int:
    """The version of a fragment in a contiguous cut: the last step up to `global_step` that was its turn.

    Step t belongs to fragment (t - 1) mod F; before a fragment's first turn its version is 0.
    """
    first = fragment + 1
    if global_step < first:
        return 0
    return first + (global_step - first) // num_fragments * num_fragments


# ------------------------------------------------------------------------------ rules, in order


def check_version(head: SnapshotHead) -> None:
    """V1 is never resumed: it does not say which iso backend made it.  Raises BackendUnknown."""
    if head.version is SnapshotVersion.V1:
        raise broken(
            "snapshot.magic.resume",
            offset=0,
            detail="a V1 snapshot does not record its iso backend and cannot be resumed; migrate it to V3",
        )


def check_backend(head: SnapshotHead, configured: IsoBackend) -> None:
    """The file was made with the configured backend.  Raises BackendUnknown, BackendMismatch."""
    if head.iso_backend is None:
        raise broken("snapshot.magic.resume", offset=0, detail="the snapshot does not record an iso backend")
    if head.iso_backend is not configured:
        raise broken(
            "snapshot.iso_backend.resume",
            limit=_name(configured),
            seen=_name(head.iso_backend),
            detail="the snapshot was made with another iso backend than the configured one",
        )


def check_fingerprint(recorded: bytes | None, fingerprint: bytes) -> None:
    """A fingerprint that the file records is the session's.  Raises SnapshotMismatch."""
    if recorded is not None and recorded != fingerprint:
        raise broken(
            "snapshot.fingerprint.session",
            limit=fingerprint.hex(),
            seen=recorded.hex(),
            detail="another layout fingerprint",
        )


def check_fragment_count(num_fragments: int, layout: NumericLayout) -> None:
    """The file has as many fragments as the layout.  Raises SnapshotMismatch."""
    if num_fragments != layout.num_fragments:
        raise broken(
            "snapshot.fragment_count.session",
            limit=layout.num_fragments,
            seen=num_fragments,
            detail="another number of fragments",
        )


def check_numel(fragment: int, numel: int, layout: NumericLayout) -> None:
    """A fragment has as many values as in the layout.  Raises SnapshotMismatch."""
    expected = int(layout.fragment_numels[fragment])
    if numel != expected:
        raise broken(
            "snapshot.numel.session",
            limit=expected,
            seen=numel,
            detail=f"another size of fragment {fragment}",
        )


def check_layout(numels: Sequence[int], layout: NumericLayout) -> None:
    """Number and sizes of the fragments are the layout's.  Raises SnapshotMismatch."""
    check_fragment_count(len(numels), layout)
    for fragment, numel in enumerate(numels):
        check_numel(fragment, numel, layout)


def check_trailer(trailer: Trailer) -> None:
    """The file is not one of a policy sweep, which can only be inspected and exported.  Raises BadTrailer."""
    if not TRAILERS[trailer.form].resume:
        raise broken(
            "snapshot.trailer.resume",
            seen=f"{int(trailer.form)} bytes",
            detail=f"a policy sweep of {trailer.sweep_fragments} fragments cannot be resumed",
        )


def check_contract(snapshot: Snapshot, contract: bytes, fingerprint: bytes) -> None:
    """The file belongs to the session's experiment.  Raises SnapshotMismatch.

    A file that records no contract passes only when the session has none of its own, that is when its
    contract is the layout fingerprint.  V2 files do not record contracts; the rule does not apply to them.
    """
    if snapshot.version_tag is SnapshotVersion.V2:
        return
    recorded = snapshot.contract
    if recorded is None and contract != fingerprint:
        raise broken(
            "snapshot.contract.session",
            limit=contract.hex(),
            seen="none",
            detail="the snapshot records no session contract",
        )
    if recorded is not None and recorded != contract:
        raise broken(
            "snapshot.contract.session",
            limit=contract.hex(),
            seen=recorded.hex(),
            detail="another session contract",
        )


def check_grouped(version: SnapshotVersion, layout: NumericLayout) -> None:
    """V2 cannot prove which tensor is where, so each of its fragments must be one tensor.

    Raises GroupedLegacySnapshot.
    """
    if version is not SnapshotVersion.V2:
        return
    for fragment in range(layout.num_fragments):
        tensors = len(layout.numels(fragment))
        if tensors != 1:
            raise broken(
                "snapshot.layout.grouped",
                limit=1,
                seen=tensors,
                detail=f"fragment {fragment} groups {tensors} tensors, whose order V2 cannot prove",
            )


def check_round_robin(versions: Sequence[int], global_step: int) -> None:
    """The versions are those of a contiguous cut at `global_step`.  Raises NotContiguous."""
    for fragment, version in enumerate(versions):
        expected = expected_version(global_step, fragment, len(versions))
        if version != expected:
            raise broken(
                "snapshot.version.contiguous",
                limit=expected,
                seen=version,
                detail=f"version of fragment {fragment} at global step {global_step}",
            )


# ------------------------------------------------------------------------------ together


def check_file(snapshot: Snapshot, iso_backend: IsoBackend) -> None:
    """Everything that needs no HELLO: version, backend, trailer form, contiguous cut."""
    check_version(snapshot.head)
    check_backend(snapshot.head, iso_backend)
    check_trailer(snapshot.actual_trailer())
    check_round_robin(snapshot.versions, snapshot.global_step)


def check_session(snapshot: Snapshot, layout: NumericLayout, fingerprint: bytes, contract: bytes) -> None:
    """Everything that a HELLO decides: fingerprint, sizes, contract, and one tensor per fragment for V2.

    fingerprint, contract: 32 bytes each, of the session that the HELLO would fix.
    """
    check_fingerprint(snapshot.fingerprint, fingerprint)
    check_layout(snapshot.numels, layout)
    check_fingerprint(snapshot.actual_trailer().fingerprint, fingerprint)
    check_contract(snapshot, contract, fingerprint)
    check_grouped(snapshot.version_tag, layout)


def _name(backend: IsoBackend) -> str:
    return backend.name.lower().replace("_", "-")
