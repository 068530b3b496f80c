"""`TorchLearner`: a PyTorch module in Decoupled DiLoCo, on one process or many.

with TorchLearner(module, "host:29400", learner_id=0) as learner:
    while not learner.done:
        loss(module(batch)).backward()
        optimizer.step()
        learner.step(tokens=n)
    learner.finish()
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

import torch

from yeto_learner.arguments import require
from yeto_learner.channel import Address
from yeto_learner.client import SyncerClient
from yeto_learner.learner import Learner
from yeto_learner.logs import show_log_lines
from yeto_learner.options import LearnerOptions
from yeto_learner.record import ResumeRecord
from yeto_proto._generated.errors import WrongState
from yeto_proto.layout import Layout

from .parameters import TorchParameters
from .ranks import Ranks, Status
from .schedule import rebuild_schedule
from .tensors import ModuleTensors, NameFilter

__all__ = ["TorchLearner"]

T = TypeVar("T")

MARGIN: Final = 600.0  # seconds that rank 0 may take beyond its own bounded waits


class TorchLearner:
    """A `Learner` whose parameters are those of a module: plain, DDP, or sharded with FSDP2 (`fully_shard`).

    module: the model, wrapped, sharded and on its device already.  The parameters that require a gradient
    take part, under the names of the plain module, so that learners of all three kinds fit together.
    name_filter: a regular expression found anywhere in the name, or a function of it, to leave some out.
    scheduler: the learning-rate scheduler, stepped once with each update: after a resume a fresh one is
    brought to the resumed step.  The other arguments are those of `Learner`.

    With torch.distributed initialized (`torchrun`), the processes of its default group are one learner:
    rank 0 talks to the syncer and holds the anchors on its CPU, the others follow.  All of them make the
    learner and call `open`, `step` and `finish`.  Buffers (batch statistics) stay local.

    Raises ValueError for what cannot be used, on all ranks.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        address: str | Address,
        *,
        name_filter: NameFilter | None = None,
        scheduler: object | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        self._tensors = ModuleTensors(module, name_filter)
        self._scheduler = scheduler
        self._ranks = Ranks(self._tensors, _longest_wait(options))
        self._parameters = TorchParameters(self._tensors, self._ranks)
        self._learner: Learner | None = None
        self._status = Status()
        self._together(lambda: self._make(address, options))

    def _make(self, address: str | Address, options: LearnerOptions) -> None:
        self._learner = Learner(self._parameters, address, **options)

    # -- life

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._learner is not None:
            self._learner.__exit__(kind, error, trace)

    def open(self) -> None:
        """As `Learner.open`, on all ranks."""
        if self._ranks.leads:
            show_log_lines()
        rebuild_schedule(self._scheduler, self._status.local_step, quiet=not self._ranks.leads)
        self._tensors.reshard()
        self._together(lambda: self.learner.open())

    def close(self) -> None:
        """As `Learner.close`; each rank for itself."""
        if self._learner is not None:
            self._learner.close()

    # -- the training loop

    def step(self, tokens: int = 0) -> bool:
        """The boundary after one optimizer step, on all ranks; True once the run is over.

        tokens: units of data of this rank, added up over the ranks.  Raises as `Learner.step`, and
        OtherRankError when it was another rank that failed.
        """
        problem: ValueError | None = None
        try:
            require(tokens >= 0, f"tokens must be 0 or more, not {tokens}")
            self._tensors.check()
        except ValueError as error:
            problem = error
        total = self._ranks.add(int(tokens), failed=problem is not None)
        if problem is not None:
            raise problem
        self._tensors.reshard()
        self._together(lambda: self.learner.step(total))
        return self.done

    @property
    def done(self) -> bool:
        """True once the run is over, as of the last boundary, so that all ranks agree."""
        return bool(self._status.done)

    def finish(self, timeout: float | None = None) -> None:
        """As `Learner.finish`, on all ranks."""
        self._tensors.reshard()
        self._together(lambda: self.learner.finish(timeout))

    def save_state(
        self, path: str | os.PathLike[str] | None = None, *, anchors: bool = True
    ) -> ResumeRecord | None:
        """As `Learner.save_state` on rank 0; the other ranks have nothing to save and get None."""
        return None if self._learner is None else self._learner.save_state(path, anchors=anchors)

    def _together(self, action: Callable[[], object]) -> None:
        """Run an action of rank 0 with the help of all ranks."""
        if not self._ranks.leads:
            self._status = self._ranks.follow()
            return

        def whole() -> None:
            action()
            self._parameters.flush()

        try:
            _, self._status = self._ranks.lead(whole, self._now)
        finally:
            self._parameters.drop()

    def _now(self) -> Status:
        learner = self.learner
        return Status(int(learner.done), learner.global_step, learner.local_step, learner.rounds_answered)

    # -- for logs and reports

    @property
    def learner(self) -> Learner:
        """The `Learner` of rank 0.  Raises WrongState on the others."""
        if self._learner is None:
            raise WrongState(detail=f"rank {self._ranks.rank} has no connection of its own; ask rank 0")
        return self._learner

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def global_step(self) -> int:
        """The newest global step seen, on every rank."""
        return self._status.global_step

    @property
    def local_step(self) -> int:
        """Local steps in all, those before a resume included, on every rank."""
        return self._status.local_step

    @property
    def rounds_answered(self) -> int:
        """Pushes that were handed to the network completely, on every rank."""
        return self._status.rounds_answered

    @property
    def client(self) -> SyncerClient:
        """Rank 0 only, as all that follow."""
        return self.learner.client

    @property
    def layout(self) -> Layout:
        return self.learner.layout

    @property
    def versions(self) -> list[int | None]:
        return self.learner.versions

    @property
    def pending_pulls(self) -> int:
        return self.learner.pending_pulls

    @property
    def bytes_sent(self) -> int:
        return self.learner.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self.learner.bytes_received

    @property
    def generation(self) -> int:
        return self.learner.generation

    @property
    def connected(self) -> bool:
        return self.learner.connected


def _longest_wait(options: LearnerOptions) -> float:
    """Seconds that rank 0 may spend in one call, by its own limits."""
    given: dict[str, Any] = {
        name: parameter.default for name, parameter in inspect.signature(Learner).parameters.items()
    }
    given.update(options)
    return float(
        MARGIN
        + (1 + given["num_streams"]) * given["connect_timeout_s"]
        + given["init_probe_s"]
        + given["initial_cut_timeout_s"]
        + given["finalization_timeout_s"] * (2 if given["budget_steps"] else 1)
    )
