"""The corpus itself: every trace is whole, its fields are its bytes, and its rules exist and are spread."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conform.runs import TRACES
from yeto_proto import codec
from yeto_proto._generated.constants import HEADER_BYTES
from yeto_proto._generated.errors import YetoError
from yeto_proto._generated.rules import RULES
from yeto_proto.conform import fields, trace
from yeto_proto.conform.pages import rule_texts

FRAMES = [(each, step) for each in TRACES for step in each.steps if "wire" in step and "frame" in step]


def test_there_are_enough_cases_of_every_role():
    roles = Counter(each.role for each in TRACES)
    assert len(TRACES) >= 300
    assert min(roles["codec"], roles["server"], roles["client"]) >= 70


def test_ids_are_unique():
    assert max(Counter(each.id for each in TRACES).values()) == 1


def test_every_rule_that_is_named_exists():
    known = set(rule_texts())
    assert set(RULES) <= known
    assert {rule for each in TRACES for rule in each.rules} <= known


def test_no_rule_owns_more_than_a_twentieth():
    owners = Counter(each.rules[0] for each in TRACES)
    rule, count = owners.most_common(1)[0]
    assert count <= len(TRACES) / 20, rule


def test_the_fields_of_every_frame_are_its_bytes():
    assert len(FRAMES) > 300
    for each, step in FRAMES:
        data = each.wire(step["wire"])
        message = fields.message(step["frame"], step["fields"], each.wire)
        payload = b"".join(bytes(part) for part in codec.encode(message))[HEADER_BYTES:]
        assert data[HEADER_BYTES : HEADER_BYTES + len(payload)] == payload, each.id
        # Only the MAC of a HELLO may stand behind what the fields say.
        assert len(data) in (HEADER_BYTES + len(payload), HEADER_BYTES + len(payload) + 32), each.id


def test_every_accepted_frame_decodes_to_its_fields():
    decoded = 0
    for each, step in FRAMES:
        data = each.wire(step["wire"])
        session = fields.session(each.head["session"])
        if "hello.hello_mac.mac" in each.rules:
            continue  # a receiver with a key takes the MAC off first
        try:
            message = codec.decode(data[4], data[HEADER_BYTES:], session)
        except YetoError as error:
            # What breaks a rule of the codec must be what the case is about.
            assert error.rule in each.rules or each.head["expect"] == "refuse", (each.id, error)
            continue
        decoded += 1
        if step["frame"] != "HELLO":
            assert fields.shown(message, trace.refer_inline) == _inline(step["fields"]), each.id
    assert decoded > 300


def _inline(given):
    return {
        key: trace.refer_inline(trace.resolve(value)) if _is_reference(value) else value
        for key, value in given.items()
    }


def _is_reference(value):
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(each, dict) for each in value)
    )


def test_head_and_file_agree():
    for each in TRACES:
        assert each.path is not None
        assert each.path.stem == each.id
        assert each.path.parent.name == each.area
        assert each.head["preset"] == "wire"
        assert each.head["side"] == {"server": "syncer", "client": "learner"}.get(each.role, each.role)
        assert len(each.head["spec"]) == 64 and "session" in each.head


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not the head"),
        ("{}", "not the head"),
        ("[]\n", "must be an object"),
        ("{", "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
        ("9" * 5000, "not JSON"),
        ('{"format": 2}', "not the head"),
        ('{"format": 1, "id": "a", "area": "b", "role": "codec"}', "lacks 'rules'"),
        ('{"format": 1, "id": "a", "area": "b", "role": "codec", "rules": []}\n{}', "lacks 'do'"),
        ('{"format": 1, "id": "a", "area": "b", "role": "codec", "rules": []}\n{"do": []}', "lacks 'do'"),
        ('{"format": 1, "id": "a", "area": "b", "role": [], "rules": []}', "role must be text"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_its_place(tmp_path, text, says):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(trace.BadTraceError, match=says) as refused:
        trace.load(path)
    assert str(path) in str(refused.value)


def test_references():
    assert trace.resolve("00 ff") == b"\0\xff"
    assert trace.resolve(["00", {"gen": "fill", "hex": "0102", "len": 5}]) == b"\0\1\2\1\2\1"
    assert trace.resolve({"gen": "ramp", "seed": 128, "scale": 1.0, "len": 8}).hex() == "000000000000603d"
    assert len(trace.resolve({"gen": "ramp", "seed": 1, "scale": 1.0, "dtype": "BF16", "len": 8})) == 8


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("zz", "not hexadecimal"),
        (7, "no reference"),
        ({"gen": "fill", "hex": "", "len": 5}, "recipe"),
        ({"gen": "rand", "len": 5}, "no recipe"),
        ({"gen": "fill", "hex": "00", "len": 5, "sha256": "00"}, "another SHA-256"),
        ({"gen": "hash", "len": 5, "sha256": "00"}, "only be shown"),
        ({"blob": "00", "len": 5}, "cannot be read"),
    ],
)
def test_references_that_give_no_bytes(reference, says):
    with pytest.raises(trace.BadTraceError, match=says):
        trace.resolve(reference)


def test_long_bytes_become_a_pattern_or_a_blob(tmp_path):
    assert trace.refer(b"\0" * 256, None) == "00" * 256
    pattern = trace.refer(b"\1\2" * 500, None)
    assert pattern["gen"] == "fill"
    assert trace.resolve(pattern) == b"\1\2" * 500
    mixed = bytes(range(256)) * 3
    blob = trace.refer(mixed, tmp_path)
    assert trace.resolve(blob, tmp_path) == mixed
