"""Expressions of the specification in the languages of other tools."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from codegen.expr import Expr

_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.GtE: ">=",
    ast.Gt: ">",
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a language writes in its own way. `floor_div` and `call` are formats of their operands."""

    not_equal: str
    floor_div: str
    call: Callable[[str, list[str]], str]


KAITAI = Dialect("!=", "{} / {}", lambda name, operands: f"{operands[0]}.length")
LUA = Dialect("~=", "math.floor({} / {})", lambda name, operands: f"{name}({', '.join(operands)})")


def source(expr: Expr, dialect: Dialect, bind: Callable[[str], str]) -> str:
    """The expression as source of that language, with each name replaced by `bind(name)`.

    Raises `SpecFault` for what no tool can judge: membership in sets, and what may be absent.
    """
    return _source(expr, expr.tree, dialect, bind)


def _source(expr: Expr, node: ast.expr, dialect: Dialect, bind: Callable[[str], str]) -> str:
    def part(child: ast.expr) -> str:
        text = _source(expr, child, dialect, bind)
        return f"({text})" if isinstance(child, (ast.BoolOp, ast.BinOp)) else text

    def side(child: ast.expr) -> str:
        return _source(expr, child, dialect, bind)

    match node:
        case ast.Constant(value=value):
            return repr(value)
        case ast.Name(id=name) if name != "none":
            return bind(name)
        case ast.Attribute(value=ast.Name(id=root), attr=attribute):
            return bind(f"{root}.{attribute}")
        case ast.UnaryOp(op=ast.Not()):
            return f"not ({side(node.operand)})"
        case ast.BoolOp():
            word = " and " if isinstance(node.op, ast.And) else " or "
            return word.join(part(each) for each in node.values)
        case ast.BinOp(op=ast.FloorDiv()):
            return dialect.floor_div.format(part(node.left), part(node.right))
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return f"{part(node.left)} {_ARITHMETIC[type(node.op)]} {part(node.right)}"
        case ast.Compare(ops=[operator]) if isinstance(operator, ast.NotEq) or type(operator) in _COMPARE:
            sign = _COMPARE.get(type(operator), dialect.not_equal)
            return f"{side(node.left)} {sign} {side(node.comparators[0])}"
        case ast.Call(func=ast.Name(id=name)):
            return dialect.call(name, [side(each) for each in node.args])
    raise expr.fault("cannot be said in the language of another tool")
