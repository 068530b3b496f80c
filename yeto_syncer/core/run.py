"""The phases of a run, from the first learner to the exit, and what leads from one to the next.

`Run` holds what exists only in some phases: model, scheduler, finalization, cutoff. Sockets and frames are
the coordinator's business, so that this module reads as the story of a run.
"""

from __future__ import annotations

from enum import Enum

from yeto_proto._generated.machines import BudgetInput, BudgetState, FinalizationState
from yeto_proto.files.model import Snapshot
from yeto_proto.session import Session
from yeto_syncer.core import tape
from yeto_syncer.core.budget import Cutoff
from yeto_syncer.core.checkpoints import Checkpoints
from yeto_syncer.core.commits import Commits
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import (
    Deliver,
    Exit,
    RemoveMarker,
    SaveKind,
    WriteFinalState,
    WriteMarker,
)
from yeto_syncer.core.facts import ServerFacts
from yeto_syncer.core.failure import RunError
from yeto_syncer.core.finalize import Finalization
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.ledger import Ledger
from yeto_syncer.core.model import Model, versions
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.recovery import Recoveries
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
    CUTOFF = "cutoff"  # a learner has used its budget; the others are waited for
    STOPPING = "stopping"  # the checkpoint of a graceful stop is being written
    DONE = "done"


class Run:
    """One run. Methods take events that matter to its course; `advance` does what has become due."""

    def __init__(
        self,
        config: Config,
        facts: ServerFacts,
        registry: Registry,
        outbox: Outbox,
        resumed: Snapshot | None,
    ) -> None:
        self._config = config
        self._facts = facts
        self._registry = registry
        self._outbox = outbox
        self._resumed = resumed
        self._was_resumed = resumed is not None
        self._ledger = Ledger(resumed.ledger if resumed is not None else None)
        self._checkpoints = Checkpoints(config, outbox, self._snapshot)
        self._tokens = Tokens()
        self._stop = StopRequest(config)
        self._recoveries = Recoveries(outbox)
        self._marked = False
        self._unmarked = False
        self.phase = Phase.WAITING
        self.model: Model | None = None
        self.scheduler: Scheduler | None = None
        self.finalization: Finalization | None = None
        self.cutoff: Cutoff | None = None

    @property
    def leased(self) -> bool:
        """True while the island lease applies. Afterwards learners have other deadlines."""
        return self.finalization is None and self.cutoff is None

    # -- events ----------------------------------------------------------------------------------------------

    def open(self, session: Session) -> None:
        """The first HELLO was admitted: its layout makes the model, in which a checkpoint is all there."""
        self.model = Model(session, self._resumed)
        # Its arrays belong to the model from here on; a second reference would keep the old ones alive.
        self._resumed = None
        self._outbox.tape(tape.start_record(self._config, self.model, resumed=self._was_resumed))

    def entered(self, now: float, group: Group) -> None:
        """A new generation: what it is sent depends on the phase."""
        self._recoveries.joined(now, group.link)
        if self.phase is Phase.WAITING:
            connected, wanted = self._registry.connected_participants(), self._config.start_learners
            if connected < wanted:
                self._outbox.log("info", "waiting for learners", connected=connected, wanted=wanted)
        if self.cutoff is not None:
            self.cutoff.progress(now, group.link.learner_id, None)
        elif self.phase is Phase.TRAINING:
            self._send_cut([group])
        elif self.finalization is not None:
            self.finalization.entered(group)

    def lost(self, now: float, group: Group, reason: str) -> None:
        """The current generation of a learner ended or was superseded."""
        if self.phase is Phase.TRAINING and not self._registry.is_observer(group.link.learner_id):
            self._recoveries.lost(now, group, reason)

    def left(self, link: Link) -> None:
        """A generation ended."""
        if self.scheduler is not None:
            self.scheduler.gone(link)
        if self.finalization is not None:
            self.finalization.gone(link)

    def needs(self, link: Link) -> bool:
        """True while an open round or the finalization waits for something from this generation, or has
        something to tell it."""
        if self.finalization is not None:
            return self.finalization.needs(link)
        return self.scheduler is not None and self.scheduler.needs(link)

    def delivered(self, now: float, group: Group, token: int) -> None:
        """A delivery to this group has left."""
        if self.finalization is not None:
            self.finalization.delivered(now, group.link, token)
        elif group.token == token:
            self._registry.mark_ready(group)
            self._recoveries.ready(now, group.link)
            if self.scheduler is not None and group.ready:
                self.scheduler.ready(now, group)

    def saved(self, now: float, kind: SaveKind, step: int) -> None:
        """A checkpoint is durable. The run goes on if it waited for this one."""
        self._outbox.log("info", "checkpoint written", kind=kind.value, step=step)
        match self._checkpoints.saved(kind):
            case SaveKind.VERSION_ZERO | SaveKind.ON_START if self.phase is Phase.PREPARING:
                self._begin_training()
            case SaveKind.PER_ROUND if self.scheduler is not None:
                self.scheduler.publish(now)
            case SaveKind.TERMINAL:
                self._finalize(now)
            case SaveKind.CUTOFF if self.cutoff is not None:
                self.cutoff.take(BudgetInput.SAVED)
                self._outbox.log("info", "learner-budget cutoff checkpoint written", step=step)
                self.end(0, f"learner-budget cutoff complete at step {step}")
            case SaveKind.STOP:
                self.end(0, f"stopped at step {step}")
            case _:
                pass

    def save_failed(self, kind: SaveKind, step: int, reason: str) -> None:
        self._checkpoints.failed(kind, step, reason)

    def stop(self, now: float, signal: int) -> None:
        """SIGINT or SIGTERM (D22). Also heard after the end, which may still wait for a write."""
        if self._stop.signal(now):
            self._break_off(128 + signal)
        elif self.phase is Phase.WAITING or self.phase is Phase.PREPARING:
            self.end(0, "stopped before training", at_once=True)
        elif self.phase is not Phase.DONE:
            self._outbox.log("warning", "stopping after the rounds in flight", phase=self.phase.value)

    def budget_done(self, now: float, group: Group) -> None:
        """A right report. The first one closes ordinary issuance and drops all rounds whole."""
        link = group.link
        if not self._registry.is_current(group) or self._registry.is_observer(link.learner_id):
            self._outbox.log("warning", "budget report dropped", learner=link.learner_id)
            return
        if self.cutoff is None:
            if self.phase not in (Phase.WAITING, Phase.PREPARING, Phase.TRAINING):
                return
            started = self.phase is Phase.TRAINING
            self.cutoff = Cutoff(self._config, self._outbox, now, initialized=started)
            self.phase = Phase.CUTOFF
            if self.scheduler is not None:
                self.scheduler.cancel()
        self.cutoff.report(link)

    def _break_off(self, code: int) -> None:
        """End at once, without a further checkpoint. The marker goes: the run did not finish (D21)."""
        told = "no checkpoint was written"
        if self.finalization is not None and self._config.checkpoint_path is not None:
            step = self.finalization.global_step
            told = (
                f"the checkpoint of step {step} is complete, but not all learners have acknowledged the end"
            )
        self.end(code, f"second signal: {told}", at_once=True)

    def end(self, code: int, message: str, *, at_once: bool = False) -> None:
        """The last effect."""
        step = None if self.model is None else self.model.global_step
        self._outbox.tape({"event": "run_ended", "step": step, "code": code, "message": message})
        # An earlier process, killed after its marker, may have left one beside a checkpoint of the last step.
        if code == 1 and self.phase is Phase.TERMINAL and self._config.mark_final_checkpoint:
            self._marked = True
        if code != 0 and self._marked:
            # A timeout or an error leaves an unmarked checkpoint (D21).
            self._outbox.emit(RemoveMarker())
        self.phase = Phase.DONE
        self._outbox.emit(Exit(code, message, at_once))

    # -- time ------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Do what is due in this phase; may lead through several."""
        if self.phase is Phase.WAITING:
            self._try_begin(now)
        if self.phase is Phase.TRAINING:
            self._train(now)
        if self.phase is Phase.CUTOFF:
            self._cut_off(now)
        if self.phase is Phase.FINALIZING and self.finalization is not None:
            self.finalization.advance(now)
            if self.finalization.state is FinalizationState.COMPLETE:
                self.end(0, f"training complete at step {self.finalization.global_step}")

    def next_deadline(self, now: float) -> float | None:
        """When `advance` has to be called at the latest, if no event comes."""
        if self.phase is Phase.FINALIZING and self.finalization is not None:
            return self.finalization.deadline
        if self.phase is Phase.CUTOFF and self.cutoff is not None:
            return self.cutoff.next_deadline(self._draining)
        if self.phase is not Phase.TRAINING or self.scheduler is None:
            return None
        due = self.scheduler.next_deadline(now)
        # Once it is over nothing gathers any more; the last merge ends by its own event.
        stop = None if self._stop.overdue(now) else self._stop.deadline
        if due is None or (stop is not None and stop < due):
            return stop
        return due

    @property
    def _draining(self) -> bool:
        return self.scheduler is not None and self.scheduler.draining

    # -- from phase to phase ---------------------------------------------------------------------------------

    def _try_begin(self, now: float) -> None:
        """Training starts when every fragment has parameters and enough learners are connected (D17)."""
        model = self.model
        if (
            model is None
            or not model.complete
            or self._registry.connected_participants() < self._config.start_learners
        ):
            return
        if model.global_step >= self._config.total_steps:
            if not self._was_resumed:
                self._unmark()
            self._save_terminal(now)
            return
        self.phase = Phase.PREPARING
        self._unmark()
        self._checkpoints.on_start(resumed=self._was_resumed)
        if not self._checkpoints.holding:
            self._begin_training()

    def _begin_training(self) -> None:
        assert self.model is not None
        config, registry, model = self._config, self._registry, self.model
        checkpoints, outbox = self._checkpoints, self._outbox
        self.phase = Phase.TRAINING
        commits = Commits(config, registry, model, self._ledger, checkpoints, outbox)
        self.scheduler = Scheduler(
            config, self._facts, registry, model, commits, checkpoints, self._recoveries, outbox
        )
        outbox.log("info", "training starts", step=model.global_step)
        self._send_cut(list(registry.current_groups()))

    def _send_cut(self, groups: list[Group]) -> None:
        """Every fragment at its current version: the initial cut, or the catch-up of a new generation."""
        if not groups:
            return
        assert self.model is not None
        cut = self.model.cut()
        token = self._tokens.next()
        for group in groups:
            self._registry.mark_catching_up(group, token, versions(cut))
        if self.scheduler is not None:
            self.scheduler.cut_sent(groups)
        self._outbox.emit(Deliver(tuple(group.link for group in groups), cut, token=token))

    def _train(self, now: float) -> None:
        scheduler, model = self.scheduler, self.model
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

    def _cut_off(self, now: float) -> None:
        """Wait for the other learners' reports and for the merge that was running, then save and end."""
        cutoff, model = self.cutoff, self.model
        assert cutoff is not None and model is not None
        cutoff.check(now, self._draining)
        if self._draining or self._checkpoints.holding:
            return
        if self._stop.requested:
            if model.complete:
                self._save_stop(model.global_step)
            else:
                self.end(0, "stopped before training")
        elif cutoff.state is BudgetState.SAVING:
            if not model.complete:
                raise RunError("the budget is used up before the run was initialized; INIT; start again")
            self.phase = Phase.STOPPING
            self._unmark()
            self._checkpoints.save(SaveKind.CUTOFF)

    def _unmark(self) -> None:
        """Remove the marker of an earlier run, before anything else stands beside it (D21)."""
        if self._config.checkpoint_path is not None and not self._unmarked:
            self._unmarked = True
            self._outbox.emit(RemoveMarker())

    def _save_stop(self, step: int) -> None:
        if self._config.checkpoint_path is None:
            self._outbox.log("warning", "no --checkpoint-path: the state of this run is lost", step=step)
            self.end(0, f"stopped at step {step}")
            return
        self.phase = Phase.STOPPING
        self._unmark()
        self._checkpoints.save(SaveKind.STOP)

    def _save_terminal(self, now: float) -> None:
        """All steps are committed and nothing is in flight: the one checkpoint of the last step (D20)."""
        if self._config.learner_budget_steps is not None:
            raise RunError(
                f"all {self._config.total_steps} steps are done and no learner has reported its budget; "
                "--total-steps; raise it above what the budget needs"
            )
        self.phase = Phase.TERMINAL
        if self._config.checkpoint_path is None:
            self._finalize(now)
        else:
            self._checkpoints.save(SaveKind.TERMINAL)

    def _finalize(self, now: float) -> None:
        assert self.model is not None
        self.phase = Phase.FINALIZING
        if self._config.mark_final_checkpoint:
            self._marked = True
            self._outbox.emit(WriteMarker(self.model.global_step))
        if self._config.final_state is not None:
            self._outbox.emit(WriteFinalState(self.model.final_state()))
        self.finalization = Finalization(
            self._config, self._registry, self.model, self._tokens, self._outbox, now
        )

    def _snapshot(self) -> Snapshot:
        assert self.model is not None
        return self.model.snapshot(self._ledger, self._config.iso_backend_id)
