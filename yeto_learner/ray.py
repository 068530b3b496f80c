"""A fleet of learners on a Ray cluster (extra `yeto[ray]`): one actor for each island.

    def train(island: Island) -> float:
        with Learner(parameters, "host:29400", learner_id=island.learner_id) as learner: ...

    ray.init()
    losses = run_fleet(train, islands=8, resources={"CPU": 4, "GPU": 1})

Ray chooses the machines, by resources; an island that fails is started again, on another machine if its own
is gone.  The islands do not know each other: what they share goes through the syncer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

try:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ImportError("yeto_learner.ray needs Ray; install it with: pip install 'yeto[ray]'") from error

from .arguments import require, require_seconds, require_whole
from .core.redial import redial_waits

__all__ = ["FleetError", "Island", "Strategy", "run_fleet"]

log = logging.getLogger(__name__)

T = TypeVar("T")

Strategy = Literal["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"]

ONE_CPU: Final[Mapping[str, float]] = {"CPU": 1.0}


@dataclass(frozen=True, slots=True)
class Island:
    """What an island is told: its learner id, 0 to `islands` - 1, and how often it was started before."""

    learner_id: int
    attempt: int


class FleetError(RuntimeError):
    """Islands failed more often than `max_restarts` allows.

    `failures` has the last error of each by its learner id, `results` what the others returned.
    """

    def __init__(self, failures: Mapping[int, BaseException], results: Mapping[int, Any]) -> None:
        told = "; ".join(f"island {number}: {_short(error)}" for number, error in sorted(failures.items()))
        super().__init__(f"{len(failures)} of {len(failures) + len(results)} islands failed for good: {told}")
        self.failures, self.results = dict(failures), dict(results)


def run_fleet(
    train: Callable[[Island], T],
    islands: int,
    *,
    resources: Mapping[str, float] | Sequence[Mapping[str, float]] = ONE_CPU,
    strategy: Strategy = "SPREAD",
    max_restarts: int = 10,
    placement_timeout_s: float = 600.0,
) -> list[T]:
    """Run `train` once on each island and return its results in the order of learner ids.

    train: called in an actor of its own; what it returns, and itself, must be picklable.  resources: of each
    island, in Ray's names ("CPU", "GPU", or a custom one), or one mapping for each.  strategy: how Ray lays
    islands out over machines.  max_restarts: of each island, after an exception or the loss of its process
    or machine, with pauses of 1, 2, 4 ... 30 s; a restarted island is told by `Island.attempt`.
    placement_timeout_s: how long the cluster may take to make room.

    Needs `ray.init` before.  An island that fails for good does not stop the others.  Raises ValueError for
    arguments that cannot be used, TimeoutError when the cluster has no room, and FleetError in the end.
    """
    require(callable(train), f"train must be a function of one Island, not {train!r}")
    islands = require_whole("islands", islands, 1)
    max_restarts = require_whole("max_restarts", max_restarts, 0)
    require_seconds(placement_timeout_s=placement_timeout_s)
    each = [dict(resources)] * islands if isinstance(resources, Mapping) else [dict(one) for one in resources]
    require(len(each) == islands, f"resources has {len(each)} mappings for {islands} islands")
    require(all(each), "resources must not be empty: an island needs at least a share of a CPU")
    group = placement_group(each, strategy=strategy)
    try:
        if not group.wait(placement_timeout_s):
            raise TimeoutError(
                f"the cluster made no room for {islands} islands of {each[0]} within "
                f"{placement_timeout_s:g} s; it has {ray.cluster_resources()}"
            )
        return _Fleet(train, each, group, max_restarts).run()
    finally:
        remove_placement_group(group)


class _Actor:
    """Lives on the machine of an island."""

    def run(self, train: Callable[[Island], T], island: Island) -> T:
        return train(island)


@dataclass(slots=True)
class _State:
    """One island, as its supervisor sees it."""

    learner_id: int
    attempt: int = 0
    actor: Any = None
    start_at: float = 0.0  # monotonic seconds, while it waits for its next start
    waits: Iterator[float] = field(default_factory=redial_waits)


class _Fleet(Generic[T]):
    """Supervises the islands of one placement group."""

    def __init__(
        self,
        train: Callable[[Island], T],
        resources: Sequence[Mapping[str, float]],
        group: Any,
        max_restarts: int,
    ) -> None:
        self._train = ray.put(train)
        self._resources, self._group, self._max_restarts = resources, group, max_restarts
        self._running: dict[Any, _State] = {}  # by the reference of what its train returns
        self._waiting = [_State(learner_id) for learner_id in range(len(resources))]
        self._results: dict[int, T] = {}
        self._failures: dict[int, BaseException] = {}

    def run(self) -> list[T]:
        try:
            while self._running or self._waiting:
                self._start_those_due()
                self._wait()
        finally:
            for state in self._running.values():
                ray.kill(state.actor)
        if self._failures:
            raise FleetError(self._failures, self._results)
        return [self._results[number] for number in range(len(self._resources))]

    def _start_those_due(self) -> None:
        now = time.monotonic()
        for state in [each for each in self._waiting if each.start_at <= now]:
            self._waiting.remove(state)
            needs = dict(self._resources[state.learner_id])
            state.actor = (
                ray.remote(_Actor)
                .options(
                    num_cpus=needs.pop("CPU", 0),
                    num_gpus=needs.pop("GPU", 0),
                    resources=needs,
                    max_restarts=0,  # this supervisor restarts, and counts
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        placement_group=self._group, placement_group_bundle_index=state.learner_id
                    ),
                )
                .remote()
            )
            reference = state.actor.run.remote(self._train, Island(state.learner_id, state.attempt))
            self._running[reference] = state

    def _wait(self) -> None:
        next_start = min((state.start_at for state in self._waiting), default=None)
        left = None if next_start is None else max(0.0, next_start - time.monotonic())
        if not self._running:
            time.sleep(left or 0.0)
            return
        ended, _ = ray.wait(list(self._running), num_returns=1, timeout=left)
        for reference in ended:
            state = self._running.pop(reference)
            try:
                self._results[state.learner_id] = ray.get(reference)
            except ray.exceptions.RayError as error:
                self._failed(state, error)
            ray.kill(state.actor)

    def _failed(self, state: _State, error: BaseException) -> None:
        if state.attempt >= self._max_restarts:
            log.error("island %d failed for good: %s", state.learner_id, _short(error))
            self._failures[state.learner_id] = error
            return
        pause = next(state.waits)
        log.warning(
            "island %d failed, start %d of %d comes in %g s: %s",
            state.learner_id,
            state.attempt + 2,
            self._max_restarts + 1,
            pause,
            _short(error),
        )
        state.attempt += 1
        state.start_at = time.monotonic() + pause
        self._waiting.append(state)


def _short(error: BaseException) -> str:
    """One line: the cause, where an exception came out of `train`."""
    cause = getattr(error, "cause", None)
    lines = str(cause if isinstance(cause, BaseException) else error).strip().splitlines() or [""]
    kind = type(cause if isinstance(cause, BaseException) else error).__name__
    return f"{kind}: {lines[0]}"
