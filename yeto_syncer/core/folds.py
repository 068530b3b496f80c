"""Folding on arrival (`--fold on-arrival`, D35): each answer leaves for the sums of its attempt at once."""

from __future__ import annotations

from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Fold
from yeto_syncer.core.jobs import Accumulator, Answer, FoldJob
from yeto_syncer.core.model import Model
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.rounds import Accepted, Round


class Folds:
    """Turns accepted deltas into `Fold` effects. Without the flag it does nothing, and deltas stay bytes."""

    def __init__(self, config: Config, model: Model, outbox: Outbox) -> None:
        self._on_arrival = config.fold == "on-arrival"
        self._correction = config.delta_correction == "heloco"
        self._model = model
        self._outbox = outbox

    def begin(self, round_: Round) -> None:
        """A new attempt starts with sums of its own; folds that still run into older ones are lost with
        them."""
        if self._on_arrival:
            round_.accumulator = Accumulator(self._model.tensors(round_.fragment_id))

    def put(self, round_: Round, accepted: Accepted) -> None:
        """Fold what the round has just taken. Its wire bytes belong to the effect from here on."""
        if round_.accumulator is None:
            return
        answer = Answer(accepted.link, accepted.weight, self._model.session.dtype, accepted.delta)
        accepted.delta = b""
        if answer.weight <= 0.0:
            return  # it would add nothing
        round_.folding += 1
        job = FoldJob(
            step=round_.global_step,
            attempt=round_.attempt,
            fragment_id=round_.fragment_id,
            momentum=self._model.fragment(round_.fragment_id).momentum,
            tensors=self._model.tensors(round_.fragment_id),
            answer=answer,
            correction=self._correction,
            into=round_.accumulator,
        )
        self._outbox.emit(Fold(job))
