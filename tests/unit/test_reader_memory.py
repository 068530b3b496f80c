"""A reader that asks before it takes memory for the first frame of a stranger."""

from __future__ import annotations

import pytest

from tests.unit.wire_samples import hello, push, session, wire
from yeto_proto._generated.constants import HEADER_BYTES
from yeto_proto._generated.errors import WrongState
from yeto_proto._generated.messages import Hello, PushFragment
from yeto_proto._generated.types import Role
from yeto_proto.reader import FrameReader

LONG = wire([hello(session(*range(1, 3000)))])


@pytest.mark.rule("syncer.hello.bounded")
@pytest.mark.parametrize("held", [HEADER_BYTES, HEADER_BYTES + 1, 5000])
def test_a_large_first_frame_waits_for_memory_and_loses_nothing(held: int) -> None:
    asked: list[int] = []
    reader = FrameReader(Role.SYNCER, grant=lambda size: bool(asked.append(size)))
    assert reader.feed(LONG[:held]) == []
    assert asked == [len(LONG) - HEADER_BYTES]
    assert reader.waiting
    with pytest.raises(WrongState, match="memory"):
        reader.get_buffer()
    assert reader.proceed() == []
    assert not reader.waiting
    [message] = reader.feed(LONG[held:])
    assert isinstance(message, Hello)
    assert wire([message]) == LONG
    assert len(asked) == 1
    with pytest.raises(WrongState):
        reader.proceed()


def test_a_first_frame_that_may_have_memory_does_not_stop() -> None:
    [message] = FrameReader(Role.SYNCER, grant=lambda size: True).feed(LONG)
    assert isinstance(message, Hello)


def test_nobody_is_asked_for_small_or_later_frames() -> None:
    def grant(size: int) -> bool:
        raise AssertionError(size)

    of = session(1 << 20)
    reader = FrameReader(Role.SYNCER, grant=grant)
    reader.feed(wire([hello(of)]))
    reader.open(of)
    [message] = reader.feed(wire([push(of)]))
    assert isinstance(message, PushFragment)
