"""`index.html`: the matrices, and a page for each case with rule, expected and actual, and the wire log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from .matrix import counts, last_line, merged
from .names import ROLES
from .trace import CORPUS
from .verdict import Result, Verdict

__all__ = ["rule_texts", "write"]

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882 }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .5rem 0 } th, td { padding: .2rem .7rem; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums }
tr { border-bottom: 1px solid var(--line) } pre { background: var(--soft); padding: .7rem; overflow-x: auto }
.pass { color: #18794e } .fail, .broken { color: #c62828; font-weight: 600 } .loose { color: #a15c00 }
.skip, .info { color: #777 } a { color: inherit } code { font-size: .92em } .differs { background: #c6282833 }
@media (prefers-color-scheme: dark) {
  .pass { color: #4cc38a } .fail, .broken { color: #ff8a80 } .loose { color: #ffb84d }
}
"""
_COLUMNS: Final = (Verdict.PASS, Verdict.LOOSE, Verdict.FAIL, Verdict.INFO, Verdict.SKIP, Verdict.BROKEN)


def rule_texts() -> Mapping[str, str]:
    """The sentence of every rule."""
    texts: Mapping[str, str] = json.loads((CORPUS / "rules.json").read_text(encoding="utf-8"))
    return texts


def write(folder: Path, results: Sequence[Result], name: str) -> Path:
    """Write index.html and a page for each case. Raises OSError."""
    texts = rule_texts()
    cases = folder / "cases"
    cases.mkdir(parents=True, exist_ok=True)
    by_case: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        by_case.setdefault((each.trace.role, each.trace.id), []).append(each)
    for (role, case), own in by_case.items():
        (cases / f"{role}-{case}.html").write_text(_case(own, name, texts), encoding="utf-8")
    path = folder / "index.html"
    path.write_text(_index(merged(results), name), encoding="utf-8")
    return path


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _index(results: Sequence[Result], name: str) -> str:
    parts = [f"<h1>Conformance of {escape(name)}</h1>", f"<p>{last_line(counts(results, strict=False))}</p>"]
    for role, shown in ROLES.items():
        own = [each for each in results if each.trace.role == role]
        if own:
            parts.append(f"<h2>{shown}</h2>{_areas(own)}")
            parts += [_matrix(mine, sut) for sut, mine in _by_sut(own).items()]
    parts.append(f"<h2>Cases</h2>{_list(results)}")
    return _page(f"Conformance of {name}", "\n".join(parts))


def _by_sut(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results of each implementation."""
    found: dict[str, list[Result]] = {}
    for each in results:
        found.setdefault(each.sut, []).append(each)
    return found


def _areas(results: Sequence[Result]) -> str:
    """Implementations against areas: how many cases of each passed, in the colour of the worst."""
    areas = [*sorted({each.trace.area for each in results}), "all"]
    rows = ["<tr><th></th>" + "".join(f"<th>{escape(each)}</th>" for each in areas) + "</tr>"]
    for sut, own in _by_sut(results).items():
        cells = []
        for area in areas:
            cell = [each for each in own if area in ("all", each.trace.area)]
            worst = min((each.worst for each in cell), key=lambda each: each.rank, default=Verdict.SKIP)
            passed = sum(each.counts_as == "passed" for each in cell)
            cells.append(f'<td class="n {worst.value}">{passed} of {len(cell)}</td>')
        rows.append(f"<tr><th>{escape(sut)}</th>{''.join(cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _matrix(results: Sequence[Result], name: str) -> str:
    rows = [f"<tr><th>{escape(name)}</th>" + "".join(f"<th>{each.value}</th>" for each in _COLUMNS) + "</tr>"]
    for area in [*sorted({each.trace.area for each in results}), "all"]:
        tally = Counter(each.worst for each in results if area in ("all", each.trace.area))
        cells = "".join(
            f'<td class="n {each.value}">{tally[each]}</td>' if tally[each] else '<td class="n skip">-</td>'
            for each in _COLUMNS
        )
        rows.append(f"<tr><td>{escape(area)}</td>{cells}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _list(results: Sequence[Result]) -> str:
    several = len(_by_sut(results)) > 1
    whose = "<th>implementation</th>" if several else ""
    rows = [
        f"<tr><th>verdict</th>{whose}<th>role</th><th>area</th><th>case</th><th>rule</th><th>reason</th></tr>"
    ]
    for each in sorted(
        results, key=lambda one: (one.worst.rank, one.trace.role, one.trace.area, one.trace.id)
    ):
        link = f"cases/{each.trace.role}-{each.trace.id}.html"
        reason = each.reason.splitlines()[0][:160] if each.reason else ""
        rows.append(
            f'<tr><td class="{each.worst.value}">{each.worst.value}</td>'
            f"{f'<td>{escape(each.sut)}</td>' if several else ''}<td>{ROLES[each.trace.role]}</td>"
            f'<td>{escape(each.trace.area)}</td><td><a href="{escape(link)}">{escape(each.trace.id)}</a></td>'
            f"<td><code>{escape(each.trace.rules[0])}</code></td><td>{escape(reason)}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _case(results: Sequence[Result], name: str, texts: Mapping[str, str]) -> str:
    trace = results[0].trace
    parts = [
        f'<p><a href="../index.html">Conformance of {escape(name)}</a></p>',
        f"<h1>{escape(trace.id)}</h1>",
        f"<p>{ROLES[trace.role]}, {escape(trace.area)}. {escape(trace.doc)}</p>",
    ]
    parts += [f"<p><code>{escape(rule)}</code>: {escape(texts.get(rule, ''))}</p>" for rule in trace.rules]
    several = len(_by_sut(results)) > 1
    for each in results:
        whose = f"{escape(each.sut)}, " if several else ""
        parts.append(
            f'<h2>{whose}{escape(each.cut)}: <span class="{each.worst.value}">{each.worst.value}</span></h2>'
            f"<p>Protocol {each.verdict.value}, closing {each.closing.value}, {each.seconds:.2f} s.</p>"
        )
        if each.reason:
            parts.append(f"<pre>{escape(each.reason)}</pre>")
        if each.expected is not None and each.worst in (Verdict.FAIL, Verdict.LOOSE, Verdict.BROKEN):
            parts.append(_compared(each.expected, each.actual))
        if each.log:
            parts.append(f"<pre>{escape(chr(10).join(_short(line) for line in each.log))}</pre>")
    return _page(f"{trace.id}: {name}", "\n".join(parts))


def _compared(expected: Any, actual: Any) -> str:
    """Expected and actual, field by field."""
    wanted = expected if isinstance(expected, Mapping) else {"": expected}
    found = actual if isinstance(actual, Mapping) else {"": actual}
    rows = ["<tr><th>field</th><th>expected</th><th>actual</th></tr>"]
    for key in dict.fromkeys([*wanted, *found]):
        one, other = wanted.get(key, "(not compared)"), found.get(key, "(nothing)")
        differs = ' class="differs"' if key in wanted and one != other else ""
        cells = "".join(f"<td><code>{escape(_short(str(each)))}</code></td>" for each in (one, other))
        rows.append(f"<tr{differs}><td>{escape(str(key))}</td>{cells}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _short(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:390]}... ({len(text)} characters)"
