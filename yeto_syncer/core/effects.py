"""What the coordinator asks the shell to do. A closed set; the shell performs them strictly in order.

The order carries the promises: a blocking `Save` holds back every later effect, also those of later steps,
until the file is durable, so "durable before visible" is the position of one effect before another. Effects
on a link or connection that is gone are skipped without an error: its `Disconnected` is on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias

from yeto_syncer.core.jobs import F32, FoldJob, Link, MergeJob

if TYPE_CHECKING:
    from yeto_proto._generated.messages import Message
    from yeto_proto.errors_base import YetoError
    from yeto_proto.files.model import Snapshot
    from yeto_proto.session import Session

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class SaveKind(Enum):
    """Why a checkpoint is written; the bytes are the same for all."""

    PER_ROUND = "per-round"
    VERSION_ZERO = "version-zero"
    ON_START = "on-start"
    PERIODIC = "periodic"
    TERMINAL = "terminal"
    STOP = "stop"
    CUTOFF = "cutoff"


@dataclass(frozen=True, slots=True)
class Versioned:
    """One fragment at one version. `params` is a read-only f32 array, shared with the state: never copied."""

    fragment_id: int
    version: int
    params: F32


@dataclass(frozen=True, slots=True)
class Accept:
    """`conn` is the control socket of the new group `link`. No frame answers a HELLO; reading goes on.

    `num_streams` is how many data streams the HELLO announced; each comes with an `Attach`, or never.
    """

    conn: int
    link: Link
    session: Session
    num_streams: int


@dataclass(frozen=True, slots=True)
class Attach:
    """`conn` is data stream `stream_idx` (from 0) of `link`."""

    conn: int
    link: Link
    stream_idx: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send the ERROR text of `error` (when the error sends one) on this not admitted socket and close it."""

    conn: int
    error: YetoError


@dataclass(frozen=True, slots=True)
class Send:
    """A small frame on the control stream of `link`, first in, first out."""

    link: Link
    message: Message


@dataclass(frozen=True, slots=True)
class Deliver:
    """Bulk: BCAST_FRAGMENT in the session's bulk dtype, or FINAL_FRAGMENT (always f32) when `final`.

    A BCAST of a fragment that has not started yet is replaced in place by a newer version of it.
    FINAL_FRAGMENTs are kept apart from BCASTs and never replaced. With a `token` the shell answers
    `Delivered(link, token)` once for each link that is still alive when its part of this delivery has left.
    """

    links: tuple[Link, ...]
    fragments: tuple[Versioned, ...]
    final: bool = False
    token: int | None = None


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Send the ERROR text of `error` on the control stream (if there is one), then close all sockets of
    `link`. The core has already forgotten the group."""

    link: Link
    error: YetoError | None = None


@dataclass(frozen=True, slots=True)
class CloseConn:
    """Read nothing more from this socket and close it without a word on it. On a data socket of a live group:
    late enough that an ERROR on the control stream, queued before, is read first."""

    conn: int


@dataclass(frozen=True, slots=True)
class Fold:
    """Run `core.merge.fold(job)` off the loop and answer `Folded` or `MergeFailed`. Folds of one attempt run
    in the order of their effects, one after the other. The shell lets go of the job once it has run."""

    job: FoldJob


@dataclass(frozen=True, slots=True)
class Merge:
    """Run `core.merge.run(job)` off the loop and answer `Merged` or `MergeFailed`. Never two at a time."""

    job: MergeJob


@dataclass(frozen=True, slots=True)
class Drain:
    """Let the SVD pool finish what it has and take nothing more, for good. Holds back later effects; when the
    pool is poisoned or late, the shell performs none of these and answers `DrainFailed`."""


@dataclass(frozen=True, slots=True)
class Save:
    """Write `snapshot` to the checkpoint path and answer `Saved` or `SaveFailed`.

    A `background` save lets later effects pass. The core never asks for a save while another one runs.
    """

    snapshot: Snapshot
    kind: SaveKind
    background: bool = False


@dataclass(frozen=True, slots=True)
class WriteMarker:
    """Write `<checkpoint>.final` for `step`; `FileFailed` on an error."""

    step: int


@dataclass(frozen=True, slots=True)
class RemoveMarker:
    """Remove `<checkpoint>.final`; a missing file is fine."""


@dataclass(frozen=True, slots=True)
class WriteFinalState:
    """Write the `--final-state` file: the f32 parameters of every fragment in layout order."""

    fragments: tuple[F32, ...]


@dataclass(frozen=True, slots=True)
class AppendTape:
    """Append one JSON line to the event tape and flush it; keys in this order. `FileFailed` on an error."""

    record: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Count:
    """Add one to the counter `name` with these labels."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Log:
    """One log line. `fields` are printed as key=value after the message."""

    level: Level
    message: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Wake the core with `Tick` at this time (the clock of `now`); replaces the timer before it."""

    at: float


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process with this code once queued small frames had a bounded time to leave; the last effect.

    Code 0: `message` is for the log. Otherwise it goes to stderr as `error: what; where; what to do`.
    With `at_once` (a second signal, or one before training) it waits for nothing: while a blocking `Save`
    holds back others, those are dropped, and only the effects of this step are performed.
    """

    code: int
    message: str
    at_once: bool = False


Effect: TypeAlias = (
    Accept
    | Attach
    | Refuse
    | Send
    | Deliver
    | CloseLink
    | CloseConn
    | Fold
    | Merge
    | Drain
    | Save
    | WriteMarker
    | RemoveMarker
    | WriteFinalState
    | AppendTape
    | Count
    | Log
    | SetTimer
    | Exit
)
