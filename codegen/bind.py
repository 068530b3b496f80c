"""Fills dataclasses from YAML nodes: the classes of `codegen.model` are the schema of the specification.

A key is the name of a field, with `-` for `_`; `else_` and `from_` stand for the keys `else` and `from`. A
field without a default is a required key. Unknown keys are faults. A class gets the place of its mapping in a
field `where: Where` and the lines of its keys in `lines: Mapping[str, Where]`, if it has these.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from codegen.expr import Expr
from codegen.faults import SpecFault
from codegen.load import Items, Leaf, Node, Table

T = TypeVar("T")
_OWN = ("where", "lines")


def bind(cls: type[T], node: Node, key: str = "") -> T:
    """An instance of a schema class from a mapping node; raises `SpecFault` with the line and key of what is
    wrong.
    """
    value = _bind(cls, node, key)
    assert isinstance(value, cls)
    return value


def key_of(field: str) -> str:
    """The YAML key of a dataclass field."""
    return field.rstrip("_").replace("_", "-")


def _bind(kind: Any, node: Node, key: str) -> Any:
    if kind is Any:
        return plain(node)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _bind_union(typing.get_args(kind), node, key)
    if origin is typing.Literal:
        choices = typing.get_args(kind)
        value = node.value if isinstance(node, Leaf) else None
        if value not in choices or isinstance(value, bool):
            raise SpecFault(node.where, key, f"must be one of {', '.join(map(str, choices))}")
        return value
    if origin is tuple:
        if not isinstance(node, Items):
            raise SpecFault(node.where, key, "must be a list")
        inner = typing.get_args(kind)[0]
        return tuple(_bind(inner, each, key) for each in node)
    if origin is Mapping:
        if not isinstance(node, Table):
            raise SpecFault(node.where, key, "must be a mapping")
        inner = typing.get_args(kind)[1]
        return {
            name: _bind(inner, each, f"{key}.{name}" if key else name) for name, each in node.values.items()
        }
    if dataclasses.is_dataclass(kind) and kind is not Expr:
        return _bind_class(kind, node, key)
    return _bind_leaf(kind, node, key)


def _bind_union(kinds: tuple[Any, ...], node: Node, key: str) -> Any:
    """The first kind that the shape of the node fits; a node that fits none is a fault."""
    wanted = [each for each in kinds if each is not type(None)]
    for each in wanted:
        origin = typing.get_origin(each)
        mapping = origin is Mapping or (dataclasses.is_dataclass(each) and each is not Expr)
        if (isinstance(node, Table) and mapping) or (isinstance(node, Items) and origin is tuple):
            return _bind(each, node, key)
        if isinstance(node, Leaf) and (origin is typing.Literal or (origin is None and _fits(each, node))):
            return _bind(each, node, key)
    if float in wanted and isinstance(node, Leaf) and type(node.value) is int:
        return float(node.value)
    raise SpecFault(node.where, key, f"must be {' or '.join(map(_kind_name, wanted))}")


def _bind_class(kind: Any, node: Node, key: str) -> Any:
    if not isinstance(node, Table):
        raise SpecFault(node.where, key, "must be a mapping")
    hints = _hints(kind)
    fields = {
        key_of(each.name): each for each in dataclasses.fields(kind) if each.name not in _OWN and each.init
    }
    for name in node.values:
        if name not in fields:
            known = ", ".join(sorted(fields))
            raise SpecFault(node.lines[name], name, f"is not a key here; known are {known}")
    values: dict[str, Any] = {}
    for name, each in fields.items():
        if name in node.values:
            values[each.name] = _bind(hints[each.name], node.values[name], name)
        elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise SpecFault(node.where, name, "is missing")
    if "where" in hints:
        values["where"] = node.where
    if "lines" in hints:
        values["lines"] = node.lines
    return kind(**values)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fits(kind: Any, node: Leaf) -> bool:
    if kind is Expr:
        return isinstance(node.value, (str, int)) and not isinstance(node.value, bool)
    if kind is float:
        return isinstance(node.value, float)
    return type(node.value) is kind


def _bind_leaf(kind: Any, node: Node, key: str) -> Any:
    if not isinstance(node, Leaf) or not (_fits(kind, node) or (kind is float and type(node.value) is int)):
        raise SpecFault(node.where, key, f"must be {_kind_name(kind)}")
    if kind is Expr:
        return Expr.parse(str(node.value), node.where, key)
    if kind is float:
        return float(node.value)
    return node.value


def _kind_name(kind: Any) -> str:
    names: dict[Any, str] = {
        str: "text",
        int: "an integer",
        float: "a number",
        bool: "true or false",
        Expr: "an expression",
    }
    return names.get(kind, "a list" if typing.get_origin(kind) is tuple else "a mapping")


def plain(node: Node) -> Any:
    """The value of a node as text, numbers, lists and dicts, for keys whose content is free."""
    if isinstance(node, Leaf):
        return node.value
    if isinstance(node, Items):
        return [plain(each) for each in node]
    return {key: plain(value) for key, value in node.values.items()}
