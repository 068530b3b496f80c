"""Every authored case of `spec/cases/codec`, by the codec or, for whole streams, by the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen import codec_cases
from codegen.spec import load_spec
from yeto_proto import codec
from yeto_proto._generated.rules import RULES
from yeto_proto._generated.types import Dtype, FrameType, MergeMode, Role
from yeto_proto.errors_base import YetoError
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session, WireLayout
from yeto_proto.testing import payload_of

SPEC = Path(__file__).parents[2] / "spec"
FILES = codec_cases.load(SPEC, load_spec(SPEC))
CASES = [
    pytest.param(file, case, id=case.id, marks=[pytest.mark.rule(rule) for rule in case.rules])
    for file in FILES
    for case in file.cases
]


def session_of(text: codec_cases.SessionText) -> Session:
    fragments = [
        (MergeMode[each.merge_mode], each.numels, [(rows, cols) for rows, cols in each.shapes or ()])
        for each in text.fragments
    ]
    return Session(Dtype[text.dtype], WireLayout.build(fragments), bytes(32), bytes(32), None)


def plain(value: object) -> object:
    """A decoded value as cases write it."""
    if isinstance(value, (bytes, memoryview)):
        return bytes(value)
    return list(value) if isinstance(value, tuple) else value


def run(file: codec_cases.CaseFile, case: codec_cases.CaseText) -> object:
    session = session_of(file.sessions[case.session]) if case.session else None
    role = Role(case.side) if case.side else None
    if not case.stream:
        return codec.decode(FrameType[file.frame], case.data, session, role)
    reader = FrameReader(role) if not case.admitted else FrameReader(role, session)
    (message,) = reader.feed(case.data) or [reader.eof()]
    return message


@pytest.mark.parametrize(("file", "case"), CASES)
def test_case(file, case):
    if case.expect == "refuse":
        (rule,) = case.rules
        with pytest.raises(YetoError) as refused:
            run(file, case)
        assert type(refused.value) is RULES[rule].error
        assert refused.value.rule == rule
        return
    message = run(file, case)
    assert message is not None
    for name, expected in case.fields.items():
        value = plain(getattr(message, name))
        assert value == (bytes.fromhex(expected) if isinstance(value, bytes) else expected)
    if not case.stream:
        assert payload_of(message) == case.data


def test_each_field_of_a_message_is_compared_somewhere():
    compared = {(file.frame, name) for file in FILES for case in file.cases for name in case.fields}
    assert ("PUSH_FRAGMENT", "delta") in compared
    assert ("FINAL_MANIFEST", "expected_versions") in compared
    assert ("HELLO", "num_fragments") in compared
