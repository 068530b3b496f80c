"""`SyncerClient`: the low-level client of a syncer, for code that keeps its own anchors.

It connects, redials, checks and keeps what arrives, and sends what it is given.  When to install and what to
push is `Learner`'s business.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable

from yeto_proto._generated import messages as wire
from yeto_proto._generated.constants import MAX_STREAMS
from yeto_proto._generated.messages import Buffer
from yeto_proto._generated.types import Dtype
from yeto_proto.layout import Layout
from yeto_proto.session import Session
from yeto_proto.writer import frame

from .arguments import check_hash, environment_key, parse_dtype, parse_key, require, require_whole
from .channel import Address, parse_address
from .connection import Connection
from .core.boundary import Answer
from .core.link import Link
from .core.records import BcastFragment, FinalFragment, FinalManifest, PullRequest
from .outbox import Ticket
from .streaming import BulkSender
from .terminal import Terminal

__all__ = ["SyncerClient"]

U32, U64 = 2**32, 2**64
DEFAULT_RECEIVE_BUDGET = 64 * 1024 * 1024  # bytes


class SyncerClient:
    """One learner's connection to a syncer.

    addr: "host:port" or (host, port).  learner_id: 0 to 2^32-1.  layout: of `yeto_proto.build_layout`.
    dtype: a Dtype or "f32", "bf16", "q4".  num_streams: data sockets beside the control socket, 0 to 256.
    connect_timeout: seconds for each socket of `start`.  max_reconnects: redials in the client's whole life,
    None for no limit. finalization_timeout: seconds, the default of the two terminal waits.
    session_contract_hash: 32 bytes; without one the layout fingerprint is sent, so that all runs of a layout
    share one contract.  syncer_profile_hash: 32 bytes, or None for an unbound client.  hmac_key: bytes
    or text that seals the HELLO, or the `pathlib.Path` of its file (default: the environment variable
    YETO_ISLAND_HMAC_KEY, if set).  tls: an ssl.SSLContext.  accept_rewound_catch_up: take the first broadcast
    of a fragment after a redial even when its version went back.  receive_budget: reading of bulk pauses
    while broadcasts of so many bytes wait to be drained.

    Raises ValueError for an argument that cannot be used, OSError for a key file that cannot be read.
    Events: `finalizing` once a final manifest is held, `finalized` once it was acknowledged, `shutdown` once
    the syncer said so.
    """

    def __init__(
        self,
        addr: str | Address,
        learner_id: int,
        layout: Layout,
        dtype: Dtype | str = Dtype.BF16,
        num_streams: int = 4,
        connect_timeout: float = 900.0,
        max_reconnects: int | None = None,
        finalization_timeout: float = 900.0,
        session_contract_hash: bytes | None = None,
        syncer_profile_hash: bytes | None = None,
        hmac_key: bytes | str | os.PathLike[str] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        accept_rewound_catch_up: bool = False,
        receive_budget: int = DEFAULT_RECEIVE_BUDGET,
    ) -> None:
        learner_id = require_whole("learner_id", learner_id, 0, U32 - 1)
        num_streams = require_whole("num_streams", num_streams, 0, MAX_STREAMS)
        require(layout.num_fragments > 0, "the layout has no fragments")
        check_hash(session_contract_hash, "session_contract_hash")
        check_hash(syncer_profile_hash, "syncer_profile_hash")
        receive_budget = require_whole("receive_budget", receive_budget, 1)
        self.addr = parse_address(addr)
        self.learner_id = learner_id
        self.layout = layout
        self.dtype = parse_dtype(dtype)
        self.num_streams = num_streams
        self.connect_timeout = connect_timeout
        self.max_reconnects = max_reconnects
        self.finalization_timeout = finalization_timeout
        fingerprint = layout.fingerprint()
        self.session_contract_hash = session_contract_hash or fingerprint
        self.syncer_profile_hash = syncer_profile_hash
        self.session = Session(
            self.dtype, layout.wire(), fingerprint, self.session_contract_hash, syncer_profile_hash
        )
        self.finalizing = threading.Event()
        self.finalized = threading.Event()
        self.shutdown = threading.Event()
        self._link = Link(self.session, accept_rewound_catch_up=accept_rewound_catch_up)
        self._connection = Connection(
            self.addr,
            self._link,
            self._hello,
            connect_timeout=connect_timeout,
            max_reconnects=max_reconnects,
            receive_budget=receive_budget,
            hmac_key=environment_key() if hmac_key is None else parse_key(hmac_key),
            tls=tls,
            received=self._received,
        )
        self._changed = self._connection.changed
        self._bulk = BulkSender(self._connection, num_streams)
        self._terminal = Terminal(self, self._connection)

    def _received(self) -> None:
        """After every message, with the lock held."""
        if self._link.manifest is not None:
            self.finalizing.set()
        if self._link.shutdown:
            self.shutdown.set()
        self._terminal.repeat_ack()

    def _hello(self, generation: int) -> wire.Hello:
        session = self.session
        return wire.Hello(
            learner_id=self.learner_id,
            connection_generation=generation,
            dtype=session.dtype,
            layout=session.layout,
            layout_fingerprint=session.fingerprint,
            session_contract_hash=session.contract,
            syncer_profile_hash=session.profile,
            num_streams=self.num_streams,
        )

    # -- life

    def start(self) -> None:
        """Connect, patiently: every socket is dialled again every 2 s until `connect_timeout`.

        The protocol has no answer to HELLO: a refusal shows in `check_health` a moment later.  Raises
        ConnectionError.
        """
        self._connection.start()

    def close(self) -> None:
        """End the client for good and join its threads; what is queued is dropped.  May be called again."""
        self._connection.close()

    def __enter__(self) -> SyncerClient:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_health(self) -> None:
        """Raise if the client is over: it was refused, a rule was broken, or no reconnects are left.

        Silent during an outage.  Raises SessionRejectedError for the refusals that have a metric, else
        RuntimeError `syncer connection failed: ...` with the ProtocolError as its cause.
        """
        self._connection.check()

    @property
    def connected(self) -> bool:
        """Whether a connection group is up now."""
        return self._connection.group is not None

    @property
    def connection_generation(self) -> int:
        """The generation of the current connection, or of the last one; 0 before the first."""
        return self._link.generation

    @property
    def catching_up(self) -> frozenset[int]:
        """The fragments whose first broadcast since the last redial has not come yet."""
        with self._changed:
            return self._link.catching_up

    @property
    def connection_epoch(self) -> int:
        """Goes up by one at each connect and at each teardown."""
        return self._link.epoch

    @property
    def bytes_received(self) -> int:
        """Bytes read from all sockets since the start."""
        return self._connection.traffic[0]

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the kernel on all sockets since the start, without the greetings."""
        return self._connection.traffic[1]

    def wait_for(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `ready()` is true, judged after every change of this client; False after `timeout`.

        `ready` is called with the client's lock held, so it must be quick.  Raises like `check_health`.
        """
        connection = self._connection
        with self._changed:
            done = self._changed.wait_for(
                lambda: ready() or connection.failure is not None or connection.closed.is_set(), timeout
            )
            met = ready()
        if not met:
            self.check_health()
            if done:
                raise RuntimeError("the client was closed")
        return met

    # -- sending

    def send_init(self, fragment_id: int, data: Buffer) -> None:
        """Send the initial value of a fragment (bulk dtype bytes); only learner 0 may.

        Waits for room in the send queues.  Dropped without an error while disconnected, closed or shut down.
        Raises ValueError for a fragment or a length that does not fit.
        """
        self._check_fragment(fragment_id)
        self._check_length(data, self.session.bulk_bytes(fragment_id), "INIT", fragment_id)
        self._bulk.send(wire.InitParams(fragment_id, data))

    def send_init_parts(
        self,
        fragment_id: int,
        parts: Iterable[Buffer],
        *,
        before_last_enqueue: Callable[[], None] | None = None,
        timeout: float | None = None,
    ) -> bool:
        """As `send_init`, with the bytes in parts that are taken one chunk at a time.

        True when everything was queued, False when nothing was.  Raises TypeError or ValueError for bad
        parts, PartialMessageGenerationLost when the link was lost in mid-message, and TimeoutError when the
        syncer does not take the bytes within `timeout` seconds (None: wait for ever).
        """
        self._check_fragment(fragment_id)
        generation = self._bulk.send_parts(
            wire.InitParams(fragment_id, b""),
            self.session.bulk_bytes(fragment_id),
            parts,
            operation="send_init_parts",
            before_last_enqueue=before_last_enqueue,
            deadline=None if timeout is None else time.monotonic() + timeout,
        )
        return generation is not None

    def push_fragment(
        self,
        fragment_id: int,
        global_step: int,
        round_attempt: int,
        base_version: int,
        local_step: int,
        c_steps: int,
        c_tokens: int,
        data: Buffer,
    ) -> None:
        """Answer a pull: local minus raw anchor, encoded in the session's dtype.

        Waits for room in the send queues.  Dropped without an error while disconnected, closed or shut down;
        the next pull asks again.  Raises ValueError for a fragment, counter or length that does not fit.
        """
        message = self._push(
            fragment_id, global_step, round_attempt, base_version, local_step, c_steps, c_tokens, data
        )
        self._check_length(data, self.session.push_bytes(fragment_id), "PUSH", fragment_id)
        self._bulk.send(message)

    def push_fragment_parts(
        self,
        fragment_id: int,
        global_step: int,
        round_attempt: int,
        base_version: int,
        local_step: int,
        c_steps: int,
        c_tokens: int,
        parts: Iterable[Buffer],
        *,
        before_last_enqueue: Callable[[], None] | None = None,
    ) -> bool:
        """As `push_fragment`, with the bytes in parts that are taken one chunk at a time.

        True when everything was queued, False when nothing was.  Raises as `send_init_parts`.
        """
        message = self._push(
            fragment_id, global_step, round_attempt, base_version, local_step, c_steps, c_tokens, b""
        )
        generation = self._bulk.send_parts(
            message,
            self.session.push_bytes(fragment_id),
            parts,
            operation="push_fragment_parts",
            before_last_enqueue=before_last_enqueue,
        )
        return generation is not None

    def stream_push(self, answer: Answer, parts: Iterable[Buffer], ticket: Ticket) -> int | None:
        """As `push_fragment_parts` for an answer of the step boundary; the generation it was queued on, or
        None.

        The ticket learns whether every chunk was written; it is left open, for the caller to end.
        """
        pull = answer.pull
        message = self._push(
            pull.fragment_id,
            pull.global_step,
            pull.round_attempt,
            answer.base_version,
            answer.local_step,
            answer.c_steps,
            answer.c_tokens,
            b"",
        )
        wanted = self.session.push_bytes(pull.fragment_id)
        return self._bulk.send_parts(message, wanted, parts, operation="stream_push", ticket=ticket)

    def heartbeat(self, local_step: int) -> None:
        """Tell the syncer that this learner lives.  Never waits: dropped when disconnected or the queue is
        full.
        """
        require(0 <= local_step < U64, f"local_step must fit into 64 bits, not {local_step}")
        group = self._connection.group
        if group is not None and not self.shutdown.is_set():
            group.outboxes[0].offer(frame(wire.Heartbeat(self.learner_id, local_step)))

    def _push(
        self,
        fragment_id: int,
        global_step: int,
        round_attempt: int,
        base_version: int,
        local_step: int,
        c_steps: int,
        c_tokens: int,
        data: Buffer,
    ) -> wire.PushFragment:
        self._check_fragment(fragment_id)
        for name, value, low, high in (
            ("global_step", global_step, 0, U64),
            ("round_attempt", round_attempt, 1, U32),
            ("base_version", base_version, 0, U64),
            ("local_step", local_step, 0, U64),
            ("c_steps", c_steps, 1, U32),
            ("c_tokens", c_tokens, 0, U64),
        ):
            require(low <= value < high, f"{name} must be {low} to {high - 1}, not {value}")
        return wire.PushFragment(
            self.learner_id,
            fragment_id,
            global_step,
            round_attempt,
            base_version,
            local_step,
            c_steps,
            c_tokens,
            data,
        )

    def _check_fragment(self, fragment_id: int) -> None:
        count = self.layout.num_fragments
        require(0 <= fragment_id < count, f"fragment_id must be 0 to {count - 1}, not {fragment_id}")

    def _check_length(self, data: Buffer, wanted: int, what: str, fragment_id: int) -> None:
        got = memoryview(data).nbytes
        require(
            got == wanted,
            f"{what} of fragment {fragment_id} has {got} bytes; its {self.session.numel(fragment_id)} values "
            f"take {wanted} bytes in a {self.dtype.name.lower()} session",
        )

    # -- receiving

    def drain_pulls(self) -> list[PullRequest]:
        """All pulls that arrived since the last call, in order; those of a lost connection are gone."""
        with self._changed:
            return self._link.take_pulls()

    def drain_updates(self) -> list[BcastFragment]:
        """Every broadcast accepted since the last call, in order, not only the latest of a fragment."""
        with self._changed:
            updates = self._link.take_updates()
            self._changed.notify_all()
            return updates

    def next_update(self) -> BcastFragment | None:
        """The oldest broadcast that was not drained yet: one at a time keeps one fragment in memory."""
        with self._changed:
            update = self._link.take_update()
            self._changed.notify_all()
            return update

    def discard_updates(self) -> None:
        """From now on only the final cut counts: broadcasts are still judged, but no longer kept."""
        with self._changed:
            self._link.drop_updates()
            self._changed.notify_all()

    def keep_updates(self) -> None:
        """Take `discard_updates` back, unless a final manifest is held.

        If broadcasts were dropped meanwhile, the connection is dialled anew, and its catch-up brings the
        newest.
        """
        self._terminal.keep_updates()

    @property
    def has_updates(self) -> bool:
        """Whether a broadcast waits to be drained."""
        return self._link.has_updates

    @property
    def has_pulls(self) -> bool:
        """Whether a pull waits to be drained."""
        return self._link.has_pulls

    # -- the end of a run

    def wait_for_final_fragments(
        self, timeout: float | None = None
    ) -> tuple[FinalManifest, list[FinalFragment]]:
        """Wait for the manifest and the exact f32 value of every fragment; they come in fragment order.

        timeout: seconds, by default `finalization_timeout`.  Raises TimeoutError that names what is missing,
        and what `check_health` raises.
        """
        return self._terminal.wait_for_final_fragments(timeout)

    def acknowledge_finalization(self, manifest: FinalManifest, timeout: float | None = None) -> None:
        """Send FINAL_ACK, on each new generation again, until it was written; then `finalized` is set.

        A SHUTDOWN that arrives meanwhile counts as written.  Raises RuntimeError if `manifest` is not the
        held one, TimeoutError, and what `check_health` raises.
        """
        self._terminal.acknowledge(manifest, timeout)

    def send_budget_done(self, local_steps: int, timeout: float | None = None) -> int:
        """Budget mode: report the local steps and wait until the frame was written; the connection's epoch.

        At the next teardown broadcasts and their versions are forgotten, so that the restarted syncer is
        believed. Raises ValueError for a count outside 1 to 2^64-1, RuntimeError when disconnected or the
        link is lost.
        """
        require(1 <= local_steps < U64, f"local_steps must be 1 to {U64 - 1}, not {local_steps}")
        return self._terminal.send_budget_done(local_steps, timeout)

    def try_budget_done(self, local_steps: int, timeout: float) -> int | None:
        """As `send_budget_done`, but None where that raises for a missing or lost connection."""
        return self._terminal.try_budget_done(local_steps, timeout)

    def wait_for_budget_restart(self, epoch: int, timeout: float | None = None) -> None:
        """Budget mode: wait until a connection with a larger epoch is up.  Raises TimeoutError."""
        self._terminal.wait_for_budget_restart(epoch, timeout)
