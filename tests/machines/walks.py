"""Walking a machine of the specification beside a real core that Hypothesis drives through its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Generic, TypeVar

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from yeto_proto.machine import Machine

ROUNDS = 12  # most of them end after the first or second

S = TypeVar("S", bound=StrEnum)
I = TypeVar("I", bound=StrEnum)  # noqa: E741  # the inputs, as in the literature


class Walks(Generic[S, I]):
    """The (state, input) pairs of one machine that were offered to a core, over all examples of a run."""

    def __init__(self, machine: Machine[S, I]) -> None:
        self.machine = machine
        self.seen: Counter[tuple[S, I]] = Counter()

    def take(self, state: S, happened: I) -> S:
        """Where the core must be afterwards. What the machine refuses must leave the core where it is."""
        self.seen[state, happened] += 1
        return self.machine.transitions.get((state, happened), state)

    def missing(self, besides: Collection[tuple[S, I]] = ()) -> list[str]:
        """The transitions, and the pairs besides them, that were never walked."""
        wanted = [*self.machine.transitions, *besides]
        return [
            f"{state.value} + {happened.value}"
            for state, happened in wanted
            if not self.seen[state, happened]
        ]


def explore(
    driver: type[RuleBasedStateMachine], covered: Callable[[], Sequence[str]], *, examples: int, steps: int
) -> None:
    """Run a state machine, the same examples every time, and go on until `covered` names nothing more.

    Raises AssertionError with what is still missing after `ROUNDS` times as many examples.
    """
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    for number in range(ROUNDS):
        run_state_machine_as_test(seed(number)(driver), settings=chosen)
        if not covered():
            return
    raise AssertionError(f"never walked: {', '.join(covered())}")
