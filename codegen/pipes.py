"""`spec/pipes/`: what the syncer and its child processes say over standard input and output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from codegen.bind import bind
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.model import Constant
from codegen.numbers import Numbers, unique
from codegen.spec import Spec

FORMATS = {"8 bytes": "8s", "u32": "I", "u64": "Q"}
WIDTHS = {"8 bytes": 8, "u32": 4, "u64": 8}

_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_RULE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+\Z")


@dataclass(frozen=True, slots=True)
class PipeField:
    """A field of the header."""

    name: str
    type: Literal["8 bytes", "u32", "u64"]
    doc: str
    where: Where


@dataclass(frozen=True, slots=True)
class Status:
    """A code of an answer."""

    name: str
    value: int
    doc: str
    where: Where


@dataclass(frozen=True, slots=True)
class PipeRule:
    """A promise of one side. Where it is broken the worker answers with `status`, and exits if it `ends`."""

    id: str
    by: Literal["worker", "syncer"]
    says: str
    where: Where
    lines: Mapping[str, Where]
    status: str | None = None
    ends: bool = False
    doc: str = ""


@dataclass(frozen=True, slots=True)
class PipeText:
    """A file of `pipes/`: one frame for both directions, a header and then a payload."""

    pipe: str
    command: str
    doc: str
    where: Where
    lines: Mapping[str, Where]
    constants: tuple[Constant, ...]
    header_size: int
    fields: tuple[PipeField, ...]
    statuses: tuple[Status, ...]
    rules: tuple[PipeRule, ...]

    @property
    def title(self) -> str:
        """The name in words."""
        return self.pipe.replace("_", " ")

    def rule_id(self, rule: PipeRule) -> str:
        """The full id of a rule."""
        return f"{self.pipe}.{rule.id}"

    def constant(self, name: str) -> Any:
        """The value of a constant."""
        known = {each.name: each for each in self.constants}
        return Numbers(known, lambda name: None, {}).get(name)

    def offset(self, field: PipeField) -> int:
        """Where a field begins in the header."""
        before = self.fields[: self.fields.index(field)]
        return sum(WIDTHS[each.type] for each in before)


def load(root: Path, spec: Spec) -> tuple[PipeText, ...]:
    """Every pipe, in the order of their names. Raises `SpecFault`."""
    pipes = tuple(
        bind(PipeText, read(path, f"{root.name}/pipes/{path.name}"))
        for path in sorted((root / "pipes").glob("*.yaml"))
    )
    for each in pipes:
        _check(each)
    return pipes


def _check(text: PipeText) -> None:
    expected = f"{text.pipe}.yaml"
    if text.where.file.rpartition("/")[2] != expected:
        raise SpecFault(text.where, "pipe", f"the file of this pipe must be called {expected}")
    for name, constant in unique(text.constants, lambda each: (each.name, each.where), "constant").items():
        if not _CONSTANT.match(name):
            raise SpecFault(constant.where, name, "a constant is named in capitals")
        text.constant(name)
    fields = unique(text.fields, lambda each: (each.name, each.where), "field")
    size = sum(WIDTHS[each.type] for each in fields.values())
    if size != text.header_size:
        raise SpecFault(text.lines["header-size"], "header-size", f"the fields have {size} bytes")
    statuses = unique(text.statuses, lambda each: (each.name, each.where), "status")
    unique(text.statuses, lambda each: (str(each.value), each.where), "status")
    for rule in unique(text.rules, lambda each: (each.id, each.where), "rule").values():
        if not _RULE.match(rule.id):
            raise SpecFault(rule.lines["id"], "id", f"{rule.id!r} is not made of names and dots")
        if rule.status is not None and rule.status not in statuses:
            raise SpecFault(rule.lines["status"], "status", f"there is no status {rule.status}")
        if rule.by == "syncer" and (rule.status is not None or rule.ends):
            raise SpecFault(rule.where, rule.id, "only the worker answers with a status and ends")
