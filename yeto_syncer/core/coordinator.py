"""The coordinator: one `step(now, event) -> effects`, and the phases of a run.

A step first lets the part that the event belongs to take it, then does whatever has become due. Parts raise
`RunError` when the run cannot go on; everything that decides lives in them, this module only routes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from yeto_proto._generated.errors import OutOfRound, WriteTimeout
from yeto_proto.errors_base import YetoError
from yeto_proto._generated.messages import (
    FinalAck,
    Heartbeat,
    InitParams,
    PushFragment,
)
from yeto_proto._generated.types import IsoBackend

from yeto_proto._generated import rules
from yeto_proto.files import Snapshot
from yeto_syncer.core import resume, tape
from yeto_syncer.core.admission import Admission
from yeto_syncer.core.checkpoints import Checkpoints
from yeto_syncer.core.commits import Commits
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import (
    CloseLink,
    Deliver,
    Effect,
    Exit,
    RemoveMarker,
    SaveKind,
    SetTimer,
    WriteFinalState,
    WriteMarker,
)
from yeto_syncer.core.events import (
    DataHelloReceived,
    Delivered,
    Disconnected,
    Dropped,
    Event,
    FileFailed,
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
from yeto_syncer.core.finalize import Finalization, FinalizationState
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.leases import Leases
from yeto_syncer.core.ledger import Ledger
from yeto_syncer.core.model import Model, versions
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.registry import Group, Registry
from yeto_syncer.core.scheduler import Scheduler
from yeto_syncer.core.stop import StopRequest
from yeto_syncer.core.tokens import Tokens


class Phase(Enum):
    """Where the run stands. Each phase leads to the next one; every phase may lead to DONE."""

    WAITING = "waiting"  # for the learners and for INIT
    PREPARING = "preparing"  # the checkpoint before the first round is being written
    TRAINING = "training"
    TERMINAL = "terminal"  # the terminal checkpoint is being written
    FINALIZING = "finalizing"
    STOPPING = "stopping"  # the checkpoint of a graceful stop is being written
    DONE = "done"


class Coordinator:
    """The whole decision state of one syncer process. Same events at the same times, same effects.

    `resumed` is a checkpoint that was read and found consistent in itself; its arrays become the state's.
    """

    def __init__(self, config: Config, resumed: Snapshot | None = None) -> None:
        self._config = config
        self._resumed = resumed
        self._was_resumed = resumed is not None
        self._facts = ServerFacts.of(config)
        self._outbox = Outbox(taping=config.event_tape is not None)
        self._registry = Registry(config.observers)
        self._admission = Admission(config, self._facts, self._registry, self._outbox, resumed)
        self._leases = Leases(config.island_lease_s)
        self._ledger = Ledger(resumed.ledger if resumed is not None else None)
        self._checkpoints = Checkpoints(config, self._outbox, self._snapshot)
        self._tokens = Tokens()
        self._stop = StopRequest(config)
        self._phase = Phase.WAITING
        self._model: Model | None = None
        self._scheduler: Scheduler | None = None
        self._finalization: Finalization | None = None
        self._marked = False
        self._armed: float | None = None
        self._problem = None if resumed is None else resume.problem(config, resumed)
        self._handlers: dict[type, Callable[[float, Any], None]] = {
            Opened: self._on_opened,
            HelloReceived: self._on_hello,
            DataHelloReceived: self._on_data_hello,
            Received: self._on_received,
            Refused: self._on_refused,
            Disconnected: self._on_disconnected,
            Delivered: self._on_delivered,
            Dropped: self._on_dropped,
            Merged: self._on_merged,
            MergeFailed: self._on_merge_failed,
            Saved: self._on_saved,
            SaveFailed: self._on_save_failed,
            FileFailed: self._on_file_failed,
            Stop: self._on_stop,
            Tick: self._on_tick,
        }

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def profile_hash(self) -> bytes:
        """What a profile-bound learner must send: 32 bytes."""
        return self._facts.profile_hash

    def step(self, now: float, event: Event) -> list[Effect]:
        """Take one event; `now` is in seconds on any clock that never goes back. After an `Exit` nothing
        happens."""
        if self._phase is Phase.DONE:
            return []
        try:
            if self._problem is not None:
                raise RunError(self._problem)
            self._handlers[type(event)](now, event)
            self._advance(now)
        except RunError as failure:
            self._end(1, str(failure))
        self._arm(now)
        return self._outbox.take()

    # -- connections -----------------------------------------------------------------------------------------

    def _on_opened(self, now: float, event: Opened) -> None:
        self._admission.opened(now, event.conn)

    def _on_hello(self, now: float, event: HelloReceived) -> None:
        group = self._admission.hello(event.conn, event.hello)
        if group is None:
            return
        if self._model is None:
            assert self._admission.session is not None
            self._model = Model(self._admission.session, self._resumed)
            self._resumed = None
        self._leases.heard(group.link, now)
        self._outbox.tape(tape.member_record("learner_joined", group.link, step=self._model.global_step))
        if self._phase is Phase.TRAINING:
            self._send_cut([group])
        elif self._finalization is not None:
            self._finalization.entered(group)

    def _on_data_hello(self, now: float, event: DataHelloReceived) -> None:
        self._admission.opened(now, event.conn)
        self._admission.data_hello(event.conn, event.data_hello)

    def _on_refused(self, now: float, event: Refused) -> None:
        group = self._registry.of_conn(event.conn)
        if group is None:
            self._admission.refuse(event.conn, event.error)
        else:
            self._close(group.link, event.error)

    def _on_disconnected(self, now: float, event: Disconnected) -> None:
        group = self._registry.of_conn(event.conn)
        if group is None:
            self._admission.closed(event.conn)
        elif group.conn == event.conn:
            self._close(group.link, None)
        else:
            self._registry.detach(group, event.conn)

    def _on_dropped(self, now: float, event: Dropped) -> None:
        if self._registry.is_live(event.link):
            self._close(event.link, WriteTimeout(detail=event.reason))

    def _on_delivered(self, now: float, event: Delivered) -> None:
        group = self._registry.get(event.link)
        if group is None:
            return
        if self._finalization is not None:
            self._finalization.delivered(now, event.link, event.token)
        elif group.token == event.token:
            self._registry.mark_ready(group)
            if self._scheduler is not None and self._registry.is_current(group):
                self._scheduler.ready(now, group)

    def _close(self, link: Link, error: YetoError | None, why: str = "disconnected") -> None:
        """End a group: by its own departure, by an error on one of its sockets, or by its lease."""
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
        if self._scheduler is not None:
            self._scheduler.gone(link)
        if self._finalization is not None:
            self._finalization.gone(link)

    # -- messages of admitted groups -------------------------------------------------------------------------

    def _on_received(self, now: float, event: Received) -> None:
        group = self._registry.get(event.link)
        if group is None:
            return
        self._leases.heard(group.link, now)
        message = event.message
        error = rules.first_broken(
            message.frame_type, "link", message, link=group.link, server=self._facts, history=HistoryFacts()
        )
        if error is not None:
            self._close(group.link, error)
        elif isinstance(message, PushFragment):
            if self._phase is Phase.TRAINING and self._scheduler is not None:
                self._scheduler.push(now, group, message)
            else:
                self._drop_early(group.link, message.global_step)
        elif isinstance(message, Heartbeat):
            if self._phase is Phase.TRAINING and self._registry.is_current(group):
                group.rate.report(now, message.local_step)
        elif isinstance(message, InitParams):
            self._initialize(group, message, event)
        elif isinstance(message, FinalAck):
            if self._finalization is not None:
                self._finalization.ack(group.link, message)
            else:
                self._drop_early(group.link, message.final_global_step)

    def _initialize(self, group: Group, message: InitParams, event: Received) -> None:
        if not self._registry.is_current(group):
            self._outbox.log(
                "warning", "INIT of a superseded generation dropped", learner=group.link.learner_id
            )
            return
        assert self._model is not None and event.values is not None
        if self._model.initialize(message.fragment_id, event.values):
            self._outbox.log("info", "parameters initialized", fragment=message.fragment_id)

    def _drop_early(self, link: Link, step: int) -> None:
        """A push or an ACK outside the phase that it belongs to: nothing gathers it."""
        self._outbox.reject(OutOfRound(detail=f"the run is {self._phase.value}"), link, step=step)

    # -- work that ended -------------------------------------------------------------------------------------

    def _on_merged(self, now: float, event: Merged) -> None:
        assert self._scheduler is not None
        self._scheduler.merged(now, event.step, event.attempt, event.result)

    def _on_merge_failed(self, now: float, event: MergeFailed) -> None:
        raise RunError(
            f"the merge failed: {event.reason}; step {event.step}; restart from the last checkpoint"
        )

    def _on_saved(self, now: float, event: Saved) -> None:
        self._outbox.log("info", "checkpoint written", kind=event.kind.value, step=event.step)
        ended = self._checkpoints.saved(event.kind)
        if ended is SaveKind.VERSION_ZERO or ended is SaveKind.ON_START:
            self._begin_training()
        elif ended is SaveKind.PER_ROUND:
            assert self._scheduler is not None
            self._scheduler.publish(now)
        elif ended is SaveKind.TERMINAL:
            self._finalize(now)
        elif ended is SaveKind.STOP:
            self._end(0, f"stopped at step {event.step}")

    def _on_save_failed(self, now: float, event: SaveFailed) -> None:
        self._checkpoints.failed(event.kind, event.step, event.reason)

    def _on_file_failed(self, now: float, event: FileFailed) -> None:
        raise RunError(f"cannot write: {event.reason}; {event.what}; free space or fix the path")

    def _on_stop(self, now: float, event: Stop) -> None:
        if self._stop.signal(now):
            self._end(128 + event.signal, "second signal: no checkpoint was written")
        elif self._phase is Phase.WAITING or self._phase is Phase.PREPARING:
            self._end(0, "stopped before training")
        else:
            self._outbox.log("warning", "stopping after the rounds in flight", phase=self._phase.value)

    def _on_tick(self, now: float, event: Tick) -> None:
        self._armed = None

    # -- phases ----------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        self._admission.expire(now)
        if self._phase is Phase.WAITING:
            self._try_begin(now)
        if self._finalization is None:
            for link in self._leases.expired(now):
                self._close(link, None, "lease expired")
        if self._phase is Phase.TRAINING:
            self._train(now)
        if self._phase is Phase.FINALIZING and self._finalization is not None:
            self._finalization.advance(now)
            if self._finalization.state is FinalizationState.COMPLETE:
                self._end(0, f"training complete at step {self._finalization.global_step}")

    def _try_begin(self, now: float) -> None:
        """Training starts when every fragment has parameters and enough learners are connected (D17)."""
        model = self._model
        if (
            model is None
            or not model.complete
            or self._registry.connected_participants() < self._config.start_learners
        ):
            return
        if model.global_step >= self._config.total_steps:
            self._save_terminal(now)
            return
        self._phase = Phase.PREPARING
        if self._config.checkpoint_path is not None:
            self._outbox.emit(RemoveMarker())
        self._checkpoints.on_start(resumed=self._was_resumed)
        if not self._checkpoints.holding:
            self._begin_training()

    def _begin_training(self) -> None:
        assert self._model is not None
        config, registry, model = self._config, self._registry, self._model
        checkpoints, outbox = self._checkpoints, self._outbox
        self._phase = Phase.TRAINING
        self._scheduler = Scheduler(
            config,
            self._facts,
            registry,
            model,
            Commits(config, registry, model, self._ledger, checkpoints, outbox),
            checkpoints,
            outbox,
        )
        outbox.log("info", "training starts", step=model.global_step)
        self._send_cut(list(registry.current_groups()))

    def _send_cut(self, groups: list[Group]) -> None:
        """Every fragment at its current version: the initial cut, or the catch-up of a new generation."""
        if not groups:
            return
        assert self._model is not None
        cut = self._model.cut()
        token = self._tokens.next()
        for group in groups:
            self._registry.mark_catching_up(group, token, versions(cut))
        self._outbox.emit(Deliver(tuple(group.link for group in groups), cut, token=token))

    def _train(self, now: float) -> None:
        scheduler, model = self._scheduler, self._model
        assert scheduler is not None and model is not None
        if self._stop.requested:
            scheduler.stop_launching()
            if self._stop.overdue(now):
                scheduler.drop_open()
            else:
                scheduler.drop_hopeless()
        scheduler.advance(now)
        if not scheduler.idle or self._checkpoints.holding:
            return
        if self._stop.requested:
            self._save_stop(model.global_step)
        elif model.global_step >= self._config.total_steps:
            self._save_terminal(now)

    def _save_stop(self, step: int) -> None:
        if self._config.checkpoint_path is None:
            self._outbox.log("warning", "no --checkpoint-path: the state of this run is lost", step=step)
            self._end(0, f"stopped at step {step}")
            return
        self._phase = Phase.STOPPING
        self._checkpoints.save(SaveKind.STOP)

    def _save_terminal(self, now: float) -> None:
        """All steps are committed and nothing is in flight: the one checkpoint of the last step (D20)."""
        self._phase = Phase.TERMINAL
        if self._config.checkpoint_path is None:
            self._finalize(now)
        else:
            self._checkpoints.save(SaveKind.TERMINAL)

    def _finalize(self, now: float) -> None:
        assert self._model is not None
        self._phase = Phase.FINALIZING
        if self._config.mark_final_checkpoint:
            self._marked = True
            self._outbox.emit(WriteMarker(self._model.global_step))
        if self._config.final_state is not None:
            self._outbox.emit(WriteFinalState(self._model.final_state()))
        self._finalization = Finalization(
            self._config, self._registry, self._model, self._tokens, self._outbox, now
        )

    def _end(self, code: int, message: str) -> None:
        if code != 0 and self._marked:
            # A timeout or an error leaves an unmarked checkpoint (D21).
            self._outbox.emit(RemoveMarker())
        self._phase = Phase.DONE
        self._outbox.emit(Exit(code, message))

    def _snapshot(self) -> Snapshot:
        assert self._model is not None
        backend = IsoBackend.SCALAR if self._config.iso_backend == "scalar" else IsoBackend.TORCH_SVD
        return self._model.snapshot(self._ledger, backend)

    # -- time ------------------------------------------------------------------------------------------------

    def _arm(self, now: float) -> None:
        """Ask for a wake-up, unless one comes early enough anyhow: a Tick too many is cheap, a timer is
        not."""
        if self._phase is Phase.DONE:
            return
        due = [self._admission.next_deadline()]
        if self._finalization is not None:
            due.append(self._finalization.deadline)
        else:
            due.append(self._leases.next_deadline())
        if self._phase is Phase.TRAINING and self._scheduler is not None:
            due.append(self._scheduler.next_deadline())
            # Once it is over nothing gathers any more; the last merge ends by its own event.
            due.append(None if self._stop.overdue(now) else self._stop.deadline)
        if self._armed is not None and self._armed <= now:
            self._armed = None
        earliest = min((time for time in due if time is not None), default=None)
        if earliest is not None and (self._armed is None or earliest < self._armed):
            self._armed = earliest
            self._outbox.emit(SetTimer(earliest))
