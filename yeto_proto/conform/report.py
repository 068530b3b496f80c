"""The results as files: `results.jsonl`, `junit.xml` and, by `pages`, `index.html`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from . import pages
from .verdict import Result, Verdict

__all__ = ["write"]

# What XML 1.0 cannot hold.
_UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd]")


def write(folder: Path, results: Sequence[Result], name: str) -> list[Path]:
    """Write every file; returns their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "results.jsonl", folder / "junit.xml"]
    with paths[0].open("w", encoding="utf-8") as file:
        for each in results:
            file.write(json.dumps(record(each)) + "\n")
    paths[1].write_bytes(junit(results, name))
    return [*paths, pages.write(folder, results, name)]


def record(result: Result) -> dict[str, object]:
    """One result as a line of results.jsonl."""
    trace = result.trace
    return {
        "implementation": result.sut,
        "case": trace.id,
        "area": trace.area,
        "role": trace.role,
        "cut": result.cut,
        "rules": list(trace.rules),
        "verdict": result.verdict.value,
        "closing": result.closing.value,
        "worst": result.worst.value,
        "counts_as": result.counts_as,
        "reason": result.reason,
        "step": result.step,
        "expected": result.expected,
        "actual": result.actual,
        "known": result.known,
        "seconds": round(result.seconds, 3),
    }


def junit(results: Sequence[Result], name: str) -> bytes:
    """A test suite for each role and implementation; a test is named by the rule that its case is about."""
    suites = ElementTree.Element("testsuites", name=_text(name))
    several = len({each.sut for each in results}) > 1
    for sut, role in sorted({(each.sut, each.trace.role) for each in results}):
        own = [each for each in results if (each.sut, each.trace.role) == (sut, role)]
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=_text(f"{sut}: {role}") if several else role,
            tests=str(len(own)),
            failures=str(sum(_failed(each) for each in own)),
            errors=str(sum(each.verdict is Verdict.BROKEN for each in own)),
            skipped=str(sum(each.counts_as == "skipped" for each in own)),
            time=f"{sum(each.seconds for each in own):.3f}",
        )
        for each in own:
            _case(suite, each)
    text: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text


def _case(suite: ElementTree.Element, result: Result) -> None:
    cut = "" if result.cut == "recorded" else f":{result.cut}"
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"{result.trace.role}.{result.trace.area}",
        name=f"{result.trace.rules[0]}[{result.trace.id}{cut}]",
        time=f"{result.seconds:.3f}",
    )
    text = _text(result.reason)
    if result.verdict is Verdict.BROKEN and result.known is None:
        ElementTree.SubElement(case, "error", message=text)
    elif _failed(result):
        failure = ElementTree.SubElement(case, "failure", message=text)
        failure.text = _text("\n".join(result.log[-40:]))
    elif result.counts_as == "skipped":
        ElementTree.SubElement(case, "skipped", message=text)


def _failed(result: Result) -> bool:
    return result.counts_as == "failed" and result.verdict is not Verdict.BROKEN


def _text(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)
