"""The expression language of the specification.

An expression is parsed once, by `ast`, with an allow-list of node types, and never evaluated as text. One
tree gives the Python source of a check, an English sentence, the values around each comparison, and the names
that have to be known.

    integers and decimals, names (`c_steps`), dotted names (`session.dtype`), `none`
    + - * //    < <= == != >= >    in, not in, is none, is not none    and or not    f(x, y)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from codegen.faults import SpecFault, Where

BUILTIN_FUNCTIONS = {"min": 2, "max": 2, "len": 1}
_CALLABLE: dict[str, Callable[..., Any]] = {"min": min, "max": max, "len": len}

_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", lambda a, b: a + b),
    ast.Sub: ("-", lambda a, b: a - b),
    ast.Mult: ("*", lambda a, b: a * b),
    ast.FloorDiv: ("//", lambda a, b: a // b),
}
_COMPARE: dict[type[ast.cmpop], tuple[str, str, Callable[[Any, Any], bool]]] = {
    ast.Lt: ("<", "is below", lambda a, b: a < b),
    ast.LtE: ("<=", "is at most", lambda a, b: a <= b),
    ast.Eq: ("==", "is", lambda a, b: a == b),
    ast.NotEq: ("!=", "is not", lambda a, b: a != b),
    ast.GtE: (">=", "is at least", lambda a, b: a >= b),
    ast.Gt: (">", "is above", lambda a, b: a > b),
    ast.In: ("in", "is one of", lambda a, b: a in b),
    ast.NotIn: ("not in", "is none of", lambda a, b: a not in b),
    ast.Is: ("is", "is", lambda a, b: a is b),
    ast.IsNot: ("is not", "is not", lambda a, b: a is not b),
}


@dataclass(frozen=True, slots=True)
class Edge:
    """How far from the right side of a comparison the left one is just accepted, and just refused."""

    accepted: tuple[int, ...]
    refused: tuple[int, ...]


EDGES: Mapping[str, Edge] = {
    "<": Edge((-1,), (0, 1)),
    "<=": Edge((-1, 0), (1,)),
    "==": Edge((0,), (-1, 1)),
    "!=": Edge((-1, 1), (0,)),
    ">=": Edge((0, 1), (-1,)),
    ">": Edge((1,), (-1, 0)),
}
_PRECEDENCE = {
    "or": 1,
    "and": 2,
    "not": 3,
    "compare": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "//": 6,
    "unary": 7,
    "atom": 9,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison inside an expression: `left op right`."""

    left: Expr
    op: str
    right: Expr

    @property
    def edge(self) -> Edge:
        """The values on both sides of it; none for `in` and `is`."""
        return EDGES.get(self.op, Edge((), ()))


@dataclass(frozen=True, slots=True)
class Expr:
    """A parsed expression. `where` and `key` say where it stands in the specification."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)
    where: Where = field(compare=False, repr=False)
    key: str = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str, where: Where, key: str = "") -> Expr:
        """Raises `SpecFault` for anything but the language above."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise SpecFault(where, key, f"is not an expression: {text!r}") from None
        _allow(tree, text, where, key)
        return cls(text.strip(), tree, where, key)

    def names(self) -> tuple[str, ...]:
        """The names and dotted names in it, in order, each once. `none` is not one of them."""
        return tuple(dict.fromkeys(_names(self.tree)))

    def functions(self) -> tuple[tuple[str, int], ...]:
        """The functions that it calls, each with its number of arguments."""
        calls = [each for each in ast.walk(self.tree) if isinstance(each, ast.Call)]
        return tuple((each.func.id, len(each.args)) for each in calls if isinstance(each.func, ast.Name))

    def comparisons(self) -> tuple[Comparison, ...]:
        """Every comparison in it, in order."""
        found: list[Comparison] = []
        for each in ast.walk(self.tree):
            if isinstance(each, ast.Compare):
                op = _COMPARE[type(each.ops[0])][0]
                found.append(Comparison(self._part(each.left), op, self._part(each.comparators[0])))
        return tuple(found)

    def is_condition(self, is_bool: Callable[[str], bool]) -> bool:
        """Whether it is true or false; `is_bool(name)` tells it of a name that stands alone."""
        return _is_condition(self.tree, is_bool)

    def sole_comparison(self) -> Comparison | None:
        """The comparison, if the expression is just one."""
        return self.comparisons()[0] if isinstance(self.tree, ast.Compare) else None

    def python(self, bind: Callable[[str], str]) -> str:
        """Its Python source, with each name replaced by `bind(name)`."""
        return _python(self.tree, bind)[0]

    def sentence(self) -> str:
        """It in English, without a full stop."""
        return _sentence(self.tree)

    def evaluate(
        self, name: Callable[[str], Any], functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> Any:
        """Its value, with names looked up by `name`. Integers are unbounded.

        Raises `SpecFault` for what has no value, such as a division by zero or a sum of a number and a text.
        """
        try:
            return _evaluate(self.tree, name, {**_CALLABLE, **(functions or {})})
        except (ArithmeticError, TypeError) as error:
            raise self.fault(f"{self.text} has no value: {error}") from None

    def fault(self, what: str) -> SpecFault:
        """A fault at the place of this expression."""
        return SpecFault(self.where, self.key, what)

    def _part(self, tree: ast.expr) -> Expr:
        return Expr(ast.unparse(tree), tree, self.where, self.key)


def _allow(node: ast.expr, text: str, where: Where, key: str) -> None:
    def refuse(what: str) -> SpecFault:
        return SpecFault(where, key, f"{what} in {text!r}")

    match node:
        case ast.Constant(value=value):
            if type(value) not in (int, float):
                raise refuse(f"{value!r} is not a number")
        case ast.Name():
            pass
        case ast.Attribute(value=ast.Name()):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            _allow(node.operand, text, where, key)
        case ast.BoolOp():
            for each in node.values:
                _allow(each, text, where, key)
        case ast.BinOp():
            if type(node.op) not in _ARITHMETIC:
                raise refuse(f"the operator {type(node.op).__name__} is not allowed")
            _allow(node.left, text, where, key)
            _allow(node.right, text, where, key)
            if isinstance(node.op, ast.FloorDiv) and _is_zero(node.right):
                raise refuse("a division by zero")
        case ast.Compare():
            if len(node.ops) != 1:
                raise refuse("a chain of comparisons is not allowed")
            right_none = isinstance(node.comparators[0], ast.Name) and node.comparators[0].id == "none"
            if isinstance(node.ops[0], (ast.Is, ast.IsNot)) != right_none:
                raise refuse("`is` and `none` go together, and only together,")
            _allow(node.left, text, where, key)
            _allow(node.comparators[0], text, where, key)
        case ast.Call(func=ast.Name(), keywords=[]):
            for each in node.args:
                _allow(each, text, where, key)
        case _:
            raise refuse(f"{type(node).__name__} is not allowed")


def _is_zero(node: ast.expr) -> bool:
    """Whether it is made of numbers alone, and zero."""
    if any(isinstance(each, (ast.Name, ast.Call)) for each in ast.walk(node)):
        return False
    try:
        return not _evaluate(node, str, {})
    except (ArithmeticError, TypeError):  # `evaluate` says it
        return False


def _is_condition(node: ast.expr, is_bool: Callable[[str], bool]) -> bool:
    match node:
        case ast.Compare():
            return True
        case ast.BoolOp():
            return all(_is_condition(each, is_bool) for each in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return _is_condition(node.operand, is_bool)
        case ast.Name() | ast.Attribute():
            return any(is_bool(name) for name in _names(node))
        case _:
            return False


def _names(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Name(id=name):
            if name != "none":
                yield name
        case ast.Attribute(value=ast.Name(id=root), attr=attribute):
            yield f"{root}.{attribute}"
        case ast.UnaryOp():
            yield from _names(node.operand)
        case ast.BoolOp():
            for each in node.values:
                yield from _names(each)
        case ast.BinOp():
            yield from _names(node.left)
            yield from _names(node.right)
        case ast.Compare():
            yield from _names(node.left)
            yield from _names(node.comparators[0])
        case ast.Call():
            for each in node.args:
                yield from _names(each)


def _python(node: ast.expr, bind: Callable[[str], str]) -> tuple[str, int]:
    """Source and precedence; parentheses stand only where they are needed."""

    def part(child: ast.expr, least: int) -> str:
        text, precedence = _python(child, bind)
        return text if precedence >= least else f"({text})"

    match node:
        case ast.Constant(value=value):
            return repr(value), _PRECEDENCE["atom"]
        case ast.Name(id="none"):
            return "None", _PRECEDENCE["atom"]
        case ast.Name() | ast.Attribute():
            return bind(next(_names(node))), _PRECEDENCE["atom"]
        case ast.UnaryOp(op=ast.Not()):
            return f"not {part(node.operand, _PRECEDENCE['not'])}", _PRECEDENCE["not"]
        case ast.UnaryOp():
            return f"-{part(node.operand, _PRECEDENCE['unary'])}", _PRECEDENCE["unary"]
        case ast.BoolOp():
            word = "and" if isinstance(node.op, ast.And) else "or"
            level = _PRECEDENCE[word]
            # Mixed `and` and `or` get parentheses too, for the reader.
            parts = [
                part(
                    each, 3 if isinstance(each, ast.BoolOp) and type(each.op) is not type(node.op) else level
                )
                for each in node.values
            ]
            return f" {word} ".join(parts), level
        case ast.BinOp():
            sign = _ARITHMETIC[type(node.op)][0]
            level = _PRECEDENCE[sign]
            return f"{part(node.left, level)} {sign} {part(node.right, level + 1)}", level
        case ast.Compare():
            sign = _COMPARE[type(node.ops[0])][0]
            level = _PRECEDENCE["compare"] + 1
            return f"{part(node.left, level)} {sign} {part(node.comparators[0], level)}", _PRECEDENCE[
                "compare"
            ]
        case ast.Call(func=ast.Name(id=name)):
            return f"{name}({', '.join(_python(each, bind)[0] for each in node.args)})", _PRECEDENCE["atom"]
    raise AssertionError(f"_allow let {type(node).__name__} through")


def _sentence(node: ast.expr) -> str:
    match node:
        case ast.BoolOp():
            word = "and" if isinstance(node.op, ast.And) else "or"
            return f", {word} ".join(_sentence(each) for each in node.values)
        case ast.UnaryOp(op=ast.Not()):
            inner = node.operand
            if isinstance(inner, (ast.Name, ast.Attribute)):
                return f"{_term(inner)} does not hold"
            return f"it is not so that {_sentence(inner)}"
        case ast.Compare():
            words = _COMPARE[type(node.ops[0])][1]
            return f"{_term(node.left)} {words} {_term(node.comparators[0])}"
        case _:
            return f"{_term(node)} holds"


def _term(node: ast.expr) -> str:
    match node:
        case ast.Name(id="none"):
            return "absent"
        case ast.Call(func=ast.Name(id="len")):
            return f"the length of {_term(node.args[0])}"
        case ast.Call(func=ast.Name(id=name)):
            return f"{name}({', '.join(map(_term, node.args))})"
        case _:
            return _python(node, lambda name: name)[0]


def _evaluate(node: ast.expr, name: Callable[[str], Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    def value(child: ast.expr) -> Any:
        return _evaluate(child, name, functions)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id="none"):
            return None
        case ast.Name() | ast.Attribute():
            return name(next(_names(node)))
        case ast.UnaryOp(op=ast.Not()):
            return not value(node.operand)
        case ast.UnaryOp():
            return -value(node.operand)
        case ast.BoolOp(op=ast.And()):
            return all(value(each) for each in node.values)
        case ast.BoolOp():
            return any(value(each) for each in node.values)
        case ast.BinOp():
            return _ARITHMETIC[type(node.op)][1](value(node.left), value(node.right))
        case ast.Compare():
            return _COMPARE[type(node.ops[0])][2](value(node.left), value(node.comparators[0]))
        case ast.Call(func=ast.Name(id=called)):
            return functions[called](*map(value, node.args))
    raise AssertionError(f"_allow let {type(node).__name__} through")
