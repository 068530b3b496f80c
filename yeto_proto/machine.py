"""State machines as data: a table of transitions, and the one function that follows it.

The tables are generated from `spec/machines/`. Whoever keeps such a state changes it through `advance` alone,
so that no code can make a step that the specification does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, TypeVar

from ._generated.errors import WrongState

S = TypeVar("S", bound=StrEnum)
I = TypeVar("I", bound=StrEnum)  # noqa: E741  # the inputs, as in the literature


class Machine(Generic[S, I]):
    """A machine: its states, its inputs and its transitions.

    `stays` tells what a pair without a transition does: nothing (True), or `WrongState` (False). States
    without a transition out of them are final.
    """

    __slots__ = ("final", "initial", "inputs", "name", "states", "stays", "transitions")

    def __init__(
        self, name: str, *, initial: S, inputs: type[I], stays: bool, transitions: Mapping[tuple[S, I], S]
    ) -> None:
        self.name = name
        self.initial = initial
        self.states = tuple(type(initial))
        self.inputs = tuple(inputs)
        self.stays = stays
        self.transitions = MappingProxyType(dict(transitions))
        self.final = frozenset(self.states) - {state for state, _ in self.transitions}


def advance(machine: Machine[S, I], state: S, event: I) -> S:
    """The state that follows. Raises `WrongState` where the machine refuses the input."""
    target = machine.transitions.get((state, event))
    if target is not None:
        return target
    if machine.stays and state not in machine.final:
        return state
    raise WrongState(detail=f"a {machine.name} that is {state} does not take {event}")
