"""What the generator makes for other tools, as far as Python alone can tell."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from codegen.dialects import KAITAI, LUA, source
from codegen.expr import Expr
from codegen.faults import SpecFault, Where
from codegen.parts import load, wireshark
from tests.foreign.adapter import INTEROP

SPEC = load(Path(__file__).parents[2] / "spec")
DISSECTOR = (INTEROP / "yeto.lua").read_text()
# Rules over the bytes that no expression holds, or that only the end of a connection shows.
NOT_JUDGED = {
    *("header.len.complete", "hello.numels.total", "hello.numels.complete", "error.text.utf8"),
}


def expr(text: str) -> Expr:
    return Expr.parse(text, Where("spec/x.yaml", 1), "must")


@pytest.mark.parametrize(
    ("text", "kaitai", "lua"),
    [
        ("a >= 1", "a >= 1", "a >= 1"),
        ("a != 0 and not b == 2", "a != 0 and not (b == 2)", "a ~= 0 and not (b == 2)"),
        ("(a + b) * 2 == c", "(a + b) * 2 == c", "(a + b) * 2 == c"),
        ("a - (b - c) > 1", "a - (b - c) > 1", "a - (b - c) > 1"),
        ("a <= left // 8", "a <= left / 8", "a <= math.floor(left / 8)"),
        ("a == 1 or b == 2 and c < 3", "a == 1 or (b == 2 and c < 3)", "a == 1 or (b == 2 and c < 3)"),
        ("len(data) <= x.y", "data.length <= x.y", "len(data) <= x.y"),
    ],
)
def test_expressions_in_other_languages(text: str, kaitai: str, lua: str) -> None:
    assert source(expr(text), KAITAI, lambda name: name) == kaitai
    assert source(expr(text), LUA, lambda name: name) == lua


@pytest.mark.parametrize("text", ["a in b", "a not in b.c", "a is none", "a == none"])
def test_what_no_tool_can_say_is_refused(text: str) -> None:
    with pytest.raises(SpecFault):
        source(expr(text), LUA, lambda name: name)


def test_the_dissector_judges_every_rule_that_bytes_show() -> None:
    judged = {rule.id for rule in wireshark.View(SPEC).rules()}
    shown = {rule.id for rule in SPEC.rules() if rule.when == "decode"}
    assert shown - judged == NOT_JUDGED
    assert {each for each in judged if f'["{each}"] = "' not in DISSECTOR} == set()


def test_the_dissector_has_every_field() -> None:
    for frame in SPEC.frames:
        for each in frame.fields:
            assert each.size is None or f'["{frame.slug}.{each.name}"] = ProtoField.' in DISSECTOR
            assert f'name = "{each.name}"' in DISSECTOR


@pytest.mark.parametrize("name", ["yeto_frames", "yeto_snapshot", "yeto_final_state"])
def test_kaitai_files_are_plain_yaml(name: str) -> None:
    found = yaml.safe_load((INTEROP / f"{name}.ksy").read_text())
    assert found["meta"]["id"] == name
    assert found["meta"]["endian"] == "le"
    types = set(found["types"])
    used = {
        each["type"]
        for entry in found["types"].values()
        for each in entry["seq"]
        if "type" in each
        if isinstance(each["type"], str)
    }
    assert used <= types | {"u1", "u2", "u4", "u8", "f4", "str"}


def test_kaitai_has_every_frame() -> None:
    found = yaml.safe_load((INTEROP / "yeto_frames.ksy").read_text())
    cases = next(each for each in found["types"]["frame"]["seq"] if each["id"] == "payload")["type"]["cases"]
    assert cases == {f"frame_type::{frame.slug}": frame.slug for frame in SPEC.frames}
    for frame in SPEC.frames:
        named = [each["id"] for each in found["types"][frame.slug]["seq"]]
        expected = [each.name for each in frame.fields]
        assert named == [*expected, frame.text.bulk.name if frame.text.bulk else "end"]
