"""On which page of the reference each rule stands, and which rules end in which error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codegen.spec import Frame, Spec


@dataclass(frozen=True, slots=True)
class Place:
    """A rule: its id, its page and anchor in the folder of the protocol, and the error it ends in."""

    rule: str
    page: str
    error: str | None = None
    frame: str = ""


def places(spec: Spec) -> Mapping[str, Place]:
    """Every rule by its id, in reading order."""
    found: dict[str, Place] = {}

    def note(rule: str, page: str, error: str | None = None, frame: str = "") -> None:
        found[rule] = Place(rule, f"{page}#{rule}", error, frame)

    for each in spec.header.rules:
        note(each.id, "index.md", each.error)
    for frame in spec.frames:
        for each in (*frame.rules, *frame.extra_rules):
            note(each.id, f"frames/{frame.slug}.md", each.error, frame.name)
    for text in spec.parts["files"]:
        for rule in text.rules:
            note(text.rule_id(rule), f"files/{text.file}.md", rule.else_)
    for text in spec.parts["pipes"]:
        for rule in text.rules:
            note(text.rule_id(rule), f"pipes/{text.pipe}.md")
    for behaviour in spec.parts["behaviour"]:
        for rule in behaviour.rules:
            note(rule.id, f"behaviour/{behaviour.area}.md")
    return found


def raised_by(spec: Spec, found: Mapping[str, Place], error: str) -> list[Place]:
    """The rules that end in an error, and the promises that it belongs to, of all that were `found`."""
    return [each for each in found.values() if each.error == error] + [
        found[name] for name in spec.errors[error][1].rules
    ]


def ends_in(frame: Frame) -> dict[str, list[str]]:
    """The errors that a frame can end in, each with its rules."""
    found: dict[str, list[str]] = {}
    for rule in (*frame.rules, *frame.extra_rules):
        found.setdefault(rule.error, []).append(rule.id)
    return found
