"""A strict reader of YAML: it takes the values that a person would read in the text, and refuses all others.

PyYAML takes a repeated key silently, reads `010` as 8, `1:30` as 90 and `no` as false. Here a plain scalar is
an integer, a float, `true`, `false` or text; whatever only YAML 1.1 would read as something else is a fault.
Every value keeps its line, so that later checks can name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from codegen.faults import SpecFault, Where

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*(_[0-9]+)*)\Z")
_HEX = re.compile(r"0x[0-9A-Fa-f]+(_[0-9A-Fa-f]+)*\Z")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?\Z")
# What YAML 1.1, YAML 1.2 or a reader in a hurry takes for a number, a truth value, a date or nothing at all.
_GUESS = re.compile(
    r"[-+]?[0-9][0-9_]*|[-+]?0[bo][0-7_]+|[-+]?0[xX][0-9A-Fa-f_]+|[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"
    r"|[-+]?([0-9][0-9_]*)?\.[0-9_]*([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    r"|~|null|Null|NULL|[yYnN]|[yY]es|YES|[nN]o|NO|[tT]rue|TRUE|[fF]alse|FALSE|[oO]n|ON|[oO]ff|OFF"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*\Z"
)

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar. `quoted` tells `"4"` from `4`."""

    value: Scalar
    where: Where
    quoted: bool = False


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
    return parse(text, name)


def text_line(path: Path, offset: int) -> int:
    """The line of a byte offset, from 1."""
    return path.read_bytes()[:offset].count(b"\n") + 1


def parse(text: str, name: str) -> Table:
    """As `read`, from text."""
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            _no_machinery(event, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SpecFault(
            Where(name, mark.line + 1 if mark else 0), "", f"is not YAML: {error.problem}"
        ) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise SpecFault(Where(name, line), "", f"is not YAML: {error.reason}") from None
    if node is None:
        raise SpecFault(Where(name, 1), "", "is empty")
    try:
        converted = _convert(node, name)
    except RecursionError:
        raise SpecFault(Where(name, 1), "", "is nested too deeply") from None
    if not isinstance(converted, Table):
        raise SpecFault(converted.where, "", "must be a mapping")
    return converted


def _no_machinery(event: yaml.Event, name: str) -> None:
    """Refuse what makes a value differ from the text that is read: tags, anchors and aliases."""
    where = Where(name, event.start_mark.line + 1 if event.start_mark else 0)
    tag: str | None = getattr(event, "tag", None)
    if tag is not None:
        raise SpecFault(where, "", f"the tag {tag} is not allowed")
    anchor: str | None = getattr(event, "anchor", None)
    if anchor is not None:
        raise SpecFault(where, "", f"the anchor or alias {anchor} is not allowed")


def _convert(node: yaml.Node, name: str) -> Node:
    where = Where(name, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, where)
    if isinstance(node, yaml.SequenceNode):
        return Items(tuple(_convert(each, name) for each in node.value), where)
    values: dict[str, Node] = {}
    lines: dict[str, Where] = {}
    for key_node, value_node in node.value:
        at = Where(name, key_node.start_mark.line + 1)
        if not isinstance(key_node, yaml.ScalarNode):
            raise SpecFault(at, "", "a key must be text")
        key = _scalar(key_node, at)
        if not isinstance(key.value, str):
            raise SpecFault(at, str(key_node.value), "a key must be text; quote it if it is meant to be")
        if key.value in values:
            raise SpecFault(at, key.value, f"repeats the key of line {lines[key.value].line}")
        values[key.value] = _convert(value_node, name)
        lines[key.value] = at
    return Table(values, where, lines)


def _scalar(node: yaml.ScalarNode, where: Where) -> Leaf:
    text: str = node.value
    if node.style is not None:
        return Leaf(text, where, quoted=True)
    if text == "":
        raise SpecFault(where, "", "has no value")
    if text in ("true", "false"):
        return Leaf(text == "true", where)
    if _INTEGER.match(text):
        return Leaf(int(text), where)
    if _HEX.match(text):
        return Leaf(int(text, 16), where)
    if _FLOAT.match(text):
        return Leaf(float(text), where)
    if _GUESS.fullmatch(text) or node.tag != "tag:yaml.org,2002:str":
        raise SpecFault(
            where, text, "YAML readers disagree about this; quote it, or write the number in full"
        )
    return Leaf(text, where)
