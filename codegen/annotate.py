"""Bytes with the name and value of each field, for the examples on the reference pages.

Frames and binary files are walked as the specification describes them, by nothing but that: a description
that does not fit the bytes is a fault, not a wrong page.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from codegen.codec_cases import CaseText
from codegen.faults import SpecFault, Where
from codegen.files import Array, FileText, Widths
from codegen.files import Field as FileField
from codegen.model import Enum, FieldText
from codegen.spec import Frame, Spec

_LONG = 16  # values of an array that are spelled out
_NUMBERS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes, from `offset` on, that are one field; `value` is what they say."""

    offset: int
    data: bytes
    name: str
    value: str

    @property
    def hex(self) -> str:
        """The bytes in groups of four, a long row of equal ones shortened."""
        if len(self.data) > 8 and len(set(self.data)) == 1:
            return f"{self.data[:1].hex()} x {len(self.data)}"
        return " ".join(self.data[at : at + 4].hex() for at in range(0, len(self.data), 4))


class Walk:
    """Goes through bytes from the left and notes what was read."""

    def __init__(self, data: bytes, where: Where, prefix: str = "") -> None:
        self.data = data
        self.where = where
        self.prefix = prefix
        self.place = 0
        self.pieces: list[Piece] = []

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self.data) - self.place

    def take(self, size: int, name: str, say: Callable[[bytes], str]) -> bytes:
        """Read `size` bytes as a field."""
        if size > self.left:
            raise SpecFault(self.where, name, f"the example has {self.left} bytes here, not {size}")
        data = self.data[self.place : self.place + size]
        self.pieces.append(Piece(self.place, data, self.prefix + name, say(data)))
        self.place += size
        return data

    def number(self, size: int, name: str, enum: Enum | None = None) -> int:
        """Read a little-endian integer, perhaps of an enumeration."""
        names = {each.value: each.name for each in enum.values} if enum else {}

        def say(data: bytes) -> str:
            value = int.from_bytes(data, "little")
            return f"{names[value]} ({value})" if value in names else f"{value}"

        return int.from_bytes(self.take(size, name, say), "little")

    def end(self) -> None:
        """Everything must have been read."""
        if self.left:
            raise SpecFault(self.where, "example", f"{self.left} bytes are left after the last field")


def frame_example(spec: Spec, frame: Frame, case: CaseText, dtype: str | None) -> list[Piece]:
    """The whole frame of a case, header first."""
    magic = int(spec.constant("MAGIC"))
    head = struct.pack("<IBQ", magic, frame.text.id, len(case.data))
    walk = Walk(head + case.data, case.where)
    walk.take(4, "magic", lambda data: f"0x{int.from_bytes(data, 'little'):08X}")
    walk.take(1, "type", lambda data: f"{data[0]}, {frame.name}")
    walk.number(8, "len")
    known: dict[str, int] = {}
    for each in frame.fields:
        _frame_field(spec, walk, each.text, known)
    bulk = frame.text.bulk
    if bulk is not None and bulk.type == "text":
        walk.take(walk.left, bulk.name, lambda data: f"“{data.decode()}”")
    elif bulk is not None:
        form = "F32" if bulk.length is not None and "session.dtype" not in bulk.length.names() else dtype
        walk.take(walk.left, bulk.name, lambda data: values(data, form if bulk.length is not None else None))
    walk.end()
    return walk.pieces


def _frame_field(spec: Spec, walk: Walk, text: FieldText, known: dict[str, int], outer: str = "") -> None:
    def lookup(name: str) -> Any:
        names = {value.name: value.value for enum in spec.enums.values() for value in enum.values}
        found: dict[str, Any] = {"left": walk.left, **names, **known}
        return found[name] if name in found else spec.constant(name)

    if text.present is not None and not text.present.evaluate(lookup):
        return
    count = 1 if text.count is None else known[text.count]
    structures = {each.name: each for each in spec.types.structures}
    for number in range(count):
        name = outer + text.name + (f"[{number}]" if text.count is not None else "")
        if text.type in structures:
            inner: dict[str, int] = {}
            for each in structures[text.type].fields:
                _frame_field(spec, walk, each, inner, f"{name}.")
        elif text.type == "digest":
            walk.take(int(spec.constant("HASH_BYTES")), name, lambda data: "32 bytes")
        else:
            parts = text.type.split()
            for part, label in zip(parts, (text.each or text.name).split(), strict=False):
                enum = spec.enums.get(part)
                width = _NUMBERS[enum.type if enum else part]
                shown = name if len(parts) == 1 else f"{name}.{label}"
                known[text.name] = walk.number(width, shown, enum)


def values(data: bytes, dtype: str | None) -> str:
    """The numbers that bulk bytes stand for; empty for bytes whose form is not known."""
    if dtype == "F32" and len(data) <= 4 * _LONG:
        return ", ".join(f"{value:g}" for value in struct.unpack(f"<{len(data) // 4}f", data))
    if dtype in ("BF16", "Q4") and len(data) <= 2 * _LONG:
        wide = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
        return values(wide, "F32")
    return f"{len(data)} bytes"


def file_example(spec: Spec, text: FileText) -> list[Piece]:
    """The example of a binary file or of a text of fixed form."""
    walk = Walk(bytes.fromhex(text.example), text.lines.get("example", text.where))
    if text.kind == "text":
        for line in text.text:
            head, equals, _ = line.partition("=")
            rest = walk.data[walk.place :].partition(b"\n")[0]
            if equals:
                walk.take(len(head) + 1, head, lambda data: f"“{data.decode()}”")
                walk.take(len(rest) - len(head) - 1, "value", lambda data: data.decode())
            else:
                walk.take(len(rest), "tag", lambda data: f"“{data.decode()}”")
            walk.take(1, "line feed", lambda data: "")
    else:
        _binary(spec, text, walk)
    walk.end()
    return walk.pieces


def _binary(spec: Spec, text: FileText, walk: Walk) -> None:
    widths = Widths(spec)
    version = 1
    for section in text.sections:
        walk.prefix = ""
        count = 1
        if section.count is not None:
            count = walk.number(widths.of(section.count), section.count.name)
        for number in range(count):
            walk.prefix = f"{section.name}[{number}]." if section.count is not None else ""
            known: dict[str, int] = {}
            for each in section.fields:
                if each.since > version:
                    continue
                if each.selects == "version":
                    version = _version(text, walk, widths.of(each), each.name)
                else:
                    known[each.name] = _file_field(spec, walk, each, widths)
            for array in section.arrays:
                _array(walk, array, known)
    walk.prefix = "trailer."
    for trailer in text.trailers:
        if trailer.size == walk.left and trailer.size:
            for each in trailer.fields:
                _file_field(spec, walk, each, widths)


def _version(text: FileText, walk: Walk, width: int, name: str) -> int:
    magics: Mapping[int, int] = {each.magic: each.number for each in text.versions}
    data = walk.take(width, name, lambda data: f"0x{int.from_bytes(data, 'little'):08X}")
    return magics[int.from_bytes(data, "little")]


def _file_field(spec: Spec, walk: Walk, each: FileField, widths: Widths) -> int:
    if each.type == "digest":
        walk.take(widths.of(each), each.name, lambda data: "32 bytes")
        return 0
    if each.equals is not None:
        walk.take(widths.of(each), each.name, lambda data: each.equals or "")
        return 0
    return walk.number(widths.of(each), each.name, spec.enums.get(each.type))


def _array(walk: Walk, array: Array, known: Mapping[str, int]) -> None:
    walk.take(4 * known[array.count], array.name, lambda data: values(data, "F32"))


def lines(pieces: list[Piece]) -> Iterator[str]:
    """The pieces as text in columns: offset, bytes, field, value."""
    rows = [(str(each.offset), each.hex, each.name, each.value) for each in pieces]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for offset, data, name, value in rows:
        row = f"{offset:>{widths[0]}}  {data:<{widths[1]}}  {name:<{widths[2]}}  {value}"
        yield row.rstrip()
