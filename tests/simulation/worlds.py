"""Which world a seed stands for, and the shortest story of a seed that fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.budget_cluster import BudgetCluster
from tests.simulation.cluster import Cluster
from tests.simulation.plan import Fault

BUDGET_EVERY = 6  # every sixth seed is a budget benchmark
SHRINKING_RUNS = 80  # a story need not be the very shortest
TOLD_LINES = 80  # of what led to a failure


def world_of(seed: int, *, faults: Sequence[Fault] | None = None, verbose: bool = False) -> Cluster:
    """The world of a seed, with all of its faults or only with some."""
    kind = BudgetCluster if seed % BUDGET_EVERY == BUDGET_EVERY - 1 else Cluster
    return kind(seed, faults=None if faults is None else tuple(faults), verbose=verbose)


@dataclass(frozen=True)
class Failure:
    """How a world has failed. Two failures are alike when they break the same promise."""

    world: Cluster
    error: Exception

    @property
    def promise(self) -> tuple[str, str]:
        """The kind of the failure: its text without numbers."""
        return type(self.error).__name__, "".join(char for char in str(self.error) if not char.isdigit())


def failure_of(seed: int, faults: Sequence[Fault] | None = None, *, verbose: bool = False) -> Failure | None:
    """Play a seed; what went wrong, if anything. An exception of any kind counts: cores must not raise."""
    world = world_of(seed, faults=faults, verbose=verbose)
    try:
        world.play()
    except Exception as error:
        return Failure(world, error)
    return None


def play(seed: int, tally: Counter[str]) -> None:
    """Play a seed and add up what happened. Raises AssertionError with the shortest story of a failure."""
    world = world_of(seed)
    try:
        world.play()
    except Exception as error:
        raise AssertionError(story(seed, shrink(seed, Failure(world, error)))) from error
    tally.update(world.tally)


def shrink(seed: int, failure: Failure) -> Failure:
    """The same failure with as few faults as a bounded search finds: halves first, then one by one."""
    kept = list(failure.world.faults)
    runs = 0
    size = max(len(kept) // 2, 1)
    while kept and runs < SHRINKING_RUNS:
        start, found = 0, False
        while start < len(kept) and runs < SHRINKING_RUNS:
            fewer = kept[:start] + kept[start + size :]
            runs += 1
            again = failure_of(seed, fewer)
            if again is not None and again.promise == failure.promise:
                kept, failure, found = fewer, again, True
            else:
                start += size
        if size == 1 and not found:
            break
        size = max(size // 2, 1)
    told = failure_of(seed, kept, verbose=True)
    return failure if told is None else told


def story(seed: int, failure: Failure) -> str:
    """What happened, for people: the promise, the settings, the faults that are needed, the last events."""
    world = failure.world
    return "\n".join(
        [
            f"seed {seed}: {type(failure.error).__name__}: {failure.error}",
            f"{world.setup.config}",
            f"{world.setup.session.dtype.name}, {world.setup.layout.num_fragments} fragments, latency "
            f"{world.setup.latency} s",
            *(f"learner {number}: {habits}" for number, habits in enumerate(world.setup.habits)),
            *(f"fault: {fault}" for fault in world.faults),
            *world.story[-TOLD_LINES:],
        ]
    )
