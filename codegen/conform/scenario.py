"""Scenarios: cases of a syncer or a learner under test, as steps.

A step is a mapping with one key, a verb and what it is about: `send a PUSH_FRAGMENT: {delta: 0.5}`. Groups of
sockets have names; `a` means its control stream, `a.1` its first data stream. `codegen.conform.play` has the
verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codegen.bind import bind
from codegen.conform.sessions import Session
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.spec import Spec

ROLES = ("server", "client")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One case. `settings` are those of the syncer under test, `client` those of the learner under test."""

    id: str
    rule: str | tuple[str, ...]
    expect: Literal["accept", "refuse"]
    steps: tuple[Any, ...]
    where: Where
    lines: Mapping[str, Where]
    session: str = "two"
    doc: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rules(self) -> tuple[str, ...]:
        return (self.rule,) if isinstance(self.rule, str) else self.rule


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """A file of scenarios. `settings` hold for all of its cases."""

    role: Literal["server", "client"]
    area: str
    cases: tuple[Scenario, ...]
    where: Where
    settings: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)
    share: bool = False  # one syncer serves all cases of the file, so each has learners of its own


def load(root: Path, sessions: Mapping[str, Session]) -> list[ScenarioFile]:
    """Every file of `cases/server` and `cases/client`. Raises `SpecFault`."""
    files = []
    for role in ROLES:
        for path in sorted((root / "cases" / role).glob("*.yaml")):
            file = bind(ScenarioFile, read(path, f"{root.name}/cases/{role}/{path.name}"))
            if file.role != role:
                raise SpecFault(file.where, "role", f"files of this folder have the role {role}")
            for case in file.cases:
                if case.session not in sessions:
                    raise SpecFault(case.lines["session"], "session", f"there is no session {case.session}")
            files.append(file)
    return files


def known_rules(spec: Spec) -> set[str]:
    """Every id that a case may name."""
    found = {rule.id for rule in spec.rules()}
    for part in ("files", "behaviour"):
        for text in spec.parts.get(part, ()):
            found |= {text.rule_id(each) for each in text.rules}
    return found
