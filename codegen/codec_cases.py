"""`spec/cases/codec/`: payloads that the codec must take or refuse, at the edges of each rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codegen.bind import bind
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.numbers import unique
from codegen.spec import Spec

_HEX = re.compile(r"([0-9a-f]{2}|\s)*\Z")


@dataclass(frozen=True, slots=True)
class FragmentText:
    """A fragment of a session that a case is judged under."""

    merge_mode: str
    numels: tuple[int, ...]
    where: Where
    shapes: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class SessionText:
    """A session: what rules at `decode` may know of it."""

    dtype: str
    fragments: tuple[FragmentText, ...]
    where: Where


@dataclass(frozen=True, slots=True)
class CaseText:
    """A payload, or with `stream` whole frames, and what becomes of it.

    `rule` names the rules that an accepted case keeps at their edge, or the one that a refused case breaks;
    the error is the rule's. `fields` are some of the message, bytes in hexadecimal. `side` is the receiver,
    and `admitted` tells whether it has the session already. The `example` is the case that the page of the
    frame shows byte by byte.
    """

    id: str
    rule: str | tuple[str, ...]
    expect: Literal["accept", "refuse"]
    wire: str
    where: Where
    lines: Mapping[str, Where]
    session: str | None = None
    side: Literal["syncer", "learner"] | None = None
    stream: bool = False
    example: bool = False
    admitted: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""

    @property
    def rules(self) -> tuple[str, ...]:
        return (self.rule,) if isinstance(self.rule, str) else self.rule

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.wire)


@dataclass(frozen=True, slots=True)
class CaseFile:
    """One file of cases."""

    frame: str
    where: Where
    cases: tuple[CaseText, ...]
    sessions: Mapping[str, SessionText] = field(default_factory=dict)


def load(root: Path, spec: Spec) -> tuple[CaseFile, ...]:
    """Every file, checked against the specification. Raises `SpecFault`."""
    folder = root / "cases" / "codec"
    files = tuple(
        bind(CaseFile, read(path, f"{root.name}/cases/codec/{path.name}"))
        for path in sorted(folder.glob("*.yaml"))
    )
    rules = {rule.id: rule for rule in spec.rules()}
    unique([case for file in files for case in file.cases], lambda each: (each.id, each.where), "case")
    frames = {frame.name for frame in spec.frames} | {"HEADER"}
    for file in files:
        if file.frame not in frames:
            raise SpecFault(file.where, "frame", f"there is no frame {file.frame}")
        for case in file.cases:
            _check(case, file, set(rules))
        if file.frame != "HEADER" and sum(case.example for case in file.cases) != 1:
            raise SpecFault(file.where, "example", "exactly one case of a frame is its example")
    return files


def _check(case: CaseText, file: CaseFile, rules: set[str]) -> None:
    for name in case.rules:
        if name not in rules:
            raise SpecFault(case.lines["rule"], "rule", f"there is no rule {name}")
    if case.expect == "refuse" and len(case.rules) != 1:
        raise SpecFault(case.lines["rule"], "rule", "a refused case breaks exactly one rule")
    if not _HEX.match(case.wire):
        raise SpecFault(
            case.lines["wire"], "wire", "must be pairs of hexadecimal digits in lower case, and spaces"
        )
    if case.session is not None and case.session not in file.sessions:
        raise SpecFault(case.lines["session"], "session", f"this file has no session {case.session}")
    if case.example and (case.expect != "accept" or case.stream):
        raise SpecFault(case.lines["example"], "example", "must be a payload that is accepted")
    if case.stream and case.side is None:
        raise SpecFault(case.where, "side", "is missing: a stream has a receiver")
