"""A run over all frames for a fixed time: two seconds among the other tests, a minute in the deep profile."""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from yeto_proto import codec
from yeto_proto._generated import errors
from yeto_proto._generated.limits import RECEIVES
from yeto_proto._generated.rules import RULES
from yeto_proto._generated.types import FrameType, Role
from yeto_proto.testing import BROKEN, VALID, payload_of, sessions

SECONDS = 60 if os.environ.get("YETO_HYPOTHESIS_PROFILE") == "deep" else 2
BATCH = settings(
    max_examples=60,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def damaged(payload: bytes, chance: random.Random) -> bytes:
    """The payload with a few bytes changed, removed, doubled or cut off."""
    data = bytearray(payload)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(data))
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = bytes([chance.choice((0, 1, 127, 128, 255))])
            case 1:
                del data[at : at + chance.randint(1, 9)]
            case 2:
                data[at:at] = data[at : at + chance.randint(1, 9)]
            case _:
                del data[at:]
    return bytes(data)


@BATCH
@given(st.data(), st.randoms(use_true_random=False))
def batch(data, chance):
    frame_type = data.draw(st.sampled_from(FrameType))
    session = data.draw(sessions())
    role = Role.SYNCER if frame_type in RECEIVES[Role.SYNCER] else Role.LEARNER
    message = data.draw(VALID[frame_type](session))
    payload = payload_of(message)
    assert codec.decode(frame_type, payload, session, role) == message
    broken = data.draw(BROKEN[frame_type](session, None))
    with pytest.raises(broken.allowed) as refused:
        codec.decode(frame_type, broken.payload, session, role)
    assert refused.value.rule == broken.rule
    for _ in range(20):
        try:
            other = codec.decode(frame_type, damaged(payload, chance), session, role)
        except errors.WireError as error:
            assert error.rule in RULES
        else:
            assert codec.decode(frame_type, payload_of(other), session, role) == other


@pytest.mark.timeout(SECONDS + 900)
def test_a_run_of_fixed_length_finds_nothing():
    end = time.monotonic() + SECONDS
    batches = 0
    while time.monotonic() < end:
        batch()
        batches += 1
    assert batches >= 1
