"""The generated module of file formats."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.files import Field, FileText, Section, Version, Widths
from codegen.parts.naming import TARGET, import_order, wrapped
from codegen.render import WIDTH, Output, literal, render
from codegen.spec import Spec

_CONSTRUCT = {
    "u8": "Int8ul",
    "u16": "Int16ul",
    "u32": "Int32ul",
    "u64": "Int64ul",
    "digest": "Bytes(HASH_BYTES)",
}
_NAMES = (
    *("ARRAYS_PER_FRAGMENT", "COUNT", "F32", "FRAGMENT", "LEDGER_ENTRY", "MAGIC", "MAGICS", "MARKER_LINES"),
    *("NUMEL", "PREFIXES", "PREFIX_BYTES", "RULES", "TAPE", "TRAILERS", "U32_MAX", "U64_MAX"),
    *("FileRule", "SnapshotVersion", "TapeField", "TrailerForm", "TrailerLayout"),
)
_NUMPY = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "f32": "<f4"}


def outputs(spec: Spec) -> list[Output]:
    """One module for all files."""
    files = {each.file: each for each in spec.parts["files"]}
    context = {"files": files, "snapshot": files["snapshot"], "view": FilesView(spec, tuple(files.values()))}
    return [render("files.py.j2", f"{TARGET}/files.py", ["spec/files/*.yaml"], context)]


@dataclass(frozen=True, slots=True)
class FilesView:
    """What the template asks for."""

    spec: Spec
    files: tuple[FileText, ...]

    def exports(self) -> list[str]:
        """The names of the module."""
        names = [tag.name for each in self.files for tag in each.tags]
        return sorted([*names, *_NAMES], key=import_order)

    def construct(self, each: Field) -> str:
        """A named construct of a field."""
        kind = self.spec.enums[each.type].type if each.type in self.spec.enums else each.type
        return f'"{each.name}" / {_CONSTRUCT[kind]}'

    def struct(self, fields: tuple[Field, ...], indent: int, before: int) -> str:
        """A Struct of fields: on one line behind `before` characters, in one indented line, or one a line."""
        items = [self.construct(each) for each in fields]
        joined = ", ".join(items)
        if indent + before + len(f"Struct({joined}),") <= WIDTH:
            return f"Struct({joined})"
        pad = " " * (indent + 4)
        if len(pad) + len(joined) <= WIDTH:
            return f"Struct(\n{pad}{joined}\n{' ' * indent})"
        lines = "".join(f"{pad}{each},\n" for each in items)
        return f"Struct(\n{lines}{' ' * indent})"

    def section(self, text: FileText, name: str) -> Section:
        """A section by its name."""
        return next(each for each in text.sections if each.name == name)

    def after_magic(self, text: FileText, version: Version) -> tuple[Field, ...]:
        """The fields of a version's prefix behind its magic."""
        prefix = self.section(text, "prefix").fields
        return tuple(each for each in prefix if each.since <= version.number and each.selects is None)

    def dtype(self, fields: tuple[Field, ...]) -> str:
        """A numpy dtype of fields without padding."""
        return ", ".join(f'("{each.name}", "{_NUMPY[each.type]}")' for each in fields)

    def prefix_bytes(self, text: FileText, version: Version) -> int:
        """Bytes of a version's prefix."""
        prefix = self.section(text, "prefix").fields
        return Widths(self.spec).total(tuple(each for each in prefix if each.since <= version.number))

    def number(self, value: int) -> str:
        """A magic as hexadecimal."""
        return f"0x{value:08X}"

    def literal(self, value: object) -> str:
        """A Python literal."""
        return literal(value)

    def says(self, text: str) -> str:
        """The sentence of a rule, broken over lines where it is long."""
        return wrapped(" ".join(text.split()), indent=8, before=len("sentence=,"))
