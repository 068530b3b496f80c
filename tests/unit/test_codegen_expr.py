"""The expression language: what it takes, and what one parsed tree gives."""

from __future__ import annotations

import pytest

from codegen.expr import Expr
from codegen.faults import SpecFault, Where
from codegen.numbers import check_functions
from codegen.solve import solve

HERE = Where("spec/x.yaml", 7)


def expr(text: str) -> Expr:
    return Expr.parse(text, HERE, "must")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "x.y.z < 1",
        "x[0]",
        "x ** 2",
        "x / 2",
        "x % 2",
        "x << 2",
        "x if y else z",
        "lambda: 1",
        "[1, 2]",
        "'text'",
        "1 < x < 3",
        "f(x=1)",
        "f(*x)",
        "x.f(1)",
        "(x := 1)",
        "x is y",
        "x == none",
        "x is 1",
        "~x",
        "+x",
        "True",
        "f'{x}'",
        "x =",
        "",
        "x; y",
        "1j",
        "(" * 300 + "x" + ")" * 300,
    ],
)
def test_anything_else_is_a_fault_at_its_place(text):
    with pytest.raises(SpecFault) as fault:
        expr(text)
    assert str(fault.value).startswith("spec/x.yaml:7: must: ")


@pytest.mark.parametrize(
    ("text", "python", "sentence"),
    [
        ("c_steps >= 1", "m.c_steps >= 1", "c_steps is at least 1"),
        ("a < s.b", "m.a < m.s.b", "a is below s.b"),
        ("a<=b", "m.a <= m.b", "a is at most b"),
        ("a == 4", "m.a == 4", "a is 4"),
        ("a != 0", "m.a != 0", "a is not 0"),
        ("a > 0", "m.a > 0", "a is above 0"),
        ("a in s.b", "m.a in m.s.b", "a is one of s.b"),
        ("a not in b", "m.a not in m.b", "a is none of b"),
        ("a is none", "m.a is None", "a is absent"),
        ("a is not none", "m.a is not None", "a is not absent"),
        ("not a", "not m.a", "a does not hold"),
        ("a", "m.a", "a holds"),
        ("a == 1 or b", "m.a == 1 or m.b", "a is 1, or b holds"),
        ("a == 1 and not (b == 2)", "m.a == 1 and not m.b == 2", "a is 1, and it is not so that b is 2"),
        ("(a or b) and c", "(m.a or m.b) and m.c", "a holds, or b holds, and c holds"),
        ("a or b and c", "m.a or (m.b and m.c)", "a holds, or b holds, and c holds"),
        ("len(d) + a <= t", "len(m.d) + m.a <= m.t", "len(d) + a is at most t"),
        ("len(d) >= 1", "len(m.d) >= 1", "the length of d is at least 1"),
        ("(a + 1) * 2 == b", "(m.a + 1) * 2 == m.b", "(a + 1) * 2 is b"),
        ("a - (b - c) == 1", "m.a - (m.b - m.c) == 1", "a - (b - c) is 1"),
        ("a + 1 * 2 == -b", "m.a + 1 * 2 == -m.b", "a + 1 * 2 is -b"),
        ("max(a, 2) // 3 == 0", "max(m.a, 2) // 3 == 0", "max(a, 2) // 3 is 0"),
    ],
)
def test_one_tree_gives_source_and_sentence(text, python, sentence):
    found = expr(text)
    assert found.python(lambda name: f"m.{name}") == python
    assert found.sentence() == sentence


def test_the_source_means_what_the_tree_means():
    text = "(a + b) * 2 - (c - 1) // 2 <= max(a, b) and not (a == 3 or b in s) or c is none"
    found = expr(text)
    source = found.python(lambda name: f"v[{name!r}]")
    for a in range(-3, 4):
        for b in range(-3, 4):
            for c in (0, 1, 5):
                v = {"a": a, "b": b, "c": c, "s": (1, 2)}
                assert bool(eval(source, {"v": v, "max": max})) == bool(found.evaluate(v.__getitem__))


def test_names_functions_and_comparisons():
    found = expr("f(a, s.b) <= a + 1 and c == 2")
    assert found.names() == ("a", "s.b", "c")
    assert found.functions() == (("f", 2),)
    assert [each.op for each in found.comparisons()] == ["<=", "=="]
    assert found.sole_comparison() is None
    check_functions(expr("max(a, b) < len(c)"), {})
    with pytest.raises(SpecFault, match="there is no function f"):
        check_functions(found, {})
    with pytest.raises(SpecFault, match="max takes 2 arguments, not 1"):
        check_functions(expr("max(a) < 1"), {})


@pytest.mark.parametrize(
    ("text", "accepted", "refused"),
    [
        ("a < b", (-1,), (0, 1)),
        ("a <= b", (-1, 0), (1,)),
        ("a == b", (0,), (-1, 1)),
        ("a != b", (-1, 1), (0,)),
        ("a >= b", (0, 1), (-1,)),
        ("a > b", (1,), (-1, 0)),
        ("a in b", (), ()),
    ],
)
def test_boundary_values_lie_on_both_sides(text, accepted, refused):
    found = expr(text)
    (comparison,) = found.comparisons()
    assert (comparison.edge.accepted, comparison.edge.refused) == (accepted, refused)
    for distance in accepted:
        assert found.evaluate({"a": 10 + distance, "b": 10}.__getitem__)
    for distance in refused:
        assert not found.evaluate({"a": 10 + distance, "b": 10}.__getitem__)


@pytest.mark.parametrize(
    ("text", "name", "op", "bound"),
    [
        ("a < b", "a", "<", "b"),
        ("a < b", "b", ">", "a"),
        ("offset + len(data) <= total", "offset", "<=", "total - len(data)"),
        ("offset + len(data) <= total", "len(data)", "<=", "total - offset"),
        ("offset + len(data) <= total", "total", ">=", "offset + len(data)"),
        ("a - b == 3", "b", "==", "a - 3"),
        ("4 <= a + 1", "a", ">=", "3"),
        ("-a < 2", "a", ">", "-2"),
        ("2 * a <= 8", "a", None, ""),
        ("a + a <= 8", "a", None, ""),
        ("a in b", "a", None, ""),
    ],
)
def test_a_comparison_is_solved_for_a_name(text, name, op, bound):
    found = solve(expr(text).sole_comparison(), name)
    if op is None:
        assert found is None
        return
    assert found.op == op
    assert found.python(lambda each: each) == bound


def test_unknown_terms_may_be_left_out_only_where_that_weakens_the_bound():
    bound = solve(expr("offset + len(data) <= total").sole_comparison(), "total")
    assert bound.relaxed({"offset"})
    assert bound.python(lambda each: each, without={"offset"}) == "len(data)"
    assert not solve(expr("offset + len(data) <= total").sole_comparison(), "offset").relaxed({"total"})
