"""The strict YAML reader and the schema: what is refused, and with which place and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import yaml

from codegen.bind import bind, plain
from codegen.expr import Expr
from codegen.faults import SpecFault, Where
from codegen.load import parse, read


@pytest.fixture(autouse=True, params=["CSafeLoader", "SafeLoader"])
def parser(request, monkeypatch):
    """Both parsers of PyYAML: the one in C may be missing."""
    monkeypatch.setattr("codegen.load._LOADER", getattr(yaml, request.param, yaml.SafeLoader))


def value(text: str) -> object:
    return plain(parse(f"key: {text}", "x.yaml"))["key"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", 4),
        ("-4", -4),
        ("1_000", 1000),
        ("0xD170C0DE", 0xD170C0DE),
        ("0", 0),
        ("0.5", 0.5),
        ("1e-12", 1e-12),
        ("-1.5e3", -1500.0),
        ("true", True),
        ("false", False),
        ("text", "text"),
        ("a <= b // 2", "a <= b // 2"),
        ('"010"', "010"),
        ("'no'", "no"),
        ('"4"', "4"),
        ("[1, two]", [1, "two"]),
        ("{a: 1}", {"a": 1}),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_values_are_read_as_they_are_written(text, expected):
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "text",
    """
    010 0o10 0b1 +4 1:30 1. .5 +.5 1_0.5 .inf -.INF .nan ~ null Null no No yes YES on Off y N True FALSE
    2026-01-02 2026-1-2T10:00 0X1f 1__0
    """.split(),  # noqa: SIM905  # one to a line would hide the others
)
def test_what_yaml_readers_disagree_about_is_refused(text):
    with pytest.raises(SpecFault, match=r"^x.yaml:1: .*quote it"):
        value(text)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "repeats the key of line 1"),
        ("a:\n  b: 1\n  b: 2\n", 3, "repeats the key of line 2"),
        ("a: {b: 1, b: 2}\n", 1, "repeats"),
        ("a: [1\n", 2, "is not YAML"),
        ("a: 1\n b: 2\n", 2, "is not YAML"),
        ("a: \x01\n", 1, "is not YAML"),
        ("a:\n\tb: 1\n", 2, "is not YAML"),
        ("- 1\n- 2\n", 1, "must be a mapping"),
        ("", 1, "is empty"),
        ("a: 1\n---\nb: 2\n", 3, "second document"),
        ("1: a\n", 1, "a key must be text"),
        ("[a]: 1\n", 1, "a key must be text"),
        ("a: !!str 4\n", 1, "tag"),
        ("a: !!python/object:os.system x\n", 1, "tag"),
        ("a: !!set {x: 1}\n", 1, "tag"),
        ('a: !!int "4"\n', 1, "tag"),
        ("a: &x [*x]\n", 1, "alias"),
        ("a:\n", 1, "has no value"),
        ("<<: {a: 1}\n", 1, "disagree"),
        ("a: 1\nb: " + "1" * 5000 + "\n", 2, "more than 1000 digits"),
    ],
)
def test_faults_name_file_and_line(text, line, what):
    with pytest.raises(SpecFault) as fault:
        parse(text, "x.yaml")
    assert fault.value.where == Where("x.yaml", line)
    assert what in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path):
    with pytest.raises(SpecFault, match=r"spec/none.yaml:0: cannot be read"):
        read(tmp_path / "none.yaml", "spec/none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe4\n")
    with pytest.raises(SpecFault, match=r"spec/latin.yaml:2: is not UTF-8"):
        read(tmp_path / "latin.yaml", "spec/latin.yaml")


@dataclass(frozen=True)
class Part:
    name: str
    where: Where
    size: int = 0


@dataclass(frozen=True)
class Sample:
    kind: Literal["a", "b"]
    where: Where
    lines: Mapping[str, Where]
    parts: tuple[Part, ...] = ()
    must: Expr | None = None
    else_: str | None = None
    carried_by: str = ""
    share: float | None = None
    active: bool = False
    free: Any = None
    either: str | tuple[str, ...] = ""
    named: Mapping[str, int] | None = None


def sample(text: str) -> Sample:
    return bind(Sample, parse(text, "s.yaml"))


def test_a_mapping_fills_a_class_and_keeps_its_lines():
    found = sample(
        "kind: a\nelse: X\ncarried-by: z\nmust: p < 4\nparts:\n  - {name: q, size: 2}\n"
        "share: 1\nactive: true\n"
    )
    assert (found.kind, found.else_, found.carried_by, found.share, found.active) == (
        "a",
        "X",
        "z",
        1.0,
        True,
    )
    assert found.must.names() == ("p",)
    assert found.parts == (Part("q", Where("s.yaml", 6), 2),)
    assert found.lines["must"] == Where("s.yaml", 4)


def test_unions_and_free_values():
    assert sample("kind: b\neither: x").either == "x"
    assert sample("kind: b\neither: [x, z]").either == ("x", "z")
    assert sample("kind: b\nnamed: {x: 1}").named == {"x": 1}
    assert sample("kind: b\nfree: [1, {x: z}]").free == [1, {"x": "z"}]
    assert sample("kind: b\nmust: 4").must.text == "4"


@pytest.mark.parametrize(
    ("text", "line", "key", "what"),
    [
        ("kind: a\nsiez: 1\n", 2, "siez", "is not a key here; known are"),
        ("kind: c\n", 1, "kind", "must be one of a, b"),
        ("kind: true\n", 1, "kind", "must be one of a, b"),
        ("active: true\n", 1, "kind", "is missing"),
        ("kind: a\nactive: 1\n", 2, "active", "must be true or false"),
        ("kind: a\nparts: 4\n", 2, "parts", "must be a list"),
        ("kind: a\nparts:\n  - 4\n", 3, "parts", "must be a mapping"),
        ("kind: a\nparts:\n  - {name: 4}\n", 3, "name", "must be text"),
        ("kind: a\nparts:\n  - {name: x, size: 1.5}\n", 3, "size", "must be an integer"),
        ("kind: a\nparts:\n  - {name: x, size: true}\n", 3, "size", "must be an integer"),
        ("kind: a\nmust: [1]\n", 2, "must", "must be an expression"),
        ("kind: a\nmust: a +\n", 2, "must", "is not an expression"),
        ("kind: a\nshare: x\n", 2, "share", "must be a number"),
        ("kind: a\nnamed: 1\n", 2, "named", "must be a mapping"),
        ("kind: a\nnamed: {x: z}\n", 2, "named.x", "must be an integer"),
        ("kind: a\neither: {x: z}\n", 2, "either", "must be text or a list"),
        ("kind: a\nwhere: x\n", 2, "where", "is not a key here"),
    ],
)
def test_the_schema_refuses_with_line_and_key(text, line, key, what):
    with pytest.raises(SpecFault) as fault:
        sample(text)
    assert fault.value.where == Where("s.yaml", line)
    assert fault.value.key == key
    assert what in fault.value.what
