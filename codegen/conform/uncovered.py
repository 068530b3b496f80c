"""`spec/cases/uncovered.yaml`: rules without a case, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from codegen.bind import bind
from codegen.conform.trace import Trace
from codegen.faults import SpecFault, Where
from codegen.load import read


@dataclass(frozen=True, slots=True)
class Gap:
    """Rules that lack cases of a kind for one reason."""

    why: str
    lacks: Literal["accept", "refuse", "both"]
    rules: tuple[str, ...]
    where: Where
    lines: Mapping[str, Where]


@dataclass(frozen=True, slots=True)
class GapsText:
    """The file."""

    uncovered: tuple[Gap, ...]
    where: Where


def reasons(root: Path, rules: Mapping[str, bool], traces: Iterable[Trace]) -> dict[str, str]:
    """Why a rule lacks a case. `rules` tells for each rule whether it can refuse something.

    Raises `SpecFault` for a rule without a case and without a reason, and for a reason that is not needed.
    """
    file = bind(GapsText, read(root / "cases" / "uncovered.yaml", f"{root.name}/cases/uncovered.yaml"))
    found: dict[str, tuple[Gap, str]] = {}
    for gap in file.uncovered:
        for rule in gap.rules:
            if rule not in rules:
                raise SpecFault(gap.lines["rules"], "rules", f"there is no rule {rule}")
            found[rule] = gap, gap.why
    covered: dict[str, set[str]] = {rule: set() for rule in rules}
    for trace in traces:
        for rule in trace.rules:
            covered.setdefault(rule, set()).add(trace.expect)
    for rule, refuses in rules.items():
        missing = {"accept", "refuse"} - covered[rule] if refuses else {"accept"} - covered[rule]
        stated: set[str] = set()
        if rule in found:
            lacks = found[rule][0].lacks
            stated = {"accept", "refuse"} if lacks == "both" else {lacks}
        if missing - stated:
            kinds = " and ".join(sorted(missing - stated))
            raise SpecFault(file.where, rule, f"has no case with `expect: {kinds}` and no reason here")
        if stated - missing:
            raise SpecFault(found[rule][0].lines["rules"], rule, "has such a case now; take it off the list")
    return {rule: why for rule, (_, why) in found.items()}
