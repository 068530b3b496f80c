"""Reference pages of the documentation, as Markdown, from the same specification as the code.

They are rendered in memory while the site is built and are never committed. `pages(spec)` gives them with
paths relative to the documentation folder.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2

from codegen.annotate import Piece, file_example, frame_example
from codegen.behaviour import BehaviourFile
from codegen.codec_cases import CaseFile, CaseText
from codegen.coverage import Coverage, cover
from codegen.decisions import Consequence, Decision, consequences
from codegen.diagrams import ruler, sequence, states
from codegen.diagrams.ruler import Part
from codegen.files import FileText, Section, Widths
from codegen.machines import Machine
from codegen.model import ErrorText
from codegen.pipes import WIDTHS, PipeText
from codegen.places import Place, ends_in, places, raised_by
from codegen.render import Output, environment
from codegen.sequences import Sequence
from codegen.spec import Field, Frame, Rule, Spec
from codegen.worked import NUMELS, Worked, value, worked

FOLDER = "protocol"
_FLAG = re.compile(r"(?<![\w/-])(--[a-z][a-z-]*[a-z])")
_PLACE = re.compile(r"<([a-z]+)>")
_MARK = re.compile(r"\(D[1-9][0-9]?(, D[1-9][0-9]?)*\)")


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
    text = page_environment().get_template(f"pages/{template}").render(spec=spec, view=view, **more)
    return Output(f"{FOLDER}/{path}", polished(text, "../" * path.count("/")))


def polished(text: str, up: str) -> str:
    """Flags as code, marks of decisions, such as (D12), as links, and <names> as text instead of HTML; not in
    code, drawings and headings.

    `up` leads to the folder of the protocol.
    """
    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith(("<", "#", "```")):
            parts = line.split("`")
            parts[::2] = [
                _linked(_FLAG.sub(r"`\1`", _PLACE.sub(r"&lt;\1&gt;", part)), up) for part in parts[::2]
            ]
            line = "`".join(parts)
        lines.append(line)
    return "\n".join(lines)


def _linked(text: str, up: str) -> str:
    return _MARK.sub(lambda mark: re.sub(r"D([1-9][0-9]?)", rf"[D\1]({up}decisions.md#D\1)", mark[0]), text)


@functools.cache
def page_environment() -> jinja2.Environment:
    """Templates of pages, with the filters that they use."""
    env = environment()
    env.filters["cell"] = cell
    env.filters["line"] = lambda text: " ".join(text.split())
    env.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    env.filters["lower_first"] = lambda text: text[:1].lower() + text[1:]
    env.filters["hexadecimal"] = lambda number: f"0x{number:X}"
    return env


def cell(text: str) -> str:
    """Text for a cell of a Markdown table: one line, no bar."""
    return " ".join(text.split()).replace("|", "\\|")


@dataclass(frozen=True)
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

    def decisions(self) -> list[tuple[Decision, list[Consequence]]]:
        """Each decision with what follows from it."""
        found = consequences(self.spec)
        return [(each, found[each.number]) for each in self.spec.parts["decisions"]]

    @functools.cached_property
    def places(self) -> Mapping[str, Place]:
        """Where each rule stands."""
        return places(self.spec)

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

    def type_link(self, name: str, up: str = "../") -> str:
        """The name of a type, linked to where it is explained; `up` leads to the folder of the protocol."""
        explained = name in self.spec.enums or any(each.name == name for each in self.spec.types.structures)
        return f"[{name}]({up}types.md#{name.lower()})" if explained else name

    def rules(self, frame: Frame) -> tuple[Rule, ...]:
        """All rules of a frame."""
        return (*frame.rules, *frame.extra_rules)

    def sentence(self, rule: Rule, up: str = "../") -> str:
        """What a rule demands, each constant with its value and linked; `up` leads to the folder."""

        def shown(name: re.Match[str]) -> str:
            constant = (name[1] or name[2]).upper()
            if not isinstance(self.spec.constants.get(constant) and self.spec.constant(constant), int):
                return name[0]
            numerics = any(each.name == constant for each in self.spec.numerics.constants)
            page = "numerics.md" if numerics else "limits.md"
            return f"[{constant}]({up}{page}#{constant}) ({self.constant(constant)})"

        return re.sub(r"\bpreset\.([a-z_]+)\b|\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b", shown, rule.sentence)

    def limit(self, frame: Frame) -> str:
        """The largest payload in words, worked out for one size where it follows from the session."""
        bulk = frame.text.bulk
        expr = frame.text.limit or (bulk.length or bulk.limit if bulk else None)
        if expr is None:
            counted = [each for each in frame.fields if each.text.count is not None]
            if counted:
                return f"`{frame.head_size} + {counted[0].size} * num_fragments` bytes"
            return f"exactly {frame.size} bytes" if frame.size else "empty"
        head = 0 if frame.text.limit is not None else frame.head_size
        if not any(name.startswith(("session.", "fragment.")) for name in expr.names()):
            most = value(self.spec, expr, {})
            return f"{head} + {most:,} = {head + most:,} bytes" if head else f"{most:,} bytes"
        forms = [each.name for each in self.spec.enums["Dtype"].values]
        sizes = [
            (form, head + value(self.spec, expr, {"fragment.numel": NUMELS[0], "session.dtype": form}))
            for form in forms
        ]
        shown = ", ".join(f"{form.lower()} {size:,}" for form, size in sizes)
        if "session.dtype" not in expr.names():
            shown = f"{sizes[0][1]:,}"
        return f"`{head} + {expr.text}` bytes; for a fragment of {NUMELS[0]:,} values {shown}"

    def worked(self, frame: Frame) -> list[Worked]:
        """Sizes of a frame for sessions that somebody could have."""
        return worked(self.spec, frame)

    def example(self, frame: Frame) -> tuple[CaseText, list[Piece]]:
        """The example of a frame: the test case, and its bytes field by field."""
        files: tuple[CaseFile, ...] = self.spec.parts["codec_cases"]
        for file in files:
            for case in file.cases:
                if file.frame == frame.name and case.example:
                    dtype = file.sessions[case.session].dtype if case.session else None
                    return case, frame_example(self.spec, frame, case, dtype)
        raise LookupError(f"{frame.name} has no example")

    def file_example(self, text: FileText) -> list[Piece]:
        """The example of a file, field by field."""
        return file_example(self.spec, text)

    def section_rows(self, section: Section) -> list[tuple[str, str, str, Any]]:
        """Offset inside the section, width and first version of each of its fields, in the newest version."""
        widths = Widths(self.spec)
        rows: list[tuple[str, str, str, Any]] = []
        place = 0
        for each in section.fields:
            rows.append((str(place), str(widths.of(each)), each.in_ or "all", each))
            place += widths.of(each)
        for number, array in enumerate(section.arrays):
            before = "".join(f" + 4 * {other.count}" for other in section.arrays[:number])
            rows.append((f"{place}{before}", f"4 * {array.count}", "all", array))
        return rows

    def header_ruler(self) -> str:
        """The drawing of the bytes of the header."""
        parts = [Part(each.name, each.size) for each in self.spec.header.fields]
        return ruler.ruler("Bytes of the header", parts)

    def pipe_ruler(self, text: PipeText) -> str:
        """The drawing of the bytes of a frame on a pipe."""
        parts = [Part(each.name, WIDTHS[each.type]) for each in text.fields]
        return ruler.ruler(f"Bytes of a frame of the {text.title}", parts, [Part("payload", None)])

    def section_ruler(self, section: Section) -> str:
        """The drawing of the bytes of a section, in the newest version."""
        widths = Widths(self.spec)
        parts = [Part(each.name, widths.of(each)) for each in section.fields]
        parts += [Part(array.name, None) for array in section.arrays]
        return ruler.ruler(f"Bytes of {section.name}", parts)

    def raised_by(self, error: str) -> list[Place]:
        """The rules that end in an error, and the promises that it belongs to."""
        return raised_by(self.spec, self.places, error)

    def errors_of(self, rule: str) -> list[str]:
        """The errors that a promise of `behaviour/` belongs to."""
        return [name for name, (_, error) in self.spec.errors.items() if rule in error.rules]

    def ends_in(self, frame: Frame) -> dict[str, list[str]]:
        """The errors that a frame can end in, each with its rules."""
        return ends_in(frame)

    def text_of(self, name: str) -> str:
        """How the text of an error begins."""
        return self.spec.errors[name][1].says

    def by_text(self) -> list[ErrorText]:
        """Every error, in the order of the texts."""
        return sorted((each for _, each in self.spec.errors.values()), key=lambda each: each.says.lower())

    def effect(self, name: str) -> str:
        """What an error does to the connection that caused it, as a sentence."""
        family, error = self.spec.errors[name]
        if family.name == "UseError":
            return "Raised to the caller; no connection is concerned."
        fatal = family.fatal if error.fatal is None else error.fatal
        sends = family.sends if error.sends is None else error.sends
        sentence = "ends the connection" if fatal else "does not end the connection"
        sentence += " and sends ERROR." if sends else "."
        pages = {each.page.partition("/")[0] for each in self.raised_by(name)}
        if pages == {"files"}:
            return f"Found in a file; where that is judged for a HELLO, it {sentence}"
        return sentence[:1].upper() + sentence[1:]

    def chunk_total(self, side: str) -> str:
        """The longest message inside CHUNKs that a side takes, in numbers for one size of fragment."""
        found = []
        for each in self.spec.enums["Dtype"].values:
            known: dict[str, Any] = {"fragment.numel": NUMELS[0], "session.dtype": each.name}
            for frame in self.spec.frames:
                bulk = frame.text.bulk
                if bulk is not None and bulk.length is not None:
                    known[f"limit.{frame.name}"] = frame.head_size + value(self.spec, bulk.length, known)
            total = value(self.spec, getattr(self.spec.limits.chunk_total, side), known)
            found.append(f"{each.name.lower()} {total:,}")
        return f"for a largest fragment of {NUMELS[0]:,} values {', '.join(found)}"

    def constant(self, name: str) -> str:
        """The value of a constant for a table."""
        value = self.spec.constant(name)
        if isinstance(value, tuple):
            return ", ".join(f"0x{each:08X}" for each in value)
        if isinstance(value, bytes):
            return repr(value)[1:].strip("'").replace("\\x00", "\\0")
        if isinstance(value, int):
            counts = value < 1 << 31 or self.spec.constants[name].unit
            return f"{value:,}" if counts else f"0x{value:X}"
        return str(value)
