"""One step at a time from complete to visible: merge job, commit, ledger, per-round checkpoint, broadcast,
tape."""

from __future__ import annotations

from yeto_proto._generated.errors import NonFiniteMerge
from yeto_proto._generated.machines import RoundInput, RoundState
from yeto_syncer.core import tape
from yeto_syncer.core.checkpoints import Checkpoints
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Deliver, Merge, SaveKind
from yeto_syncer.core.failure import RunError
from yeto_syncer.core.jobs import Answer, MergeJob, MergeResult
from yeto_syncer.core.ledger import Ledger
from yeto_syncer.core.model import Model
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.registry import Registry
from yeto_syncer.core.rounds import Round

NON_FINITE_LIMIT = 3  # merges in a row on one fragment that may fail before the run ends (D33)


class Commits:
    """The round that is being merged or committed, if any."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        model: Model,
        ledger: Ledger,
        checkpoints: Checkpoints,
        outbox: Outbox,
    ) -> None:
        self._config = config
        self._registry = registry
        self._model = model
        self._ledger = ledger
        self._checkpoints = checkpoints
        self._outbox = outbox
        self._layout_hash = model.session.fingerprint.hex()
        self._merging: Round | None = None
        self._committed: tuple[Round, float] | None = None
        self._started = 0.0
        self._non_finite: dict[int, int] = {}
        #: Seconds that the last committed round took from its merge to its broadcast (xi_sync); 0 before it.
        self.sync_s = 0.0

    @property
    def busy(self) -> bool:
        """True while a step is between its merge and its broadcast: the next one waits."""
        return self._merging is not None or self._committed is not None or self._checkpoints.holding

    def merge(self, now: float, round_: Round) -> None:
        """Start the merge of a complete round, which must be the next step and have no fold running."""
        config = self._config
        fragment = self._model.fragment(round_.fragment_id)
        if fragment.version != round_.base_version:
            raise AssertionError(f"fragment {round_.fragment_id} changed under step {round_.global_step}")
        dtype = self._model.session.dtype
        answers = round_.deltas() if round_.accumulator is None else ()
        round_.take(RoundInput.TURN)
        self._merging = round_
        self._started = now
        job = MergeJob(
            step=round_.global_step,
            attempt=round_.attempt,
            fragment_id=round_.fragment_id,
            params=fragment.params,
            momentum=fragment.momentum,
            tensors=self._model.tensors(round_.fragment_id),
            answers=tuple(Answer(each.link, each.weight, dtype, each.delta) for each in answers),
            lr=config.outer_lr,
            mu=config.outer_momentum,
            correction=config.delta_correction == "heloco",
            folded=round_.accumulator,
        )
        self._outbox.emit(Merge(job))

    def merged(self, step: int, attempt: int, result: MergeResult | None) -> Round | None:
        """The merge ended: commit it, or refuse all its answers and return the round for another attempt
        (D33)."""
        round_ = self._merging
        if round_ is None or (round_.global_step, round_.attempt) != (step, attempt):
            raise AssertionError(f"no merge of step {step} attempt {attempt} is running")
        self._merging = None
        if round_.state is RoundState.DROPPED:
            return None
        if result is None:
            self._refuse_answers(round_)
            return round_
        self._model.commit(step, result.params, result.momentum)
        for answer in round_.deltas():
            self._ledger.charge(answer.link.learner_id, answer.c_steps, answer.c_tokens)
        round_.release_deltas()
        round_.take(RoundInput.MERGED)
        self._committed = (round_, result.gnorm)
        # The last step is never broadcast, so nothing of it shows before the terminal checkpoint (D20).
        if self._config.per_round_checkpoint and step != self._config.total_steps:
            self._checkpoints.save(SaveKind.PER_ROUND)
        return None

    @property
    def merging(self) -> bool:
        """True while a merge job runs, wanted or not."""
        return self._merging is not None

    @property
    def committed(self) -> bool:
        """True when a step is in the state and not yet visible."""
        return self._committed is not None

    def publish(self, now: float) -> Round:
        """The committed step may be seen: broadcast, then tape. Returns its round, which is over."""
        if self._committed is None:
            raise AssertionError("no step is being committed")
        (round_, gnorm), self._committed = self._committed, None
        step = round_.global_step
        links = self._registry.current_links()
        if step != self._config.total_steps and links:
            self._outbox.emit(Deliver(links, (self._model.versioned(round_.fragment_id),)))
        self.sync_s = now - self._started
        answers = round_.deltas()
        if self._outbox.taping:
            self._outbox.tape(
                tape.merge_record(
                    round_,
                    answers,
                    gnorm=gnorm,
                    fold=self._config.fold,
                    layout_hash=self._layout_hash,
                    sync_s=self.sync_s,
                    now=now,
                )
            )
        round_.take(RoundInput.DURABLE)
        self._non_finite.pop(round_.fragment_id, None)
        self._outbox.count("rounds_committed")
        self._outbox.log(
            "info",
            "outer step",
            step=step,
            fragment=round_.fragment_id,
            responders=len(answers),
            gnorm=gnorm,
            ms=round((now - round_.launched_at) * 1000),
        )
        return round_

    def _refuse_answers(self, round_: Round) -> None:
        for answer in round_.deltas():
            self._outbox.reject(
                NonFiniteMerge(rule="round.merge.finite"),
                answer.link,
                step=round_.global_step,
                fragment=round_.fragment_id,
                attempt=round_.attempt,
            )
        failures = self._non_finite.get(round_.fragment_id, 0) + 1
        self._non_finite[round_.fragment_id] = failures
        if failures >= NON_FINITE_LIMIT:
            raise RunError(
                f"merge not finite {failures} times in a row although every push was; "
                f"step {round_.global_step}, fragment {round_.fragment_id}; "
                "lower --outer-lr or the learners' rate and restart from the last checkpoint"
            )
