"""Checks of names and of values against the types that hold them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from codegen.faults import SpecFault, Where
from codegen.model import Enum, FieldText
from codegen.numbers import unique

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*\Z")


def is_name(text: str) -> bool:
    """Whether it is a name in lower case, as fields and rules have it."""
    return _NAME.match(text) is not None


def is_constant(text: str) -> bool:
    """Whether it is a name in capitals, as constants and frames have it."""
    return _CONSTANT.match(text) is not None


def most(size: int) -> int:
    """The largest integer that so many bytes hold."""
    return (1 << 8 * size) - 1


def check_name(name: str, where: Where) -> None:
    """Raises `SpecFault` for what cannot be the name of a field."""
    if not is_name(name):
        raise SpecFault(where, "name", f"{name!r} is not a name in lower case")
    if keyword.iskeyword(name):
        raise SpecFault(where, "name", f"{name} is a word of Python and cannot be a field")


def check_counts(fields: Iterable[FieldText]) -> None:
    """Raises `SpecFault` where a field counts another one that does not name it as its count."""
    by_name = {each.name: each for each in fields}
    for each in by_name.values():
        counted = by_name.get(each.counts) if each.counts is not None else None
        if counted is not None and counted.count != each.name:
            raise SpecFault(
                each.lines["counts"], "counts", f"{each.counts} does not say `count: {each.name}`"
            )


def check_values(enum: Enum, size: int) -> None:
    """Raises `SpecFault` for a value that does not fit the bytes of an enumeration, or is there twice."""
    unique(enum.values, lambda each: (each.name, each.where), "name")
    unique(enum.values, lambda each: (str(each.value), each.where), "value")
    for each in enum.values:
        if not is_constant(each.name):
            raise SpecFault(each.where, each.name, "a value is named in capitals")
        if not 0 <= each.value <= most(size):
            raise SpecFault(each.where, each.name, f"{each.value} does not fit {enum.type}, 0..{most(size)}")
