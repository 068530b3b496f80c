"""Batches over all frames: two among the other tests, sixty in the deep profile, a minute of `make fuzz`."""

from __future__ import annotations

import itertools
import os
import random
import time

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from yeto_proto import codec
from yeto_proto._generated import errors
from yeto_proto._generated.limits import RECEIVES
from yeto_proto._generated.rules import RULES
from yeto_proto._generated.types import FrameType, Role
from yeto_proto.testing import BROKEN, VALID, payload_of, sessions

PROFILE = os.environ.get("YETO_HYPOTHESIS_PROFILE", "default")
BATCHES = {"default": 2, "deep": 60}
FUZZ_S = 60
BATCH = settings(
    max_examples=60,
    database=None,
    derandomize=False,  # each batch has a seed of its own
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


@pytest.mark.timeout(FUZZ_S + 900)
def test_many_batches_find_nothing():
    first = random.SystemRandom().randrange(2**32) if PROFILE == "fuzz" else 0
    end = time.monotonic() + FUZZ_S
    for number in itertools.count(first):
        if time.monotonic() >= end if PROFILE == "fuzz" else number == BATCHES[PROFILE]:
            break
        print(f"seed {number}")  # pytest shows it under a failure
        seed(number)(batch)()
    assert number > first
