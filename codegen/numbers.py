"""The values of constants, each computed after the ones that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from codegen.expr import BUILTIN_FUNCTIONS, Expr
from codegen.faults import SpecFault, Where
from codegen.model import Constant, Size


class Numbers:
    """Evaluates constants, each after the ones that it names."""

    def __init__(
        self, constants: Mapping[str, Constant], sized: Callable[[str], int | None], known: dict[str, Any]
    ) -> None:
        self.constants = constants
        self.sized = sized
        self.known = known
        self.busy: list[str] = []

    def get(self, name: str) -> Any:
        if name not in self.known:
            each = self.constants[name]
            if name in self.busy:
                raise SpecFault(each.where, name, "depends on itself")
            self.busy.append(name)
            self.known[name] = self._value(each)
            self.busy.pop()
        return self.known[name]

    def _value(self, each: Constant) -> Any:
        given = [each.value, each.values, each.text, each.bytes]
        if sum(value is not None for value in given) != 1:
            raise SpecFault(each.where, each.name, "needs exactly one of value, values, text and bytes")
        if each.text is not None:
            return each.text
        if each.bytes is not None:
            return each.bytes.encode("latin-1")
        if each.values is not None:
            return each.values
        if isinstance(each.value, Expr):
            return self.number(each.value)
        return each.value

    def number(self, expr: Expr) -> Any:
        def lookup(name: str) -> Any:
            if name in self.constants:
                return self.get(name)
            size = self.sized(name.removeprefix("size.")) if name.startswith("size.") else None
            if size is None:
                raise expr.fault(f"{name} is not known here")
            return size

        check_functions(expr, {})
        return expr.evaluate(lookup)


def check_functions(expr: Expr, sizes: Mapping[str, Size]) -> None:
    """Raises `SpecFault` for an unknown function or a wrong number of arguments."""
    for name, count in expr.functions():
        expected = BUILTIN_FUNCTIONS.get(name, len(sizes[name].args) if name in sizes else None)
        if expected is None:
            raise expr.fault(f"there is no function {name}")
        if count != expected:
            raise expr.fault(f"{name} takes {expected} arguments, not {count}")


def unique(items: Iterable[Any], key: Callable[[Any], tuple[str, Where]], what: str) -> dict[str, Any]:
    """Items by name; raises `SpecFault` where one repeats."""
    found: dict[str, Any] = {}
    for each in items:
        name, where = key(each)
        if name in found:
            raise SpecFault(where, name, f"this {what} exists already")
        found[name] = each
    return found
