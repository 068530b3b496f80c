"""The judge is judged: every mutant must fail at the rule that it breaks.

A mutant is a small wrapper around an implementation. `mutants.yaml` names them: the command, and for each its
role, the rule that it breaks, and what it does. Only cases of that rule are run, and at least one of them
must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import runner
from .sut import BadSutError, Sut, read_yaml
from .trace import Trace
from .verdict import Result, Verdict

__all__ = ["Found", "Mutant", "calm", "hunt", "read"]

_KEYS = {"name", "role", "rule", "well-formed", "says"}


@dataclass(frozen=True)
class Mutant:
    """An implementation that breaks one rule. `well_formed` tells that all of its bytes are right."""

    name: str
    role: str
    rule: str
    well_formed: bool
    says: str


@dataclass(frozen=True)
class Found:
    """What became of a mutant: the results of the cases of its rule."""

    mutant: Mutant
    results: Sequence[Result]

    @property
    def caught(self) -> Result | None:
        """The first case that fails because of it."""
        return next((each for each in self.results if each.worst is Verdict.FAIL), None)


def read(path: Path, traces: Sequence[Trace]) -> tuple[Mapping[str, Any], list[Mutant]]:
    """Command and mutants of a file. Raises BadSutError."""
    data = read_yaml(path, "run it in a checkout, or give --mutants a file")
    if not isinstance(data, dict) or not {"command", "mutants"} <= set(data) <= {
        "command",
        "mutants",
        "folder",
    }:
        raise BadSutError(f"{path}: has command, mutants, and perhaps folder")
    known = {(each.role, rule) for each in traces for rule in each.rules}
    found = []
    for each in data["mutants"]:
        if set(each) != _KEYS:
            raise BadSutError(f"{path}: a mutant has {', '.join(sorted(_KEYS))}; {each} has others")
        if (each["role"], each["rule"]) not in known:
            raise BadSutError(f"{path}: {each['name']}: no {each['role']} case is about {each['rule']}")
        values = {key.replace("-", "_"): value for key, value in each.items()}
        found.append(Mutant(**values))
    return data, found


def hunt(
    mutants: Sequence[Mutant],
    data: Mapping[str, Any],
    path: Path,
    traces: Sequence[Trace],
    clean: Sut,
    options: runner.Options,
    tell: Callable[[Found], None],
) -> list[Found]:
    """Run the cases of each mutant's rule against it. One that hangs shows that after the runner's own time:
    what a case allows a slow implementation is not waited for.
    """
    options = runner.quick(options)
    found = []
    for mutant in mutants:
        own = [each for each in traces if each.role == mutant.role and mutant.rule in each.rules]
        outcome = Found(mutant, runner.run(own, _mutated(clean, mutant, data, path), options))
        tell(outcome)
        found.append(outcome)
    return found


def calm(
    mutants: Sequence[Mutant], traces: Sequence[Trace], clean: Sut, options: runner.Options
) -> list[Result]:
    """Run the same cases against the clean implementation, which has to pass them all."""
    broken = {(each.role, each.rule) for each in mutants}
    own = [each for each in traces if any((each.role, rule) in broken for rule in each.rules)]
    return runner.run(own, clean, options)


def _mutated(clean: Sut, mutant: Mutant, data: Mapping[str, Any], path: Path) -> Sut:
    """The clean implementation with the command of one role replaced, its arguments kept."""
    role = dict(clean.roles[mutant.role])
    start = [str(each).replace("{mutant}", mutant.name) for each in data["command"]]
    # What follows the interpreter and the module of the clean command are its own arguments.
    role["command"] = [*start, *role["command"][3:]]
    return replace(
        clean,
        name=f"{clean.name} {mutant.name}",
        roles={**clean.roles, mutant.role: role},
        folder=path.resolve().parent / data.get("folder", "."),
        known=(),
    )
