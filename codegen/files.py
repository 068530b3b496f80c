"""Files beside the wire: the schema of `files/*.yaml`, and what is checked beyond it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from codegen.bind import bind
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.numbers import unique
from codegen.spec import Spec

_SINCE = re.compile(r"v([1-9])\+\Z")
_PLAIN = ("integer", "number", "text", "hex32", "true or false", "integer or null", "text or null")


@dataclass(frozen=True, slots=True)
class Tag:
    """A u32 that a field must be equal to."""

    name: str
    value: int
    doc: str
    where: Where


@dataclass(frozen=True, slots=True)
class Field:
    """A field of fixed width. `in_` names the first version that has it, `equals` the tag it must be."""

    name: str
    type: str
    doc: str
    where: Where
    lines: Mapping[str, Where]
    in_: str | None = None
    selects: Literal["version"] | None = None
    equals: str | None = None

    @property
    def since(self) -> int:
        """The number of the first version that has the field."""
        match = _SINCE.match(self.in_ or "v1+")
        if match is None:
            raise SpecFault(self.lines["in"], "in", f"{self.in_} is not of the form v2+")
        return int(match[1])


@dataclass(frozen=True, slots=True)
class Array:
    """Values of one type, as many as a field says."""

    name: str
    type: Literal["f32"]
    count: str
    doc: str
    where: Where
    lines: Mapping[str, Where]


@dataclass(frozen=True, slots=True)
class Section:
    """Fields, and the arrays behind them. With a `count` the section repeats, and the count stands first."""

    name: str
    doc: str
    where: Where
    fields: tuple[Field, ...]
    arrays: tuple[Array, ...] = ()
    count: Field | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a file, told by its magic."""

    name: str
    magic: int
    writes: bool
    resume: Literal["never", "conditional"]
    else_: str
    doc: str
    where: Where
    lines: Mapping[str, Where]

    @property
    def number(self) -> int:
        """Its number, from its name."""
        return int(self.name[1:])


@dataclass(frozen=True, slots=True)
class Trailer:
    """One of the forms in which a file may end, told by its size in bytes."""

    name: str
    size: int
    resume: bool
    doc: str
    where: Where
    lines: Mapping[str, Where]
    fields: tuple[Field, ...] = ()
    writes: bool = False


@dataclass(frozen=True, slots=True)
class ObjectField:
    """A key of a JSON object."""

    name: str
    type: str
    doc: str
    where: Where
    lines: Mapping[str, Where]
    unit: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Object:
    """A JSON object. `event` is the value of its key `event`, for records that have one."""

    name: str
    doc: str
    where: Where
    fields: tuple[ObjectField, ...]
    event: str = ""


@dataclass(frozen=True, slots=True)
class FileRule:
    """A condition on a file, judged by hand. `when`: reading it, starting a run from it, or at a HELLO."""

    id: str
    field: str
    when: Literal["read", "start", "hello"]
    says: str
    else_: str
    where: Where
    lines: Mapping[str, Where]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class FileText:
    """A file of `files/`. `example` is a whole one: bytes in hexadecimal, or the text of a JSON file."""

    file: str
    kind: Literal["binary", "text", "json", "json-lines"]
    suffix: str
    doc: str
    where: Where
    lines: Mapping[str, Where]
    rules: tuple[FileRule, ...] = ()
    tags: tuple[Tag, ...] = ()
    versions: tuple[Version, ...] = ()
    prefix_size: Mapping[str, int] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    trailers: tuple[Trailer, ...] = ()
    text: tuple[str, ...] = ()
    example: str = ""
    objects: tuple[Object, ...] = ()

    @property
    def title(self) -> str:
        """The name in words."""
        return self.file.replace("_", " ")

    def rule_id(self, rule: FileRule) -> str:
        """The full id of a rule."""
        return f"{self.file}.{rule.id}"


class Widths:
    """Bytes of the types that files use."""

    def __init__(self, spec: Spec) -> None:
        numbers = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "digest": int(spec.constant("HASH_BYTES"))}
        self._widths = numbers | {name: numbers[enum.type] for name, enum in spec.enums.items()}

    def of(self, each: Field) -> int:
        """Bytes of a field. Raises SpecFault for a type that is not known."""
        if each.type not in self._widths:
            raise SpecFault(each.lines["type"], "type", f"there is no type {each.type}")
        return self._widths[each.type]

    def total(self, fields: tuple[Field, ...]) -> int:
        """Bytes of all of them."""
        return sum(self.of(each) for each in fields)


def load(root: Path, spec: Spec) -> tuple[FileText, ...]:
    """Every file format, in the order of their names."""
    files = tuple(
        bind(FileText, read(path, f"{root.name}/files/{path.name}"))
        for path in sorted((root / "files").glob("*.yaml"))
    )
    widths = Widths(spec)
    for each in files:
        _check(each, spec, widths)
    unique(
        [tag for each in files for tag in each.tags],
        lambda each: (each.name, each.where),
        "tag",
    )
    return files


def _check(text: FileText, spec: Spec, widths: Widths) -> None:
    expected = f"{text.file}.yaml"
    if text.where.file.rpartition("/")[2] != expected:
        raise SpecFault(text.where, "file", f"the file of this format must be called {expected}")
    tags = {each.name for each in text.tags}
    for each in text.tags:
        if each.name in spec.constants:
            raise SpecFault(each.where, each.name, "is a constant of the wire already")
    for rule in unique(text.rules, lambda each: (each.id, each.where), "rule").values():
        if rule.else_ not in spec.errors:
            raise SpecFault(rule.lines["else"], "else", f"there is no error class {rule.else_}")
    for version in unique(text.versions, lambda each: (each.name, each.where), "version").values():
        if version.else_ not in spec.errors:
            raise SpecFault(version.lines["else"], "else", f"there is no error class {version.else_}")
    _check_sections(text, widths)
    for trailer in unique(text.trailers, lambda each: (each.name, each.where), "trailer").values():
        size = widths.total(trailer.fields)
        if size != trailer.size:
            raise SpecFault(trailer.lines["size"], "size", f"the fields have {size} bytes")
        for each_field in trailer.fields:
            if each_field.equals is not None and each_field.equals not in tags:
                raise SpecFault(each_field.lines["equals"], "equals", f"there is no tag {each_field.equals}")
    names = {each.name for each in text.objects}
    for each_object in unique(text.objects, lambda each: (each.name, each.where), "object").values():
        if each_object.event not in ("", each_object.name):
            raise SpecFault(each_object.where, "event", f"must be called {each_object.name}, as the object")
        for key in unique(each_object.fields, lambda each: (each.name, each.where), "key").values():
            inner = key.type.removeprefix("list of ")
            if inner not in _PLAIN and inner not in names:
                raise SpecFault(key.lines["type"], "type", f"there is no type {inner}")


def _check_sections(text: FileText, widths: Widths) -> None:
    sections = unique(text.sections, lambda each: (each.name, each.where), "section")
    for section in sections.values():
        fields = unique(section.fields, lambda each: (each.name, each.where), "field")
        widths.total(section.fields)
        for array in section.arrays:
            if array.count not in fields:
                raise SpecFault(
                    array.lines["count"], "count", f"{array.count} is not a field of this section"
                )
    if text.versions:
        prefix = sections.get("prefix")
        if prefix is None:
            raise SpecFault(text.where, "sections", "a file with versions needs a section `prefix`")
        for version in text.versions:
            fields_here = tuple(each for each in prefix.fields if each.since <= version.number)
            size = widths.total(fields_here)
            if text.prefix_size.get(version.name) != size:
                raise SpecFault(
                    text.lines.get("prefix-size", text.where), version.name, f"the prefix has {size} bytes"
                )
