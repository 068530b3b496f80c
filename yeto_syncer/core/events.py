"""What the shell tells the coordinator. Every event is one frozen value; order of arrival is the only order.

Rules the shell keeps:
- `conn` is an int that was never used before in this process.
- Events of one connection group come in the order in which its bytes came, also when checks ran on a pool.
- After `Refuse`, `CloseConn` or `CloseLink` no further event of those sockets is needed; late ones are
  ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from yeto_syncer.core.jobs import F32, Link, MergeResult

if TYPE_CHECKING:
    from yeto_proto._generated.messages import DataHello, Hello, Message
    from yeto_proto.errors_base import YetoError
    from yeto_syncer.core.effects import SaveKind


@dataclass(frozen=True, slots=True)
class Opened:
    """A socket was accepted. The core's handshake deadline (D6) for it runs from here."""

    conn: int


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The first frame of `conn`: a HELLO whose bytes, MAC and `decode` rules are already good."""

    conn: int
    hello: Hello


@dataclass(frozen=True, slots=True)
class DataHelloReceived:
    """The first frame of `conn`: a DATA_HELLO whose bytes are already good. It may precede its HELLO."""

    conn: int
    data_hello: DataHello


@dataclass(frozen=True, slots=True)
class Received:
    """One whole message on any socket of an admitted group, decoded (bare or reassembled from chunks).

    `values` are the f32 values of an INIT_PARAMS, decoded and finite, in an array that the core may keep
    without a copy. A PUSH_FRAGMENT keeps its wire bytes in `message.delta`, already checked finite.
    """

    conn: int
    link: Link
    message: Message
    values: F32 | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of `link` has come and waits behind others that are being checked: a sign of life. It may
    pass the other events of its group; the message itself follows as `Received`."""

    link: Link


@dataclass(frozen=True, slots=True)
class Refused:
    """The reader, the MAC or a value check refused bytes of `conn`, admitted or not. Nothing was sent yet."""

    conn: int
    error: YetoError


@dataclass(frozen=True, slots=True)
class Disconnected:
    """`conn` ended: end of stream or a socket error. For a control socket this ends the group."""

    conn: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """The last byte of the delivery `token` to `link` was handed to the kernel. A fragment that a newer
    version replaced before it started counts with that newer version."""

    link: Link
    token: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The shell closed the whole group by itself, e.g. because no byte went out for `--write-timeout-s`."""

    link: Link
    reason: str


@dataclass(frozen=True, slots=True)
class Folded:
    """A `Fold` job ended."""

    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Merged:
    """A `Merge` job ended. `result` is None when the merge or the outer step was not finite (D33)."""

    step: int
    attempt: int
    result: MergeResult | None


@dataclass(frozen=True, slots=True)
class MergeFailed:
    """A `Merge` or `Fold` job raised: out of memory or a defect. The run ends with exit 1; the state is as it
    was."""

    step: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class DrainFailed:
    """A `Drain` failed. The checkpoint behind it is not written, and the run ends with exit 1."""

    reason: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A `Save` is durable: file and folder are synced and the rename is done."""

    kind: SaveKind
    step: int


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A `Save` failed and the previous file is whole. After a blocking one the shell performs none of the
    effects that it held back but an `Exit`, and those that the answer to this event holds."""

    kind: SaveKind
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class FileFailed:
    """Marker, final state or event tape could not be written. `what` names the file for people."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGINT (2) or SIGTERM (15) arrived. The first one asks for the graceful stop, the second for an end."""

    signal: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of the last `SetTimer` has come. Harmless at any other time."""


Event: TypeAlias = (
    Opened
    | HelloReceived
    | DataHelloReceived
    | Received
    | Heard
    | Refused
    | Disconnected
    | Delivered
    | Dropped
    | Folded
    | Merged
    | MergeFailed
    | DrainFailed
    | Saved
    | SaveFailed
    | FileFailed
    | Stop
    | Tick
)
