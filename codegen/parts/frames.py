"""Generated modules for frames: messages, structs and limits."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from codegen.model import Structure
from codegen.parts.naming import TARGET, Naming, import_order
from codegen.render import WIDTH, Output, literal, quoted, render
from codegen.spec import FORMATS, READING, Field, Frame, Spec


def outputs(spec: Spec) -> list[Output]:
    """One module each for messages, structs and limits."""
    view = FramesView(spec)
    context = {"spec": spec, "view": view}
    sources = {
        "limits": ["limits.yaml", "frames/*.yaml"],
        "messages": ["frames/*.yaml"],
        "structs": ["yeto.yaml", "types.yaml", "frames/*.yaml"],
    }
    return [
        render(f"{name}.py.j2", f"{TARGET}/{name}.py", [f"spec/{each}" for each in used], context)
        for name, used in sources.items()
    ]


@dataclass(frozen=True, slots=True)
class FramesView(Naming):
    """What the templates of these modules ask for."""

    def message_names(self) -> list[str]:
        """The names of the module of messages."""
        return sorted(["Buffer", "Message", *(frame.class_name for frame in self.spec.frames)])

    def message_fields(self, frame: Frame) -> list[dict[str, Any]]:
        """Fields of the message class, in wire order: all but those that the message computes."""
        found = []
        for each in frame.fields:
            if each.text.counts is None:
                found.append(
                    {
                        "name": each.name,
                        "type": self.python_type(each),
                        "default": self.default(each),
                        "doc": each.text.doc,
                    }
                )
        if frame.text.bulk is not None:
            bulk = frame.text.bulk
            kind = "str" if bulk.type == "text" else "Buffer"
            found.append({"name": bulk.name, "type": kind, "default": None, "doc": bulk.doc})
        return found

    def default(self, each: Field) -> str | None:
        """The constant that the field must equal, if there is one."""
        comparison = each.text.must.sole_comparison() if each.text.must else None
        if comparison is None or comparison.op != "==":
            return None
        right = comparison.right.text
        return right if right in self.spec.constants else None

    def python_type(self, each: Field) -> str:
        """The type of a field in its message class."""
        if each.enum is not None:
            kind = each.enum.name
        elif each.size is None:
            kind = "WireLayout"
        elif each.text.type == "digest":
            kind = "bytes"
        else:
            kind = "int"
        if each.text.count is not None and each.size is not None:
            return f"tuple[{kind}, ...]"
        return f"{kind} | None" if each.text.present is not None else kind

    def count_property(self, frame: Frame, each: Field) -> str:
        """How a message computes a count."""
        counted = next(other for other in frame.fields if other.name == each.text.counts)
        return f"len(self.{counted.name})" if counted.size is not None else f"self.{counted.name}.{each.name}"

    def message_imports(self) -> dict[str, list[str]]:
        """What the messages need."""
        constants = {item["default"] for frame in self.spec.frames for item in self.message_fields(frame)} - {
            None
        }
        enums = {
            each.enum.name for frame in self.spec.frames for each in frame.fields if each.enum is not None
        }
        return {"constants": sorted(constants), "types": sorted(enums | {"FrameType"})}

    def simple(self, frame: Frame) -> bool:
        """Whether one fixed run holds all fields and no rule has to be judged in the middle of it."""
        reading = any(
            name in READING and name != "total_limit" for rule in frame.rules for name in rule.needs
        )
        return all(each.fixed and each.enum is None for each in frame.fields) and not reading

    def positional(self, frame: Frame) -> bool:
        """Whether the message takes its fields in wire order."""
        return all(item["default"] is None for item in self.message_fields(frame))

    def runs(self, frame: Frame) -> list[list[Field]]:
        """Fields in groups that are read at once. A run ends where something has to be judged before more is
        read.
        """
        groups: list[list[Field]] = []
        open_run = False
        for each in frame.fields:
            judged_before = any(rule.before for rule in each.rules)
            if each.fixed and open_run and not judged_before:
                groups[-1].append(each)
            else:
                groups.append([each])
            needs_left = any("left" in rule.needs for rule in each.rules)
            open_run = each.fixed and not needs_left
        return groups

    def part(self, group: list[Field], indent: int) -> str:
        """The construct of a run."""
        first = group[0]
        if first.size is None:
            return f'LayoutRun("{first.name}", count="{first.text.count}")'
        if first.text.count is not None:
            return f'CountedRun("{first.name}", "<{first.format}", count="{first.text.count}")'
        run = self.fixed_run([each.name for each in group], "".join(each.format for each in group), indent)
        if first.text.present is None:
            return run
        condition = first.text.present.python(lambda name: name if name in READING else self.bind_rule(name))
        return f"Optional({run}, lambda message, left: {condition})"

    def fixed_run(self, names: list[str], formats: str, indent: int, before: int = 0) -> str:
        """A FixedRun, broken over lines when it does not fit behind `before` characters of an assignment."""
        items = [quoted(name) for name in names]
        comma = "," if len(items) == 1 else ""
        line = f'FixedRun("<{formats}", ({", ".join(items)}{comma}))'
        if indent + before + len(line) <= WIDTH:
            return line
        pad = " " * (indent + 4)
        inner = f"{pad}({', '.join(items)}{comma}),\n"
        if len(inner) > WIDTH + 1:
            inner = f"{pad}(\n" + "".join(f"{pad}    {item},\n" for item in items) + f"{pad}),\n"
        return f'FixedRun(\n{pad}"<{formats}",\n{inner}{" " * indent})'

    def struct_constants(self) -> list[str]:
        """Constants in the conditions of optional fields."""
        exprs = [
            each.text.present for frame in self.spec.frames for each in frame.fields if each.text.present
        ]
        return sorted({name for expr in exprs for name in expr.names() if name in self.spec.constants})

    def struct_types(self) -> list[str]:
        """Types that the structs need."""
        enums = {each.enum.name for frame in self.spec.frames for each in frame.fields if each.enum}
        return sorted(enums | {"FrameType"})

    def structure_head(self, structure: Structure) -> tuple[str, str]:
        """Format and field names of the fixed fields at the start of a structure."""
        formats, names = "", []
        for each in structure.fields:
            if each.count is not None or each.present is not None:
                break
            kind = self.spec.enums[each.type].type if each.type in self.spec.enums else each.type
            formats += FORMATS[kind]
            names.append(each.name)
        return formats, " and ".join(names)

    def frame_enums(self, frame: Frame) -> str:
        """Fields that become enumerations."""
        return ", ".join(f'"{each.name}": {each.enum.name}' for each in frame.fields if each.enum is not None)

    def derived(self, frame: Frame) -> str:
        """Fields that the message computes."""
        return literal(tuple(each.name for each in frame.fields if each.text.counts))

    def limit_source(self, frame: Frame) -> tuple[str, str]:
        """The limit of a frame as Python, and where it comes from in words."""
        if frame.text.limit is not None:
            return frame.text.limit.python(self.bind_limit), "named by its file"
        head = self.head_constant(frame.name)
        bulk = frame.text.bulk
        if bulk is not None:
            size = bulk.length or bulk.limit
            assert size is not None
            reason = (
                "fixed fields and the bulk of the largest fragment"
                if bulk.length
                else "fixed fields and the largest bulk"
            )
            return f"{head} + {size.python(self.bind_limit)}", reason
        counted = [each for each in frame.fields if each.text.count is not None]
        if counted:
            each = counted[0]
            count = next(other for other in frame.fields if other.name == each.text.count)
            return f"{head} + {each.size} * session.{count.name}", "fixed fields and one element per fragment"
        return head, "exact"

    def limit_signature(self, frame: Frame) -> str:
        """The arguments of a limit function, with an underscore where one is not used."""
        source = self.limit_source(frame)[0]
        session = "session" if "session." in source else "_session"
        preset = "preset" if "preset." in source else "_preset"
        return f"{session}: SessionFacts, {preset}: Preset"

    def limit_imports(self) -> dict[str, list[str]]:
        """What the limits need."""
        sources = [self.limit_source(frame)[0] for frame in self.spec.frames]
        sources += [
            getattr(self.spec.limits.chunk_total, role).python(self.bind_limit)
            for role in ("syncer", "learner")
        ]
        used = {
            node.id
            for source in sources
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Name)
        }
        heads = {self.head_constant(frame.name) for frame in self.spec.frames} - set(self.spec.constants)
        return {
            "constants": sorted((used & set(self.spec.constants)) | {"WIRE", "Preset"}, key=import_order),
            "sizes": sorted(used & (set(self.spec.sizes) | heads), key=import_order),
        }

    def received(self, role: str, first: bool = False) -> list[Frame]:
        """Frames that a side takes, inside a session or as the first of a connection."""
        return [
            each
            for each in self.spec.frames
            if each.received_by(role) and (each.text.carried_by == "first") == first
        ]

    def first_names(self) -> str:
        """The frames that open a connection, in words."""
        return " or ".join(each.name for each in self.received("syncer", True))
