"""A strict reader of YAML: it takes the values that a person would read in the text, and refuses all others.

PyYAML takes a repeated key silently, reads `010` as 8, `1:30` as 90 and `no` as false. Here a plain scalar is
an integer, a float, `true`, `false` or text; whatever only YAML 1.1 would read as something else is a fault.
Every value keeps its line, so that later checks can name it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from codegen.faults import SpecFault, Where

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*(_[0-9]+)*)\Z")
_DIGITS = 1000  # more than any number of a protocol has, and fewer than Python refuses to read
_HEX = re.compile(r"0x[0-9A-Fa-f]+(_[0-9A-Fa-f]+)*\Z")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?\Z")
# What YAML 1.1, YAML 1.2 or a reader in a hurry takes for a number, a truth value, a date or nothing at all.
_GUESS = re.compile(
    r"[-+]?[0-9][0-9_]*|[-+]?0[bo][0-7_]+|[-+]?0[xX][0-9A-Fa-f_]+|[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"
    r"|[-+]?([0-9][0-9_]*)?\.[0-9_]*([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    r"|<<|=|~|null|Null|NULL|[yYnN]|[yY]es|YES|[nN]o|NO|[tT]rue|TRUE|[fF]alse|FALSE|[oO]n|ON|[oO]ff|OFF"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*\Z"
)

# The parser in C when PyYAML has it: the same events, ten times as fast.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar; text if it is quoted, so that `"4"` is not `4`."""

    value: Scalar
    where: Where


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence."""

    values: tuple[Node, ...]
    where: Where

    def __iter__(self) -> Iterator[Node]:
        return iter(self.values)


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping with text keys, in the order of the file."""

    values: Mapping[str, Node]
    where: Where
    lines: Mapping[str, Where]


Node = Leaf | Items | Table


def read(path: Path, name: str) -> Table:
    """The one document of a file, which must be a mapping. `name` is what faults call the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecFault(Where(name, 0), "", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecFault(Where(name, text_line(path, error.start)), "", "is not UTF-8") from None
    return _parsed(text, name)


# A test reads the same files again and again; nodes are never changed, so they can be shared.
@functools.lru_cache(maxsize=512)
def _parsed(text: str, name: str) -> Table:
    return parse(text, name)


def text_line(path: Path, offset: int) -> int:
    """The line of a byte offset, from 1."""
    return path.read_bytes()[:offset].count(b"\n") + 1


def parse(text: str, name: str) -> Table:
    """As `read`, from text."""
    try:
        tree = _Tree(name)
        for event in yaml.parse(text, Loader=_LOADER):
            tree.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SpecFault(
            Where(name, mark.line + 1 if mark else 0), "", f"is not YAML: {error.problem}"
        ) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise SpecFault(Where(name, line), "", f"is not YAML: {error.reason}") from None
    if not tree.documents:
        raise SpecFault(Where(name, 1), "", "is empty")
    document = tree.documents[0]
    if not isinstance(document, Table):
        raise SpecFault(document.where, "", "must be a mapping")
    return document


class _Tree:
    """Builds nodes from the events of a YAML parser."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.documents: list[Node] = []
        self.open: list[_Open] = []

    def take(self, event: yaml.Event) -> None:
        where = Where(self.name, event.start_mark.line + 1 if event.start_mark else 0)
        tag: str | None = getattr(event, "tag", None)
        if tag is not None:
            raise SpecFault(where, "", f"the tag {tag} is not allowed")
        anchor: str | None = getattr(event, "anchor", None)
        if anchor is not None:
            raise SpecFault(where, "", f"the anchor or alias {anchor} is not allowed")
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            if self.open and self.open[-1].wants_key():
                raise SpecFault(where, "", "a key must be text")
            self.open.append(_Open(where, isinstance(event, yaml.MappingStartEvent)))
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._add(self.open.pop().close())
        elif isinstance(event, yaml.ScalarEvent):
            plain = bool(event.implicit[0])
            self._add(_scalar(event.value, where, plain))

    def _add(self, node: Node) -> None:
        if self.open:
            self.open[-1].add(node)
        elif self.documents:
            raise SpecFault(node.where, "", "is not YAML: a second document in one file")
        else:
            self.documents.append(node)


class _Open:
    """A mapping or sequence whose end has not come yet."""

    def __init__(self, where: Where, mapping: bool) -> None:
        self.where = where
        self.mapping = mapping
        self.items: list[Node] = []
        self.values: dict[str, Node] = {}
        self.lines: dict[str, Where] = {}
        self.key: str | None = None

    def wants_key(self) -> bool:
        return self.mapping and self.key is None

    def add(self, node: Node) -> None:
        if not self.mapping:
            self.items.append(node)
        elif self.key is not None:
            self.values[self.key] = node
            self.key = None
        elif not isinstance(node, Leaf) or not isinstance(node.value, str):
            text = str(node.value) if isinstance(node, Leaf) else ""
            raise SpecFault(node.where, text, "a key must be text; quote it if it is meant to be")
        elif node.value in self.lines:
            raise SpecFault(node.where, node.value, f"repeats the key of line {self.lines[node.value].line}")
        else:
            self.key = node.value
            self.lines[node.value] = node.where

    def close(self) -> Node:
        return (
            Table(self.values, self.where, self.lines)
            if self.mapping
            else Items(tuple(self.items), self.where)
        )


def _scalar(text: str, where: Where, plain: bool) -> Leaf:
    if not plain:
        return Leaf(text, where)
    if text == "":
        raise SpecFault(where, "", "has no value")
    if text in ("true", "false"):
        return Leaf(text == "true", where)
    if _INTEGER.match(text):
        if len(text) > _DIGITS:
            raise SpecFault(where, "", f"an integer of more than {_DIGITS} digits; quote it if it is text")
        return Leaf(int(text), where)
    if _HEX.match(text):
        return Leaf(int(text, 16), where)
    if _FLOAT.match(text):
        return Leaf(float(text), where)
    if _GUESS.fullmatch(text):
        raise SpecFault(
            where, text, "YAML readers disagree about this; quote it, or write the number in full"
        )
    return Leaf(text, where)
