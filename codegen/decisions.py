"""`spec/decisions.yaml`: what the protocol's text left open, with the reason for how each point was settled.

What was settled stands where it belongs: a sentence that ends in (D12), or `decision: D12` in `behaviour/`.
`consequences` gathers these, so that nothing is said twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codegen.bind import bind
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.numbers import unique
from codegen.spec import Spec

_NUMBER = re.compile(r"\bD([1-9][0-9]?)\b")


@dataclass(frozen=True, slots=True)
class Decision:
    """One point: the question that was open, and why it was settled as it was."""

    number: int
    question: str
    reason: str
    where: Where
    lines: Mapping[str, Where]


@dataclass(frozen=True, slots=True)
class DecisionsText:
    """The file."""

    where: Where
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Consequence:
    """Something that follows from a decision: its name, its page with anchor, and its sentence."""

    name: str
    page: str
    sentence: str


def load(root: Path, spec: Spec) -> tuple[Decision, ...]:
    """Every decision, by number. Raises `SpecFault` for one that nothing follows from, and for a mark that
    names none.
    """
    name = f"{root.name}/decisions.yaml"
    text = bind(DecisionsText, read(root / "decisions.yaml", name))
    known = unique(text.decisions, lambda each: (f"D{each.number}", each.where), "decision")
    found = consequences(spec)
    for number in found:
        if f"D{number}" not in known:
            first = found[number][0].name
            raise SpecFault(text.where, f"D{number}", f"is named by {first} and has no reason here")
    for each in text.decisions:
        if each.number not in found:
            raise SpecFault(each.lines["number"], f"D{each.number}", "nothing in the specification names it")
    return tuple(sorted(text.decisions, key=lambda each: each.number))


def consequences(spec: Spec) -> dict[int, list[Consequence]]:
    """What names each decision, in reading order. Pages are relative to the folder of the protocol."""
    found: dict[int, list[Consequence]] = {}

    def note(name: str, page: str, sentence: str, *texts: str) -> None:
        for number in {int(each) for text in texts for each in _NUMBER.findall(text)}:
            found.setdefault(number, []).append(Consequence(name, page, sentence))

    numerics = {each.name for each in spec.numerics.constants}
    for constant in spec.constants.values():
        page = "numerics.md" if constant.name in numerics else "limits.md"
        note(constant.name, f"{page}#{constant.name}", constant.doc, constant.doc)
    for frame in spec.frames:
        page = f"frames/{frame.slug}.md"
        note(frame.name, page, frame.text.doc, frame.text.doc)
        for each in frame.fields:
            if not each.rules:
                note(f"{frame.slug}.{each.name}", page, each.text.doc, each.text.doc)
        for rule in (*frame.rules, *frame.extra_rules):
            note(rule.id, f"{page}#{rule.id}", rule.sentence, rule.doc, rule.sentence)
    for text in spec.parts["files"]:
        page = f"files/{text.file}.md"
        for trailer in text.trailers:
            note(f"{text.file}, trailer {trailer.name}", page, trailer.doc, trailer.doc)
        for file_rule in text.rules:
            name = text.rule_id(file_rule)
            note(name, f"{page}#{name}", file_rule.says, file_rule.says, file_rule.doc)
    for behaviour in spec.parts["behaviour"]:
        for promise in behaviour.rules:
            page = f"behaviour/{behaviour.area}.md#{promise.id}"
            note(promise.id, page, promise.says, promise.decision or "", promise.says, promise.doc)
    return dict(sorted(found.items()))
