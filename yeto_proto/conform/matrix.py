"""The results as tables for a terminal, and how they count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from .names import ROLES
from .verdict import Result, Verdict

__all__ = ["counts", "last_line", "matrices", "merged", "problems"]

_COLUMNS: Final = (Verdict.PASS, Verdict.LOOSE, Verdict.FAIL, Verdict.INFO, Verdict.SKIP, Verdict.BROKEN)


def merged(results: Iterable[Result]) -> list[Result]:
    """One result for each case and implementation: the worst of its cuts."""
    found: dict[tuple[str, str, str], Result] = {}
    for each in results:
        key = each.sut, each.trace.role, each.trace.id
        if key not in found or each.worst.rank < found[key].worst.rank:
            found[key] = each
    return list(found.values())


def matrices(results: Sequence[Result]) -> str:
    """One table for each implementation and role: its areas against the verdicts."""
    tables = []
    for name in dict.fromkeys(each.sut for each in results):
        for role, shown in ROLES.items():
            own = [each for each in results if (each.sut, each.trace.role) == (name, role)]
            if own:
                tables.append(_matrix(own, f"{name}: {shown}"))
    return "\n\n".join(tables)


def _matrix(results: Sequence[Result], title: str) -> str:
    areas = sorted({each.trace.area for each in results})
    width = max(len(title), *(len(each) for each in areas), 5)
    lines = [" ".join([f"{title:{width}}", *(f"{each.value:>6}" for each in _COLUMNS)])]
    for area in [*areas, "all"]:
        own = [each for each in results if area in ("all", each.trace.area)]
        tally = Counter(each.worst for each in own)
        cells = (f"{tally[each] or '-':>6}" for each in _COLUMNS)
        lines.append(" ".join([f"{area:{width}}", *cells]))
    return "\n".join(lines)


def problems(results: Sequence[Result]) -> str:
    """A paragraph for each case that did not pass as it should."""
    lines = []
    several = len({each.sut for each in results}) > 1
    for each in results:
        loose = each.worst is Verdict.LOOSE and each.counts_as != "skipped"
        if each.counts_as == "failed" or loose:
            where = "" if each.step is None else f" at step {each.step + 1}"
            cut = "" if each.cut == "recorded" else f" ({each.cut})"
            case = f"{each.trace.role}/{each.trace.id}{cut}{where}"
            whose = f"{each.sut}: " if several else ""
            lines.append(f"{each.worst.value} {whose}{case}: {_why(each)}")
            lines.append(f"     rule {', '.join(each.trace.rules)}")
    return "\n".join(lines)


def _why(result: Result) -> str:
    if result.known is not None and result.worst in (Verdict.PASS, Verdict.LOOSE):
        return f"is listed as a known failure ({result.known}) and passes; take it off the list"
    return result.reason.splitlines()[0] if result.reason else "no reason was given"


def counts(results: Iterable[Result], *, strict: bool) -> Counter[str]:
    """How many passed, failed and were skipped; with `strict` a loose one has failed."""
    tally: Counter[str] = Counter()
    for each in results:
        loose = strict and each.worst is Verdict.LOOSE and each.known is None
        tally["failed" if loose else each.counts_as] += 1
    return tally


def last_line(tally: Counter[str]) -> str:
    return f"{tally['passed']} passed, {tally['failed']} failed, {tally['skipped']} skipped"
