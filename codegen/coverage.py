"""Which case and which test prove a rule.

A case is any mapping in `spec/cases/` with the keys `rule` (an id or a list of ids) and `expect` (`accept` or
`refuse`). A test is marked with the rule that it proves: `@pytest.mark.rule("push_fragment.c_steps.must")`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from codegen.faults import SpecFault, Where
from codegen.load import Items, Leaf, Node, Table, read
from codegen.spec import Spec

# Tests that run every case of an area.
RUNNERS = {
    "codec": "tests/unit/test_codec_cases.py",
    "questions": "tests/conform/test_codec_role.py",
    "server": "tests/conform/test_network_roles.py",
    "client": "tests/conform/test_network_roles.py",
}


@dataclass
class Proof:
    """What proves one rule. `when` is the time at which it is judged, or `behaviour`."""

    id: str
    when: str
    where: Where
    accept: list[str] = field(default_factory=list)
    refuse: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)

    def note(self, case: Table, runner: str | None) -> None:
        """Count a case, and the test that runs all cases of its area."""
        name, expect = case.values.get("id"), case.values["expect"]
        shown = str(name.value) if isinstance(name, Leaf) else str(case.where)
        if isinstance(expect, Leaf) and expect.value in ("accept", "refuse"):
            (self.accept if expect.value == "accept" else self.refuse).append(shown)
            self.tests += [f"{runner}[{shown}]"] if runner else []

    @property
    def missing(self) -> list[str]:
        """Kinds of case that a rule of time `decode` lacks."""
        if self.when != "decode":
            return []
        return [kind for kind, found in (("accept", self.accept), ("refuse", self.refuse)) if not found]


@dataclass
class Coverage:
    """One proof per rule, in reading order, and the faults of tests that name a rule which does not exist."""

    proofs: list[Proof]
    unknown: list[SpecFault]

    def faults(self) -> list[str]:
        """What has to be mended, one line each."""
        lines = [str(each) for each in self.unknown]
        for each in self.proofs:
            for kind in each.missing:
                lines.append(f"{each.where}: {each.id}: has no case with `expect: {kind}`")
        return lines


def cover(spec: Spec, tests: Path) -> Coverage:
    """Look through the cases and the tests. Raises `SpecFault` for a case of a rule that does not exist."""
    found = {rule.id: Proof(rule.id, rule.when, rule.where) for rule in spec.rules()}
    for part in ("files", "pipes", "behaviour"):
        for text in spec.parts.get(part, ()):
            for each in text.rules:
                name = text.rule_id(each)
                found[name] = Proof(name, getattr(each, "when", part), each.where)
    for path in sorted((spec.root / "cases").rglob("*.yaml")):
        name = f"{spec.root.name}/{path.relative_to(spec.root).as_posix()}"
        for case in _cases(read(path, name)):
            for rule in _ids(case):
                _proof(found, rule, case.lines["rule"]).note(case, RUNNERS.get(path.parent.name))
    unknown: list[SpecFault] = []
    for path in sorted(tests.rglob("test_*.py")):
        shown = path.relative_to(tests.parent).as_posix()
        for rule, test, line in _marks(path.read_text(encoding="utf-8")):
            if rule in found:
                found[rule].tests.append(f"{shown}::{test}")
            else:
                unknown.append(SpecFault(Where(shown, line), "rule", f"there is no rule {rule}"))
    return Coverage(list(found.values()), unknown)


def table(coverage: Coverage) -> str:
    """The coverage as a table for people: a line per rule with its first accepting case, refusing case and
    test, and how many more there are; counts and faults at the end.
    """
    found = coverage.proofs
    rows = [("rule", "when", "accepted by", "refused by", "test")]
    rows += [
        (each.id, each.when, _first(each.accept), _first(each.refuse), _first(each.tests)) for each in found
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(4)]
    lines = []
    for row, lacks in zip(rows, [[], *(each.missing for each in found)], strict=True):
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)]
        note = f"  lacks {' and '.join(lacks)}" if lacks else ""
        lines.append("  ".join([*cells, row[4]]).rstrip() + note)
    decode = [each for each in found if each.when == "decode"]
    whole = sum(not each.missing for each in decode)
    lines.append(f"{whole} of {len(decode)} decode rules have an accepting and a refusing case")
    tested = sum(bool(each.tests) for each in found)
    lines.append(f"{tested} of {len(found)} rules are named by a test")
    lines += [f"error: {each}" for each in coverage.unknown]
    return "\n".join(lines)


def _first(names: list[str]) -> str:
    """The first of them, and the number of the others."""
    if not names:
        return "-"
    return names[0] if len(names) == 1 else f"{names[0]} (+{len(names) - 1})"


def _proof(found: dict[str, Proof], rule: str, where: Where) -> Proof:
    if rule not in found:
        raise SpecFault(where, "rule", f"there is no rule {rule}")
    return found[rule]


def _cases(node: Node) -> Iterator[Table]:
    if isinstance(node, Table):
        if "rule" in node.values and "expect" in node.values:
            yield node
        for each in node.values.values():
            yield from _cases(each)
    elif isinstance(node, Items):
        for each in node:
            yield from _cases(each)


def _ids(case: Table) -> list[str]:
    rule = case.values["rule"]
    leaves = list(rule) if isinstance(rule, Items) else [rule]
    return [str(each.value) for each in leaves if isinstance(each, Leaf)]


@functools.cache
def _marks(text: str) -> list[tuple[str, str, int]]:
    """Rule, name of the test and line of each `...mark.rule("...")` in the text of a module."""
    return list(_marked(ast.parse(text))) if "mark.rule" in text else []


def _marked(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.ClassDef)):
            for decorator in function.decorator_list:
                for node in ast.walk(decorator):
                    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.rule"):
                        for argument in node.args:
                            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                                yield argument.value, function.name, node.lineno
