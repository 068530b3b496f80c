"""How names of the specification are called in generated Python; the base of every view."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from codegen.model import Context
from codegen.render import WIDTH, quoted
from codegen.spec import READING, Spec

TARGET = "yeto_proto/_generated"


@dataclass(frozen=True, slots=True)
class Naming:
    """A view of the specification for templates."""

    spec: Spec

    def bind_rule(self, name: str) -> str:
        """A name of a rule in its generated check."""
        root, _, fact = name.partition(".")
        if root == "size":
            return self.head_constant(fact)
        if name in self.spec.constants or name in READING or root == "preset":
            return name
        enum = self.enum_of(name)
        if enum is not None:
            return f"{enum}.{name}"
        context = self.spec.contexts.get(root)
        if context is None:
            return f"message.{name}"
        if not fact:
            return root
        if context.of is not None:
            return f"{context.of}.{fact}(message.{context.selected_by})"
        return name

    def bind_limit(self, name: str) -> str:
        """A name in a limit: sizes of a fragment are those of the session's largest."""
        if name == "fragment.numel":
            return "session.max_numel"
        if name.startswith("limit."):
            return f"_{name[6:].lower()}(session, preset)"
        return self.bind_rule(name)

    def bind_size(self, name: str) -> str:
        """A name in a size."""
        return name

    def enum_of(self, name: str) -> str | None:
        """The enumeration that has a value of this name."""
        for enum in self.spec.types.enums:
            if any(value.name == name for value in enum.values):
                return enum.name
        return None

    def head_constant(self, frame: str) -> str:
        """The name of a frame's constant for the bytes before its bulk."""
        return "HEADER_BYTES" if frame == "header" else f"{frame}_BYTES"

    def fact_contexts(self) -> list[Context]:
        """Contexts that a caller passes, in order."""
        return [each for each in self.spec.contexts.values() if each.of is None]

    def imports(self, module: str, names: list[str]) -> str:
        """An import as isort and `ruff format` write it."""
        ordered = sorted(names, key=import_order)
        line = f"from {module} import {', '.join(ordered)}"
        if len(line) <= WIDTH:
            return line
        return f"from {module} import (\n" + "".join(f"    {name},\n" for name in ordered) + ")"


def import_order(name: str) -> tuple[int, list[tuple[str, int]]]:
    """Constants, classes, functions, each in natural order: the order of isort inside one import."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    parts = re.findall(r"([^0-9]*)([0-9]*)", name)
    return kind, [(text, int(digits or 0)) for text, digits in parts]


def wrapped(text: str, indent: int, before: int) -> str:
    """A string literal behind `before` characters of its line; a long one as pieces in parentheses."""
    if indent + before + len(quoted(text)) <= WIDTH:
        return quoted(text)
    pad = " " * indent
    pieces = textwrap.wrap(text, WIDTH - indent - 8, drop_whitespace=False)
    return "(\n" + "".join(f"{pad}    {quoted(piece)}\n" for piece in pieces) + f"{pad})"
