"""Properties of every frame, by the strategies that are generated from the specification."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yeto_proto import codec
from yeto_proto._generated import errors
from yeto_proto._generated.limits import RECEIVES, payload_limit
from yeto_proto._generated.rules import DECODE, RULES
from yeto_proto._generated.structs import FRAMES
from yeto_proto._generated.types import FrameType, Role
from yeto_proto.errors_base import YetoError
from yeto_proto.testing import BROKEN, VALID, payload_of, sessions

ALL = pytest.mark.parametrize("frame_type", FrameType, ids=lambda each: each.name)
# Rules that `decode` judges, by the frame that they belong to.
DECODED = [
    pytest.param(FrameType[rule.frame], rule.id, id=rule.id, marks=pytest.mark.rule(rule.id))
    for rule in RULES.values()
    if rule.when == "decode" and rule.by not in ("yeto_proto.reader", "yeto_proto.chunks")
]

# Most tests here run once for each frame or even for each rule: each gets a share of a deep run's examples.
FRAME_SHARE = settings(max_examples=max(25, settings.default.max_examples // 4))
RULE_SHARE = settings(max_examples=max(8, settings.default.max_examples // 8))


def receiver(frame_type: FrameType) -> Role:
    """A side that takes this frame."""
    return Role.SYNCER if frame_type in RECEIVES[Role.SYNCER] else Role.LEARNER


@ALL
@FRAME_SHARE
@given(st.data())
def test_a_message_survives_the_wire(frame_type, data):
    session = data.draw(sessions())
    message = data.draw(VALID[frame_type](session))
    payload = payload_of(message)
    assert codec.decode(frame_type, payload, session, receiver(frame_type)) == message
    assert codec.decode(frame_type, payload) == message


@ALL
@FRAME_SHARE
@given(st.data())
def test_bytes_survive_a_message(frame_type, data):
    session = data.draw(sessions())
    payload = payload_of(data.draw(VALID[frame_type](session)))
    again = codec.decode(frame_type, payload, session)
    assert payload_of(again) == payload
    assert b"".join(map(bytes, codec.encode(again))) == codec.header(frame_type, len(payload)) + payload


@ALL
@FRAME_SHARE
@given(st.data())
def test_a_valid_payload_is_within_its_limit(frame_type, data):
    session = data.draw(sessions())
    payload = payload_of(data.draw(VALID[frame_type](session)))
    first = frame_type in (FrameType.HELLO, FrameType.DATA_HELLO)
    limit = payload_limit(frame_type, receiver(frame_type), None if first else session)
    assert len(payload) <= limit
    if FRAMES[frame_type].bulk is None and not first:
        assert len(payload) == limit


@ALL
@FRAME_SHARE
@given(st.data())
def test_a_broken_payload_is_refused_by_the_rule_that_it_breaks(frame_type, data):
    session = data.draw(sessions())
    payload, allowed, rule = data.draw(BROKEN[frame_type](session))[1:]
    with pytest.raises(errors.WireError) as refused:
        codec.decode(frame_type, payload, session, receiver(frame_type))
    assert isinstance(refused.value, allowed)
    assert refused.value.rule == rule
    assert refused.value.frame == frame_type.name
    assert refused.value.offset is not None
    assert 0 <= refused.value.offset <= len(payload)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("frame_type", "rule"), DECODED)
@RULE_SHARE
@given(st.data())
def test_every_rule_has_a_payload_that_breaks_it(frame_type, rule, data):
    session = data.draw(sessions())
    broken = data.draw(BROKEN[frame_type](session, rule))
    with pytest.raises(RULES[rule].error) as refused:
        codec.decode(frame_type, broken.payload, session, receiver(frame_type))
    assert refused.value.rule == rule


@pytest.mark.parametrize(
    ("frame_type", "rule"),
    [
        pytest.param(FrameType[rule.frame], rule.id, id=rule.id)
        for rule in RULES.values()
        if rule.when == "decode" and rule.check is not None
    ],
)
@RULE_SHARE
@given(st.data())
def test_a_rule_that_is_switched_off_refuses_nothing(frame_type, rule, data):
    """Shows that each generated check is what refuses its case, and not another check by chance."""
    session = data.draw(sessions())
    broken = data.draw(BROKEN[frame_type](session, rule))
    name = frame_type.name
    kept = DECODE[name]
    try:
        DECODE[name] = tuple(each for each in kept if each.id != rule)
        try:
            codec.decode(frame_type, broken.payload, session, receiver(frame_type))
        except YetoError as other:
            assert other.rule != rule
        except (ValueError, LookupError):
            # The check stood in front of code that relies on it.
            pass
    finally:
        DECODE[name] = kept


@ALL
@FRAME_SHARE
@given(st.data())
def test_only_library_errors_escape_for_any_bytes(frame_type, data):
    session = data.draw(st.none() | sessions())
    payload = data.draw(st.binary(max_size=300))
    role = data.draw(st.none() | st.sampled_from(Role))
    try:
        codec.decode(frame_type, payload, session, role)
    except YetoError as refused:
        assert isinstance(refused, errors.WireError)
        assert refused.rule in RULES


@ALL
@FRAME_SHARE
@given(st.data())
def test_only_library_errors_escape_for_a_mutated_payload(frame_type, data):
    session = data.draw(sessions())
    payload = bytearray(payload_of(data.draw(VALID[frame_type](session))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload)))
        if data.draw(st.booleans()):
            payload[at : at + 1] = data.draw(st.binary(max_size=3))
        else:
            del payload[at:]
    try:
        codec.decode(frame_type, payload, data.draw(st.sampled_from((None, session))))
    except YetoError as refused:
        assert isinstance(refused, errors.WireError)
        assert refused.rule in RULES


@given(st.integers(-1, 300), st.binary(max_size=20))
def test_only_library_errors_escape_for_any_type(frame_type, payload):
    try:
        codec.decode(frame_type, payload)
    except errors.WireError as refused:
        assert refused.rule in RULES
