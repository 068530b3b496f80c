"""The coordinator: one `step(now, event) -> effects`.

A step first lets the part that the event belongs to take it, then does whatever has become due. Parts raise
`RunError` when the run cannot go on; everything that decides lives in them, this module only routes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from yeto_proto._generated import rules
from yeto_proto._generated.errors import (
    BadCounter,
    BadScale,
    BudgetDuplicate,
    BudgetMismatch,
    NonFinite,
    OutOfRound,
    WriteTimeout,
)
from yeto_proto._generated.messages import (
    BudgetDone,
    Error,
    FinalAck,
    Heartbeat,
    InitParams,
    PushFragment,
)
from yeto_proto.errors_base import YetoError
from yeto_proto.files.model import Snapshot
from yeto_syncer.core import resume, tape
from yeto_syncer.core.admission import Admission
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import CloseConn, CloseLink, Effect, Send, SetTimer
from yeto_syncer.core.events import (
    DataHelloReceived,
    Delivered,
    Disconnected,
    DrainFailed,
    Dropped,
    Event,
    FileFailed,
    Folded,
    Heard,
    HelloReceived,
    Merged,
    MergeFailed,
    Opened,
    Received,
    Refused,
    Saved,
    SaveFailed,
    Stop,
    Tick,
)
from yeto_syncer.core.facts import HistoryFacts, ServerFacts
from yeto_syncer.core.failure import RunError
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.leases import Leases
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.registry import Group, Registry
from yeto_syncer.core.run import Phase, Run
from yeto_syncer.core.view import RunView, view

__all__ = ["Coordinator", "Phase"]

#: What ends the whole group, on whichever of its sockets it comes: values and counters that no learner may
#: send (D11, D12).
ENDS_LEARNER = (NonFinite, BadScale, BadCounter)


class Coordinator:
    """The whole decision state of one syncer process. Same events at the same times, same effects.

    `resumed` is a checkpoint that was read and found consistent in itself; its arrays become the state's.
    With `taping` there are records for an event tape also when the configuration names none.
    """

    def __init__(self, config: Config, resumed: Snapshot | None = None, *, taping: bool = False) -> None:
        self._config = config
        self._facts = ServerFacts.of(config)
        self._outbox = Outbox(taping=taping or config.event_tape is not None)
        self._registry = Registry(config.observers)
        self._admission = Admission(config, self._facts, self._registry, self._outbox, resumed)
        self._leases = Leases(config.island_lease_s)
        self._run = Run(config, self._facts, self._registry, self._outbox, resumed)
        self._armed: float | None = None
        self._problem = None if resumed is None else resume.problem(config, resumed)
        self._handlers: dict[type, Callable[[float, Any], None]] = {
            Opened: self._on_opened,
            HelloReceived: self._on_hello,
            DataHelloReceived: self._on_data_hello,
            Received: self._on_received,
            Heard: self._on_heard,
            Refused: self._on_refused,
            Disconnected: self._on_disconnected,
            Delivered: self._on_delivered,
            Dropped: self._on_dropped,
            Folded: self._on_folded,
            Merged: self._on_merged,
            MergeFailed: self._on_merge_failed,
            DrainFailed: self._on_drain_failed,
            Saved: self._on_saved,
            SaveFailed: self._on_save_failed,
            FileFailed: self._on_file_failed,
            Stop: self._on_stop,
            Tick: self._on_tick,
        }

    @property
    def phase(self) -> Phase:
        return self._run.phase

    @property
    def profile_hash(self) -> bytes:
        """What a profile-bound learner must send: 32 bytes."""
        return self._facts.profile_hash

    def view(self, now: float) -> RunView:
        """The run as it stands, for whoever looks on."""
        return view(now, self._config, self._registry, self._run)

    def step(self, now: float, event: Event) -> list[Effect]:
        """Take one event; `now` is in seconds on any clock that never goes back. After an `Exit` only a
        second signal counts: the exit may wait behind a write, and that signal waits for nothing."""
        if self._run.phase is Phase.DONE:
            if isinstance(event, Stop):
                self._run.stop(now, event.signal)
            return self._outbox.take()
        try:
            if self._problem is not None:
                raise RunError(self._problem)
            self._handlers[type(event)](now, event)
            self._advance(now)
        except RunError as failure:
            self._run.end(1, str(failure))
        self._arm(now)
        return self._outbox.take()

    # -- connections -----------------------------------------------------------------------------------------

    def _on_opened(self, now: float, event: Opened) -> None:
        self._admission.opened(now, event.conn)

    def _on_hello(self, now: float, event: HelloReceived) -> None:
        before = self._registry.current(event.hello.learner_id)
        group = self._admission.hello(event.conn, event.hello)
        if group is None:
            return
        if self._run.model is None:
            assert self._admission.session is not None
            self._run.open(self._admission.session)
        assert self._run.model is not None
        self._hear(now, group)
        self._outbox.tape(tape.member_record("learner_joined", group.link, step=self._run.model.global_step))
        if before is not None:
            self._run.lost(now, before, "superseded")
        self._run.entered(now, group)
        self._thin_out(now, group.link.learner_id)

    def _thin_out(self, now: float, learner_id: int) -> None:
        """Close older generations that nothing needs, so that a learner that dials again and again takes no
        more descriptors. The last one stays: it may be another process, which would only dial again."""
        for link in self._registry.superseded(learner_id)[:-1]:
            if not self._run.needs(link):
                self._close(now, link, None, "superseded")

    def _on_data_hello(self, now: float, event: DataHelloReceived) -> None:
        self._admission.data_hello(event.conn, event.data_hello)

    def _on_refused(self, now: float, event: Refused) -> None:
        group = self._registry.of_conn(event.conn)
        if group is None:
            if self._admission.pending(event.conn):
                self._admission.refuse(event.conn, event.error)
        else:
            self._break(now, group, event.conn, event.error)

    def _on_disconnected(self, now: float, event: Disconnected) -> None:
        group = self._registry.of_conn(event.conn)
        if group is None:
            self._admission.closed(event.conn)
        elif group.conn == event.conn:
            self._close(now, group.link, None)
        else:
            self._registry.detach(group, event.conn)

    def _on_dropped(self, now: float, event: Dropped) -> None:
        if self._registry.is_live(event.link):
            self._close(now, event.link, WriteTimeout(detail=event.reason))

    def _on_delivered(self, now: float, event: Delivered) -> None:
        group = self._registry.get(event.link)
        if group is not None:
            self._run.delivered(now, group, event.token)

    def _break(self, now: float, group: Group, conn: int, error: YetoError) -> None:
        """A socket of an admitted group broke a rule. A data socket ends alone, the ERROR goes out on the
        control stream, and the generation stays, unless the rule ends the learner (D11, D12)."""
        if conn == group.conn or isinstance(error, ENDS_LEARNER):
            self._close(now, group.link, error)
            return
        self._registry.detach(group, conn)
        group.broken.add(conn)
        link = group.link
        if error.sends:
            self._outbox.emit(Send(link, Error(text=str(error))))
        self._outbox.emit(CloseConn(conn))
        self._outbox.count("data_streams_closed", reason=type(error).__name__)
        self._outbox.log(
            "warning",
            "data stream closed",
            learner=link.learner_id,
            generation=link.generation,
            reason=str(error),
        )

    def _close(self, now: float, link: Link, error: YetoError | None, why: str = "disconnected") -> None:
        """End a group: by its own departure, by an error on one of its sockets, or by its lease."""
        current = self._registry.current(link.learner_id)
        self._registry.remove(link)
        self._leases.forget(link)
        reason = why if error is None else type(error).__name__
        self._outbox.emit(CloseLink(link, error))
        self._outbox.count("learners_left", reason=reason)
        self._outbox.log(
            "info" if error is None else "warning",
            "learner left",
            learner=link.learner_id,
            generation=link.generation,
            reason=reason if error is None else str(error),
        )
        self._outbox.tape(tape.member_record("learner_left", link, reason=reason))
        if current is not None and current.link == link:
            self._run.lost(now, current, reason)
        self._run.left(link)

    # -- messages of admitted groups -------------------------------------------------------------------------

    def _on_received(self, now: float, event: Received) -> None:
        group = self._registry.get(event.link)
        if group is None or event.conn in group.broken:
            return
        self._hear(now, group)
        message = event.message
        cutoff = self._run.cutoff
        reported = cutoff is not None and cutoff.reported(group.link.learner_id)
        error = rules.first_broken(
            message.frame_type,
            "link",
            message,
            link=group.link,
            server=self._facts,
            history=HistoryFacts(reported=reported),
        )
        if isinstance(error, (BudgetMismatch, BudgetDuplicate)):
            # The one case in which a frame of a learner ends the run (D5): the benchmark is void.
            raise RunError(f"{error}; {group.link}; start the benchmark again with one budget for all")
        if error is not None:
            self._break(now, group, event.conn, error)
            return
        if cutoff is not None and isinstance(message, (PushFragment, Heartbeat)):
            cutoff.progress(now, group.link.learner_id, message.local_step)
        self._dispatch(now, group, event)

    def _on_heard(self, now: float, event: Heard) -> None:
        group = self._registry.get(event.link)
        if group is not None:
            self._hear(now, group)

    def _hear(self, now: float, group: Group) -> None:
        """A sign of life: it renews the island lease, which an observer does not have (D31, D37)."""
        group.heard_at = now
        if not self._registry.is_observer(group.link.learner_id):
            self._leases.heard(group.link, now)

    def _dispatch(self, now: float, group: Group, event: Received) -> None:
        message, run = event.message, self._run
        if isinstance(message, PushFragment):
            if run.phase is Phase.TRAINING and run.scheduler is not None:
                run.scheduler.push(now, group, message)
            else:
                self._drop_early(group.link, message.global_step)
        elif isinstance(message, Heartbeat):
            if run.phase is Phase.TRAINING and self._registry.is_current(group):
                group.rate.report(now, message.local_step)
        elif isinstance(message, InitParams):
            self._initialize(group, message, event)
        elif isinstance(message, FinalAck):
            if run.finalization is not None:
                run.finalization.ack(group.link, message)
            else:
                self._drop_early(group.link, message.final_global_step)
        elif isinstance(message, BudgetDone):
            run.budget_done(now, group)

    def _initialize(self, group: Group, message: InitParams, event: Received) -> None:
        if not self._registry.is_current(group):
            self._outbox.log("warning", "INIT of an old generation dropped", learner=group.link.learner_id)
            return
        assert self._run.model is not None and event.values is not None
        if self._run.model.initialize(message.fragment_id, event.values):
            self._outbox.log("info", "parameters initialized", fragment=message.fragment_id)

    def _drop_early(self, link: Link, step: int) -> None:
        """A push or an ACK outside the phase that it belongs to: nothing gathers it."""
        self._outbox.reject(OutOfRound(detail=f"the run is {self._run.phase.value}"), link, step=step)

    # -- work that ended -------------------------------------------------------------------------------------

    def _on_folded(self, now: float, event: Folded) -> None:
        assert self._run.scheduler is not None
        self._run.scheduler.folded(event.step, event.attempt)

    def _on_merged(self, now: float, event: Merged) -> None:
        assert self._run.scheduler is not None
        self._run.scheduler.merged(now, event.step, event.attempt, event.result)

    def _on_merge_failed(self, now: float, event: MergeFailed) -> None:
        raise RunError(
            f"the merge failed: {event.reason}; step {event.step}; restart from the last checkpoint"
        )

    def _on_drain_failed(self, now: float, event: DrainFailed) -> None:
        raise RunError(
            f"no checkpoint was written: {event.reason}; --iso-backend torch-svd; "
            "restart from the last checkpoint"
        )

    def _on_saved(self, now: float, event: Saved) -> None:
        self._run.saved(now, event.kind, event.step)

    def _on_save_failed(self, now: float, event: SaveFailed) -> None:
        self._run.save_failed(event.kind, event.step, event.reason)

    def _on_file_failed(self, now: float, event: FileFailed) -> None:
        raise RunError(f"cannot write: {event.reason}; {event.what}; free space or fix the path")

    def _on_stop(self, now: float, event: Stop) -> None:
        self._run.stop(now, event.signal)

    def _on_tick(self, now: float, event: Tick) -> None:
        self._armed = None

    # -- time ------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self._run.phase is Phase.DONE:
            return
        self._admission.expire(now)
        if self._run.leased:
            for link in self._leases.expired(now):
                self._close(now, link, None, "lease expired")
        self._run.advance(now)

    def _arm(self, now: float) -> None:
        """Ask for a wake-up, unless one comes early enough: a Tick too many is cheap, a timer is not."""
        if self._run.phase is Phase.DONE:
            return
        if self._armed is not None and self._armed <= now:
            self._armed = None
        earliest = self._run.next_deadline(now)
        for due in (
            self._admission.next_deadline(),
            self._leases.next_deadline() if self._run.leased else None,
        ):
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        if earliest is not None and (self._armed is None or earliest < self._armed):
            self._armed = earliest
            self._outbox.emit(SetTimer(earliest))
