"""What a HELLO fixes for the life of a run: dtype, numeric layout, fingerprint, contract, profile.

Every size and limit of the protocol derives from a `Session`; the numeric layout itself is `WireLayout`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ._generated.sizes import bulk_bytes, final_bytes, push_bytes
from ._generated.types import Dtype
from .wire_layout import WireLayout, differs

if TYPE_CHECKING:
    from ._generated.messages import Hello

__all__ = ["Session", "WireLayout"]


@dataclass(frozen=True, slots=True)
class Session:
    """What the first accepted HELLO fixes; every later HELLO must agree in all five fields."""

    dtype: Dtype
    layout: WireLayout
    fingerprint: bytes  # 32 bytes
    contract: bytes  # 32 bytes
    profile: bytes | None  # 32 bytes, or None when the client is not bound to a server profile
    max_numel: int = field(init=False, compare=False, repr=False)  # values of the largest fragment

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_numel", self.layout.max_numel)

    @classmethod
    def from_hello(cls, hello: Hello) -> Session:
        """The session that this HELLO would fix as the first one."""
        return cls(
            hello.dtype,
            hello.layout,
            hello.layout_fingerprint,
            hello.session_contract_hash,
            hello.syncer_profile_hash,
        )

    def difference(self, hello: Hello) -> str | None:
        """Name the first field of a later HELLO that is not the session's, with both values; None if none.

        The order is dtype, layout, fingerprint, contract, profile.  num_streams and the learner's identity
        are not part of a session.
        """
        if self.dtype != hello.dtype:
            return differs("dtype", self.dtype.name.lower(), hello.dtype.name.lower())
        layout = self.layout.difference(hello.layout)
        if layout is not None:
            return layout
        for name, ours, theirs in (
            ("layout_fingerprint", self.fingerprint, hello.layout_fingerprint),
            ("session_contract_hash", self.contract, hello.session_contract_hash),
            ("syncer_profile_hash", self.profile, hello.syncer_profile_hash),
        ):
            if ours != theirs:
                return differs(name, _hex(ours), _hex(theirs))
        return None

    @property
    def num_fragments(self) -> int:
        return self.layout.num_fragments

    def numel(self, fragment_id: int) -> int:
        """Values of the fragment, all its tensors together."""
        return int(self.layout.fragment_numels[fragment_id])

    @property
    def bulk_dtype(self) -> Dtype:
        """The dtype of INIT_PARAMS and BCAST_FRAGMENT: the session's, but bf16 where pushes are q4."""
        return Dtype.BF16 if self.dtype is Dtype.Q4 else self.dtype

    def bulk_bytes(self, fragment_id: int) -> int:
        """Bytes of the fragment's tensor in INIT_PARAMS and BCAST_FRAGMENT."""
        return bulk_bytes(self.dtype, self.numel(fragment_id))

    def push_bytes(self, fragment_id: int) -> int:
        """Bytes of the fragment's delta in PUSH_FRAGMENT."""
        return push_bytes(self.dtype, self.numel(fragment_id))

    def final_bytes(self, fragment_id: int) -> int:
        """Bytes of the fragment's tensor in FINAL_FRAGMENT, which is f32 whatever the session's dtype."""
        return final_bytes(self.numel(fragment_id))


def _hex(digest: bytes | None) -> str:
    return "none" if digest is None else digest.hex()
