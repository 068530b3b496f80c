"""`Learner`: Decoupled DiLoCo in a training loop, three lines of it.

with Learner(parameters, "host:29400", learner_id=0) as learner:
    while not learner.done:
        train_one_step(parameters)
        learner.step(tokens=n)
    learner.finish()
"""

from __future__ import annotations

import logging
import os
import ssl
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from types import TracebackType
from typing import Any, Literal, Self

import numpy.typing as npt

from yeto_proto._generated.errors import WrongState
from yeto_proto._generated.types import Dtype
from yeto_proto.layout import Layout, Pattern

from .arguments import (
    make_layout,
    parse_contract,
    parse_dtype,
    parse_hash,
    require,
    require_seconds,
    require_whole,
)
from .budget import Consolidation
from .channel import Address
from .client import DEFAULT_RECEIVE_BUDGET, SyncerClient
from .core.boundary import Boundary
from .core.modes import InstallMode
from .errors import NonFiniteParameterError
from .exporter import DeltaBuffers, Exporter
from .final_cut import FinalCut
from .fragments import FragmentValues
from .heartbeat import HeartbeatThread
from .identity import IdentityLock
from .initial_cut import InitialCut
from .logs import show_log_lines
from .parameters import Parameters, as_parameters
from .record import ResumeRecord
from .resume import Resume
from .second_init import SecondInit

__all__ = ["Learner"]

log = logging.getLogger(__name__)


class Learner:
    """One learner of a run, made for one thread: its own threads never touch the parameters.

    The layout, equal on every learner:
        parameters: mapping of name to writable float numpy array, updated in place.
        num_fragments, pattern ("binpack", "strided"), matrix_merge ("rda", "iso"), avg_name_regex: see
        `yeto_proto.build_layout`.

    The session:
        address: "host:port".
        learner_id: 0 to M-1, each used by one process; learner 0 sends the initial values.
        dtype: "f32", "bf16" or "q4", of bulk on the wire; num_streams: data sockets, 0 to 256.
        session_contract: 32 bytes or a string, fresh for each experiment.
        syncer_profile: 32 bytes or hex that the syncer's configuration must have.
        hmac_key: the shared key, as bytes, text, or the `pathlib.Path` of its file; tls: an ssl.SSLContext.

    Training:
        merge_alpha: share of the local value that a broadcast leaves, 0 to 1.
        min_local_steps: a pull is answered after that many steps since the last broadcast (H).
        budget_steps: a benchmark's number of local steps, after which `finish` reports and consolidates.
        reuse_anchor: answer several rounds from one broadcast (asynchronous carry).
        anchor_dtype: "bf16" halves the anchors' memory in bf16 and q4 sessions, and loses nothing.
        receive_budget: bytes of broadcasts that may wait for a step before reading pauses.

    Faults and waits, in seconds:
        connect_timeout_s: bound of the first connection; max_reconnects: None for no limit.
        heartbeat_s: 0 for none; heartbeat_stall_s: it falls silent when no step is done for so long.
        initial_cut_timeout_s: bound of the wait for the first broadcasts, 0 for no wait.
        resume: a `ResumeRecord` or the path of one; init_probe_s: how long a resumed learner 0 waits for the
        syncer's state before it sends its own. A running one that dialled again waits at most 60 s.
        accept_rewound_catch_up: follow a syncer that restarted from an older checkpoint.
        finalization_timeout_s: bound of `finish`.
        show_progress: draw a bar on a terminal while the first or the final cut takes more than a second.

    Raises ValueError for what cannot be used, OSError for a file that cannot be read.
    """

    def __init__(
        self,
        parameters: Mapping[str, npt.NDArray[Any]] | Parameters,
        address: str | Address,
        *,
        learner_id: int = 0,
        num_fragments: int = 4,
        dtype: Dtype | str = "bf16",
        num_streams: int = 4,
        merge_alpha: float = 0.5,
        session_contract: bytes | str | None = None,
        resume: ResumeRecord | str | os.PathLike[str] | None = None,
        hmac_key: bytes | str | os.PathLike[str] | None = None,
        tls: ssl.SSLContext | None = None,
        syncer_profile: bytes | str | None = None,
        pattern: Pattern = "binpack",
        matrix_merge: Literal["rda", "iso"] = "rda",
        avg_name_regex: str | None = None,
        min_local_steps: int = 1,
        budget_steps: int | None = None,
        reuse_anchor: bool = False,
        anchor_dtype: Dtype | str = "f32",
        heartbeat_s: float = 30.0,
        heartbeat_stall_s: float = 0.0,
        initial_cut_timeout_s: float = 3600.0,
        init_probe_s: float = 1800.0,
        finalization_timeout_s: float = 900.0,
        accept_rewound_catch_up: bool = True,
        connect_timeout_s: float = 900.0,
        max_reconnects: int | None = None,
        receive_budget: int = DEFAULT_RECEIVE_BUDGET,
        show_progress: bool = True,
    ) -> None:
        require(0.0 <= merge_alpha <= 1.0, f"merge_alpha must be 0 to 1, not {merge_alpha}")
        min_local_steps = require_whole("min_local_steps", min_local_steps, 1)
        if budget_steps is not None:
            budget_steps = require_whole("budget_steps", budget_steps, 1, 2**32 - 1)
        if max_reconnects is not None:
            max_reconnects = require_whole("max_reconnects", max_reconnects, 0)
        require_seconds(
            heartbeat_s=heartbeat_s,
            heartbeat_stall_s=heartbeat_stall_s,
            initial_cut_timeout_s=initial_cut_timeout_s,
            init_probe_s=init_probe_s,
            finalization_timeout_s=finalization_timeout_s,
            connect_timeout_s=connect_timeout_s,
        )
        self._parameters = as_parameters(parameters)
        self.layout: Layout = make_layout(
            self._parameters.shapes(), num_fragments, pattern, matrix_merge, avg_name_regex
        )
        contract = parse_contract(session_contract)
        self.client = SyncerClient(
            address,
            learner_id,
            self.layout,
            dtype,
            num_streams,
            connect_timeout_s,
            max_reconnects,
            finalization_timeout_s,
            contract,
            parse_hash(syncer_profile, "syncer_profile"),
            hmac_key,
            tls=tls,
            accept_rewound_catch_up=accept_rewound_catch_up,
            receive_budget=receive_budget,
        )
        session = self.client.session
        self._anchor_dtype = parse_dtype(anchor_dtype)
        require(
            self._anchor_dtype is Dtype.F32
            or (self._anchor_dtype is Dtype.BF16 and session.dtype is not Dtype.F32),
            f"anchor_dtype {anchor_dtype!r} would lose bits; use f32, or bf16 in a bf16 or q4 session",
        )
        self._values = FragmentValues(
            self._parameters, self.layout, session.dtype, self._anchor_dtype, merge_alpha
        )
        self._finalization_timeout = finalization_timeout_s
        self._budget = budget_steps
        self._boundary = Boundary(self.layout.num_fragments, min_local_steps, reuse_anchor)
        self._buffers = DeltaBuffers(session.max_numel)
        self._resume = Resume(self._boundary, self._values, session.fingerprint)
        self._exporter = Exporter(self.client, self._buffers, self._resume.journal)
        self._second_init: SecondInit | None = None
        if learner_id == 0:
            self._second_init = SecondInit(
                self.client,
                self._boundary,
                self._values,
                self._buffers,
                self._exporter,
                init_probe_s,
                rewinds=accept_rewound_catch_up,
            )
        self._heartbeat = HeartbeatThread(self.client, heartbeat_s, heartbeat_stall_s)
        self._modes: Counter[InstallMode] = Counter()
        self._state = _State.NEW
        if resume is not None:
            self._resume.restore(resume)
        self._cut = InitialCut(
            self.client,
            self._boundary,
            self._values,
            self._install_next,
            timeout=initial_cut_timeout_s,
            probe=init_probe_s if self._resume.resumed else None,
            show_progress=show_progress,
        )
        self._show_progress = show_progress
        self._identity = IdentityLock(
            self.client.addr, self.client.learner_id, self.client.session_contract_hash
        )
        self._default_contract = contract is None

    # -- life

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._state is _State.OPEN:
            log.warning("the learner is closed without finish(): its parameters are not the final ones")
        self.close()

    def open(self) -> None:
        """Connect, send the initial values if this is learner 0, and install the first broadcast of each
        fragment.

        Raises LearnerIdInUseError, NonFiniteParameterError, ConnectionError when the syncer cannot be
        reached, TimeoutError when the first broadcasts do not come, SessionRejectedError or RuntimeError when
        the syncer refuses, OSError when the journal beside the resume record cannot be written; nothing is
        left open then.
        """
        if self._state is not _State.NEW:
            raise WrongState(detail="a learner is opened once; make a new one")
        show_log_lines()
        if self._default_contract:
            log.warning(
                "no session_contract was given: every run of this layout shares one contract, so the "
                "syncer or the checkpoint of an earlier run would be taken for this one; give each "
                "experiment its own"
            )
        self._parameters.check()
        if self.client.learner_id == 0:
            self._values.check_finite()
        self._identity.take()
        self._state = _State.OPEN
        try:
            self._resume.open()
            self.client.start()
            self._exporter.start()
            self._heartbeat.start(self.local_step)
            self._cut.run()
        except BaseException:
            self.close()
            raise
        self._heartbeat.progressed(self.local_step)
        if self._resume.resumed:
            counts = ", ".join(f"{mode.value} {count}" for mode, count in self._modes.items())
            log.warning(
                "resumed at local step %d; fragments by install mode: %s", self.local_step, counts or "none"
            )

    def close(self) -> None:
        """Give back sockets and threads; the parameters stay as they are.  May be called again."""
        if self._state is not _State.FINISHED:
            self._state = _State.CLOSED
        self._heartbeat.close()
        self.client.close()
        self._exporter.close()
        self._resume.journal.close()
        self._identity.release()

    # -- the training loop

    def step(self, tokens: int = 0) -> bool:
        """The boundary after one optimizer step on `tokens` units of data; True once the run is over.

        Installs the broadcasts that arrived, then answers the pulls that can be answered; never waits for the
        network. Raises ValueError for parameters that no longer fit, NonFiniteParameterError, and what
        `check_health` raises.
        """
        self._require_open()
        require(tokens >= 0, f"tokens must be 0 or more, not {tokens}")
        self._parameters.check()
        boundary, client = self._boundary, self.client
        boundary.count_step(int(tokens))
        self._heartbeat.progressed(boundary.steps)
        client.check_health()
        self._exporter.check()
        for answer, generation in self._exporter.settled():
            boundary.settled(answer, generation)
        if self.done:
            return True
        catching_up = client.catching_up  # before anything is installed: later it would promise too much
        # Pulls before broadcasts: one whose own merge is installed below is dropped instead of answered.
        boundary.add_pulls(client.drain_pulls())
        boundary.keep_pulls_of(client.connection_generation)
        while self._install_next():
            pass
        if client.connected:
            boundary.release_replaced(client.connection_generation)
            self._answer_pulls(catching_up)
        if self._second_init is not None:
            self._second_init.look()
        return self.done

    def _install_next(self) -> bool:
        """Install the oldest broadcast that waits, if any; nothing refers to its bytes afterwards."""
        update = self.client.next_update()
        if update is None:
            return False
        mode = self._boundary.mode_of(update, anchor_saved=update.fragment_id in self._values.anchored)
        self._values.install(update, mode)
        self._boundary.installed(update, mode)
        self._modes[mode] += 1
        return True

    def _answer_pulls(self, catching_up: frozenset[int]) -> None:
        for pull in list(self._boundary.pending):
            answer = self._boundary.answer(pull, catching_up)
            if answer is None:
                continue
            delta = self._buffers.take(self._values.numel(pull.fragment_id))
            if delta is None:
                continue  # the sender is behind: the pull waits for the next boundary
            try:
                self._values.write_delta(pull.fragment_id, delta)
            except NonFiniteParameterError:
                self._buffers.give(delta)
                raise
            self._boundary.handed_out(answer)
            self._exporter.submit(answer, delta)

    @property
    def done(self) -> bool:
        """True once the syncer has announced the final cut, or the budget of local steps is used up."""
        return (
            self._state is _State.FINISHED
            or self.client.finalizing.is_set()
            or self.client.shutdown.is_set()
            or (self._budget is not None and self._boundary.steps >= self._budget)
        )

    def finish(self, timeout: float | None = None) -> None:
        """Wait for the f32 final cut, write it over the parameters, acknowledge it, and wait for SHUTDOWN.

        With budget_steps it first reports the budget, waits for the syncer's restart and answers each
        fragment once more.  timeout: seconds for all of it, by default `finalization_timeout_s`.  Raises
        TimeoutError; if the cut was not complete by then, the parameters are untouched, and training may go
        on.  Also raises what `check_health` raises.
        """
        if self._state is _State.FINISHED:
            return
        self._require_open()
        limit = self._finalization_timeout if timeout is None else timeout
        self._heartbeat.waiting()
        try:
            if self._budget is not None and not self.client.finalizing.is_set():
                self._consolidate(self._budget, limit)
            FinalCut(self.client, self._boundary, self._values, show_progress=self._show_progress).run(limit)
        except BaseException:
            self._heartbeat.progressed(self.local_step)  # who goes on training can stall again
            raise
        self._state = _State.FINISHED

    def _consolidate(self, budget: int, timeout: float) -> None:
        if self.local_step != budget:
            raise WrongState(
                detail=f"{self.local_step} of {budget} budget_steps are done; train on, then finish"
            )
        Consolidation(
            self.client,
            self._values,
            self._resume.journal,
            steps=budget,
            tokens=self._boundary.tokens,
            timeout=timeout,
        ).run()

    def _require_open(self) -> None:
        if self._state is not _State.OPEN:
            raise WrongState(detail=f"the learner is {self._state.value}; use it inside its with block")

    # -- resume

    def save_state(self, path: str | os.PathLike[str] | None = None, *, anchors: bool = True) -> ResumeRecord:
        """The resume record of this step boundary, also written to `path` if given.

        Save it together with the parameters, which it belongs to.  With `anchors` (4 bytes a parameter, 2
        with bf16 anchors) local progress also survives a syncer that went on meanwhile.  What is pushed later
        is noted in `<path>.pushed`: keep the two together.  A record without a path hears of no later push.
        Raises OSError.
        """
        return self._resume.save(path, anchors=anchors)

    # -- for logs and reports

    @property
    def versions(self) -> list[int | None]:
        """The version that each fragment's anchor has; None before its first broadcast."""
        return [state.version for state in self._boundary.fragments]

    @property
    def global_step(self) -> int:
        """The newest global step seen."""
        return self._boundary.global_step

    @property
    def local_step(self) -> int:
        """Local steps in all, those before a resume included."""
        return self._boundary.steps

    @property
    def rounds_answered(self) -> int:
        """Pushes that were handed to the network completely."""
        return self._boundary.rounds_answered

    @property
    def pending_pulls(self) -> int:
        """Pulls that wait for an anchor, for local steps, or for the sender."""
        return len(self._boundary.pending)

    @property
    def bytes_sent(self) -> int:
        return self.client.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self.client.bytes_received

    @property
    def generation(self) -> int:
        """The current connection generation, a random number; 0 before the first connection."""
        return self.client.connection_generation

    @property
    def connected(self) -> bool:
        return self.client.connected


class _State(Enum):
    NEW = "not open yet"
    OPEN = "open"
    FINISHED = "finished"
    CLOSED = "closed"
