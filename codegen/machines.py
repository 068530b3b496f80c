"""State machines: the schema of `machines/*.yaml`, and what is checked beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from codegen.bind import bind
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.numbers import unique
from codegen.spec import Spec

ORDER = ("link", "learner_group", "round", "finalization", "budget", "anchor")


@dataclass(frozen=True, slots=True)
class State:
    """A state. Nothing leads out of a final one."""

    name: str
    doc: str
    where: Where
    final: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """Something that happens."""

    name: str
    doc: str
    where: Where


@dataclass(frozen=True, slots=True)
class Transition:
    """One edge."""

    from_: str
    input: str
    to: str
    where: Where
    lines: Mapping[str, Where]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A file of `machines/`. `elsewhere` says what a pair without an edge does: `refuse` or `stay`."""

    machine: str
    side: Literal["syncer", "learner"]
    doc: str
    initial: str
    elsewhere: Literal["refuse", "stay"]
    where: Where
    lines: Mapping[str, Where]
    states: tuple[State, ...]
    inputs: tuple[Input, ...]
    transitions: tuple[Transition, ...]

    @property
    def title(self) -> str:
        """The name in words, as `learner group`."""
        return self.machine.replace("_", " ")

    @property
    def camel(self) -> str:
        """The name of its Python classes, as `LearnerGroup`."""
        return "".join(part.capitalize() for part in self.machine.split("_"))


def load(root: Path, spec: Spec) -> tuple[Machine, ...]:
    """Every machine, in reading order."""
    machines = [
        bind(Machine, read(path, f"{root.name}/machines/{path.name}"))
        for path in sorted((root / "machines").glob("*.yaml"))
    ]
    for each in machines:
        _check(each)
    unique(machines, lambda each: (each.machine, each.where), "machine")
    rank = {name: place for place, name in enumerate(ORDER)}
    return tuple(sorted(machines, key=lambda each: (rank.get(each.machine, len(ORDER)), each.machine)))


def _check(machine: Machine) -> None:
    expected = f"{machine.machine}.yaml"
    if machine.where.file.rpartition("/")[2] != expected:
        raise SpecFault(machine.where, "machine", f"the file of this machine must be called {expected}")
    states = unique(machine.states, lambda each: (each.name, each.where), "state")
    inputs = unique(machine.inputs, lambda each: (each.name, each.where), "input")
    if machine.initial not in states:
        raise SpecFault(machine.lines["initial"], "initial", f"there is no state {machine.initial}")
    edges: dict[tuple[str, str], Where] = {}
    for each in machine.transitions:
        named = (("from", each.from_, states), ("input", each.input, inputs), ("to", each.to, states))
        for key, name, known in named:
            if name not in known:
                raise SpecFault(each.lines[key], key, f"{name} is not declared")
        if states[each.from_].final:
            raise SpecFault(each.lines["from"], "from", f"{each.from_} is final")
        if (each.from_, each.input) in edges:
            line = edges[each.from_, each.input].line
            raise SpecFault(each.where, each.input, f"line {line} already says what {each.from_} does")
        edges[each.from_, each.input] = each.where
    _check_reachable(machine)
    for name, used in inputs.items():
        if all(name != each.input for each in machine.transitions):
            raise SpecFault(used.where, name, "no transition has this input")


def _check_reachable(machine: Machine) -> None:
    reached, fresh = {machine.initial}, [machine.initial]
    while fresh:
        state = fresh.pop()
        for each in machine.transitions:
            if each.from_ == state and each.to not in reached:
                reached.add(each.to)
                fresh.append(each.to)
    for state_text in machine.states:
        if state_text.name not in reached:
            raise SpecFault(state_text.where, state_text.name, "cannot be reached")
        if not state_text.final and all(each.from_ != state_text.name for each in machine.transitions):
            raise SpecFault(state_text.where, state_text.name, "nothing leads out of it; say `final: true`")
