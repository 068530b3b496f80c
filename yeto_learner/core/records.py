"""What a learner receives, as records for its own code: no frame, no socket.

The fields after the comment take no part in equality, so that two receptions of the same thing compare equal.
`sequence` numbers pulls and broadcasts of one client in the order of their arrival, `generation` is the
connection that they came on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from yeto_proto._generated.messages import Buffer

__all__ = ["BcastFragment", "FinalFragment", "FinalManifest", "PullRequest"]


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The syncer asks for this learner's progress on one fragment (PULL_REQ)."""

    fragment_id: int
    global_step: int
    round_attempt: int
    # not compared
    received_at: float = field(default=0.0, compare=False)  # seconds, the client's monotonic clock
    sequence: int = field(default=0, compare=False)
    generation: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BcastFragment:
    """A new global value of one fragment (BCAST_FRAGMENT), in the session's bulk dtype."""

    fragment_id: int
    version: int
    data: Buffer  # bulk_bytes(dtype, numel) bytes
    # not compared
    received_at: float = field(default=0.0, compare=False)
    payload_hash: bytes = field(default=b"", compare=False, repr=False)  # block digest of `data`
    catch_up: bool = field(default=False, compare=False)  # first broadcast of this fragment after a redial
    sequence: int = field(default=0, compare=False)
    generation: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class FinalFragment:
    """The authoritative last value of one fragment (FINAL_FRAGMENT): little-endian f32, 4 bytes a value."""

    fragment_id: int
    version: int
    data: Buffer
    # not compared
    received_at: float = field(default=0.0, compare=False)
    payload_hash: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FinalManifest:
    """The last global step, and the version that each fragment must have at it (FINAL_MANIFEST)."""

    global_step: int
    versions: tuple[int, ...]
