"""Reference pages of the documentation, as Markdown, from the same specification as the code.

They are rendered in memory while the site is built and are never committed. `pages(spec)` gives them with
paths relative to the documentation folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codegen.behaviour import BehaviourFile
from codegen.codec_cases import CaseFile, CaseText
from codegen.coverage import Coverage, cover
from codegen.diagrams import ruler, sequence, states
from codegen.diagrams.ruler import Part
from codegen.expr import Expr
from codegen.files import FileText
from codegen.machines import Machine
from codegen.pipes import PipeText
from codegen.render import Output, environment
from codegen.sequences import Sequence
from codegen.spec import Field, Frame, Rule, Spec

FOLDER = "protocol"
_DECISION = re.compile(r"\bD([1-9][0-9]?)\b")
WORKED_NUMEL = 1_000_000


def pages(spec: Spec) -> list[Output]:
    """Every page: an overview, types, limits, errors, numerics, and one for each frame, file and machine."""
    view = PagesView(spec)
    found = [
        _page(f"{name}.md", f"{name}.md.j2", spec, view)
        for name in ("index", "types", "limits", "errors", "numerics", "decisions", "sequences", "coverage")
    ]
    for frame in spec.frames:
        found.append(_page(f"frames/{frame.slug}.md", "frame.md.j2", spec, view, frame=frame))
    for text in spec.parts["files"]:
        found.append(_page(f"files/{text.file}.md", "file.md.j2", spec, view, text=text))
    for pipe in view.pipes():
        found.append(_page(f"pipes/{pipe.pipe}.md", "pipe.md.j2", spec, view, text=pipe))
    for machine in spec.parts["machines"]:
        found.append(_page(f"machines/{machine.machine}.md", "machine.md.j2", spec, view, machine=machine))
    for behaviour in view.behaviours():
        found.append(
            _page(f"behaviour/{behaviour.area}.md", "behaviour.md.j2", spec, view, behaviour=behaviour)
        )
    return found


def _page(path: str, template: str, spec: Spec, view: PagesView, **more: Any) -> Output:
    env = environment()
    env.filters["cell"] = cell
    env.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    env.filters["hexadecimal"] = lambda number: f"0x{number:X}"
    text = env.get_template(f"pages/{template}").render(spec=spec, view=view, **more)
    return Output(f"{FOLDER}/{path}", text)


def cell(text: str) -> str:
    """Text for a cell of a Markdown table: one line, no bar."""
    return " ".join(text.split()).replace("|", "\\|")


@dataclass(frozen=True, slots=True)
class PagesView:
    """What the templates ask for."""

    spec: Spec

    def files(self) -> tuple[FileText, ...]:
        """The file formats."""
        return tuple(self.spec.parts["files"])

    def pipes(self) -> tuple[PipeText, ...]:
        """The pipes to child processes."""
        return tuple(self.spec.parts["pipes"])

    def machines(self) -> tuple[Machine, ...]:
        """The state machines."""
        return tuple(self.spec.parts["machines"])

    def behaviours(self) -> tuple[BehaviourFile, ...]:
        """The areas of behaviour."""
        return tuple(self.spec.parts["behaviour"])

    def sequences(self) -> tuple[Sequence, ...]:
        """The exchanges that are drawn step by step."""
        return tuple(self.spec.parts["sequences"])

    def sequence_diagram(self, each: Sequence) -> str:
        """Its drawing."""
        return sequence.diagram(each)

    def state_diagram(self, machine: Machine) -> str:
        """The drawing of a state machine."""
        return states.diagram(machine)

    def seen_in(self, frame: Frame) -> list[Sequence]:
        """The drawn exchanges in which a frame is sent."""
        return [each for each in self.sequences() if any(step.frame == frame.name for step in each.steps)]

    def byte_ruler(self, frame: Frame) -> str:
        """The drawing of the bytes of a frame, its header first."""
        header = [Part(each.name, each.size, "header") for each in self.spec.header.fields]
        parts = []
        for each in frame.fields:
            fixed = each.fixed and each.text.present is None and each.text.count is None
            parts.append(Part(each.name, each.size if fixed else None))
        if frame.text.bulk:
            parts.append(Part(frame.text.bulk.name, None))
        return ruler.ruler(f"Bytes of {frame.name}", header, parts)

    def coverage(self) -> Coverage:
        """What proves each rule."""
        return cover(self.spec, self.spec.root.parent / "tests")

    def decisions(self) -> list[tuple[int, list[tuple[str, str, str]]]]:
        """Each decision with what follows from it: a name, its page with anchor, and the sentence."""
        found: dict[int, list[tuple[str, str, str]]] = {}

        def note(name: str, page: str, sentence: str, *texts: str) -> None:
            for number in {int(each) for text in texts for each in _DECISION.findall(text)}:
                found.setdefault(number, []).append((name, page, sentence))

        for constant in self.spec.constants.values():
            note(constant.name, "limits.md", constant.doc, constant.doc)
        for frame in self.spec.frames:
            page = f"frames/{frame.slug}.md"
            note(frame.name, page, frame.text.doc, frame.text.doc)
            for each in frame.fields:
                if not each.rules:
                    note(f"{frame.slug}.{each.name}", page, each.text.doc, each.text.doc)
            for rule in self.rules(frame):
                note(rule.id, f"{page}#{rule.id}", rule.sentence, rule.doc, rule.sentence)
        for text in self.files():
            page = f"files/{text.file}.md"
            for trailer in text.trailers:
                note(f"{text.file}, trailer {trailer.name}", page, trailer.doc, trailer.doc)
            for file_rule in text.rules:
                name = text.rule_id(file_rule)
                note(name, f"{page}#{name}", file_rule.says, file_rule.says, file_rule.doc)
        for behaviour in self.behaviours():
            for promise in behaviour.rules:
                page = f"behaviour/{behaviour.area}.md#{promise.id}"
                note(promise.id, page, promise.says, promise.decision or "", promise.says, promise.doc)
        return sorted(found.items())

    def offset(self, each: Field) -> str:
        """Where a field starts in its payload."""
        return "after the one before" if each.offset is None else str(each.offset)

    def width(self, each: Field) -> str:
        """How many bytes a field has."""
        if each.size is None:
            return "variable"
        if each.text.count is not None:
            return f"{each.size} x {each.text.count}"
        return f"{each.size} or 0" if each.text.present is not None else str(each.size)

    def rules(self, frame: Frame) -> tuple[Rule, ...]:
        """All rules of a frame."""
        return (*frame.rules, *frame.extra_rules)

    def limit(self, frame: Frame) -> str:
        """The largest payload in words and, where it follows from the session, worked out for one size."""
        expr = frame.text.limit or (
            frame.text.bulk.length or frame.text.bulk.limit if frame.text.bulk else None
        )
        if expr is None:
            counted = [each for each in frame.fields if each.text.count is not None]
            if counted:
                return f"`{frame.head_size} + {counted[0].size} * num_fragments` bytes"
            return f"exactly {frame.size} bytes" if frame.size else "empty"
        head = 0 if frame.text.limit is not None else frame.head_size
        if any(name.startswith(("session.", "fragment.")) for name in expr.names()):
            return f"`{head} + {expr.text}` bytes; {self._worked(expr, head)}"
        return f"{head + int(self._value(expr, {})):,} bytes"

    def _worked(self, expr: Expr, head: int) -> str:
        if "session.dtype" not in expr.names():
            return f"{head + self._value(expr, {}):,} for a fragment of {WORKED_NUMEL:,} values"
        parts = [
            f"{value.name.lower()} {head + self._value(expr, {'session.dtype': value.name}):,}"
            for value in self.spec.enums["Dtype"].values
        ]
        return f"for a fragment of {WORKED_NUMEL:,} values: {', '.join(parts)}"

    def _value(self, expr: Expr, known: Mapping[str, Any]) -> int:
        def lookup(name: str) -> Any:
            if name in known:
                return known[name]
            if name == "fragment.numel" or name == "session.max_numel" or name == "numel":
                return WORKED_NUMEL
            if name.startswith("preset."):
                return self.spec.constant(name[7:].upper())
            return self.spec.constant(name)

        def size(name: str) -> Any:
            text = self.spec.sizes[name]

            def apply(*arguments: Any) -> int:
                given = dict(zip(text.args, arguments, strict=True))
                chosen = text.value if text.choose is None else text.cases[given[text.choose]]
                assert chosen is not None
                return self._value(chosen, given)

            return apply

        return int(expr.evaluate(lookup, {name: size(name) for name in self.spec.sizes}))

    def example(self, frame: Frame) -> CaseText | None:
        """The first accepted case of a frame that is a payload."""
        cases: tuple[CaseFile, ...] = self.spec.parts["codec_cases"]
        for file in cases:
            if file.frame == frame.name:
                for case in file.cases:
                    if case.expect == "accept" and not case.stream:
                        return case
        return None

    def annotated(self, frame: Frame, case: CaseText) -> list[tuple[str, str]]:
        """The bytes of a case beside the fields that they are."""
        rows: list[tuple[str, str]] = []
        data, place = case.data, 0
        for each in frame.fields:
            if each.offset is None or each.size is None or not each.fixed:
                break
            rows.append((data[place : place + each.size].hex(), each.name))
            place += each.size
        if place < len(data):
            rest = data[place:].hex()
            name = frame.text.bulk.name if frame.text.bulk else "the fields after it"
            rows.append((rest if len(rest) <= 64 else f"{rest[:64]}... ({len(data) - place} bytes)", name))
        return rows

    def raised_by(self, error: str) -> list[tuple[str, str]]:
        """The rules that end in an error, with the page that they stand on."""
        found = [
            (rule.id, f"frames/{frame.slug}.md")
            for frame in self.spec.frames
            for rule in self.rules(frame)
            if rule.error == error
        ]
        for text in self.files():
            found += [
                (text.rule_id(rule), f"files/{text.file}.md") for rule in text.rules if rule.else_ == error
            ]
        return found

    def flags(self, family: str, name: str) -> tuple[bool, bool]:
        """Whether an error ends the connection, and whether an ERROR frame is sent."""
        parent, error = self.spec.errors[name]
        fatal = parent.fatal if error.fatal is None else error.fatal
        sends = parent.sends if error.sends is None else error.sends
        return fatal, sends

    def constant(self, name: str) -> str:
        """The value of a constant for a table."""
        value = self.spec.constant(name)
        if isinstance(value, tuple):
            return ", ".join(f"0x{each:08X}" for each in value)
        if isinstance(value, bytes):
            return repr(value)[1:].strip("'").replace("\\x00", "\\0")
        return (
            f"{value:,}"
            if isinstance(value, int) and value < 1 << 31
            else f"0x{value:X}"
            if isinstance(value, int)
            else str(value)
        )
