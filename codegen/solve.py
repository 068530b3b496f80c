"""Rearranges a comparison for one of its names, so that strategies can draw it on either side of the bound.

`offset + len(data) <= total_len` solved for `offset` is `offset <= total_len - len(data)`. Only sums and
differences are rearranged, and only for a name that stands alone in one of their terms.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from codegen.expr import Comparison, Expr

_MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
Bind = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Bound:
    """`name op` a sum of signed terms."""

    op: str
    terms: tuple[tuple[int, Expr], ...]

    def names(self) -> set[str]:
        """What has to be known to compute it; the length of a name counts as `len(name)`."""
        return {name for _, term in self.terms for name in variables(term)}

    def python(self, bind: Bind, add: int = 0, without: Iterable[str] = ()) -> str:
        """Its Python source, plus a constant. Terms that name something of `without` are left out."""
        dropped = set(without)
        constant = add
        plus: list[str] = []
        minus: list[str] = []
        for sign, term in self.terms:
            if isinstance(term.tree, ast.Constant) and isinstance(term.tree.value, int):
                constant += sign * term.tree.value
            elif not dropped & variables(term):
                (plus if sign > 0 else minus).append(term.python(bind))
        text = " + ".join(plus)
        for each in minus:
            text = f"{text} - {each}" if text else f"-{each}"
        if not text:
            return str(constant)
        return f"{text} {'+' if constant > 0 else '-'} {abs(constant)}" if constant else text

    def relaxed(self, unknown: set[str]) -> bool:
        """Whether leaving out unknown terms, which are never negative, gives a weaker bound of its kind."""
        wanted = 1 if self.op in (">", ">=") else -1
        return all(sign == wanted for sign, term in self.terms if variables(term) & unknown)


def variables(expr: Expr) -> set[str]:
    """The names in an expression, with `len(name)` as a variable of its own."""
    return {ast.unparse(node) for node in _atoms(expr.tree)}


def _atoms(node: ast.expr) -> Iterable[ast.expr]:
    if isinstance(node, (ast.Name, ast.Attribute)) or _is_length(node):
        yield node
    elif isinstance(node, ast.Call):
        for each in node.args:
            yield from _atoms(each)
    else:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _atoms(child)


def _is_length(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"


def solve(comparison: Comparison, name: str) -> Bound | None:
    """The bound that a comparison puts on a variable, `x` or `len(x)`; None when it cannot be rearranged."""
    if comparison.op not in _MIRROR:
        return None
    terms = [(sign, term) for sign, term in _terms(comparison.left.tree, 1)]
    terms += [(-sign, term) for sign, term in _terms(comparison.right.tree, 1)]
    own = [(sign, term) for sign, term in terms if ast.unparse(term) == name]
    if len(own) != 1:
        return None
    sign = own[0][0]
    rest = [(each_sign, term) for each_sign, term in terms if ast.unparse(term) != name]
    where = comparison.left
    exprs = tuple(
        (-sign * each_sign, Expr(ast.unparse(term), term, where.where, where.key)) for each_sign, term in rest
    )
    if any(name in variables(term) for _, term in exprs):
        return None
    return Bound(comparison.op if sign > 0 else _MIRROR[comparison.op], exprs)


def _terms(node: ast.expr, sign: int) -> Iterable[tuple[int, ast.expr]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _terms(node.left, sign)
        yield from _terms(node.right, sign if isinstance(node.op, ast.Add) else -sign)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _terms(node.operand, -sign)
    else:
        yield sign, node
