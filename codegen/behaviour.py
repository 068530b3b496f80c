"""`spec/behaviour/`: promises of the programs that no single frame decides, as rules that tests can name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codegen.bind import bind
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.spec import Spec

_ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+\Z")
_DECISION = re.compile(r"D[1-9][0-9]*\Z")


@dataclass(frozen=True, slots=True)
class BehaviourText:
    """One promise. `decision` is the entry of the list of decisions that settled it."""

    id: str
    says: str
    where: Where
    lines: Mapping[str, Where]
    decision: str | None = None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class BehaviourFile:
    """One file of promises. Their ids are written in full, since some belong to a frame or file by name."""

    area: str
    where: Where
    rules: tuple[BehaviourText, ...]

    def rule_id(self, rule: BehaviourText) -> str:
        """The full id of a rule."""
        return rule.id


def load(root: Path, spec: Spec) -> tuple[BehaviourFile, ...]:
    """Every file, in the order of their names. Raises `SpecFault`."""
    files = tuple(
        bind(BehaviourFile, read(path, f"{root.name}/behaviour/{path.name}"))
        for path in sorted((root / "behaviour").glob("*.yaml"))
    )
    known = {rule.id: rule.where for rule in spec.rules()}
    for text in (each for file in files for each in file.rules):
        if not _ID.match(text.id):
            raise SpecFault(text.lines["id"], "id", f"{text.id!r} is not made of names and dots")
        if text.id in known:
            raise SpecFault(text.lines["id"], text.id, f"this rule exists already, in {known[text.id]}")
        if text.decision is not None and not _DECISION.match(text.decision):
            raise SpecFault(text.lines["decision"], "decision", f"{text.decision!r} is not like D12")
        known[text.id] = text.where
    for _, error in spec.errors.values():
        for name in error.rules:
            if name not in known:
                raise SpecFault(error.lines["rules"], "rules", f"there is no rule {name}")
    return files
