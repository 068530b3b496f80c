"""The range set behind the overlap check, and the block digest."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire_samples import bcast, bulk, push, received, session, wire
from yeto_proto._generated.constants import DIGEST_BLOCK, TINY
from yeto_proto._generated.errors import BadArgument, BadFragment
from yeto_proto._generated.messages import BcastFragment, Message
from yeto_proto._generated.types import Role
from yeto_proto.blocks import BlockCount, block_digest, combine
from yeto_proto.chunks import Reassembler
from yeto_proto.ranges import RangeSet


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=40))
def test_a_range_set_knows_what_a_set_of_numbers_knows(ranges: list[tuple[int, int]]) -> None:
    held: set[int] = set()
    tried = RangeSet()
    for start, length in ranges:
        wanted = set(range(start, start + length))
        overlap = tried.overlap(start, start + length)
        if held & wanted:
            assert overlap is not None
            begin, end = overlap
            assert begin == min(held & wanted)
            assert set(range(begin, end)) <= held & wanted
            continue
        assert overlap is None
        before, growth = len(tried), tried.growth(start, start + length)
        tried.add(start, start + length)
        held |= wanted
        assert len(tried) == before + growth
        assert {number for begin, end in tried for number in range(begin, end)} == held
        # Ascending and apart.
        edges = [edge for pair in tried for edge in pair]
        assert edges == sorted(set(edges))


def test_many_scattered_ranges_stay_fast() -> None:
    ranges = RangeSet()
    for number in range(1 << 16):
        start = (number * 40503) % (1 << 16) * 2
        assert ranges.overlap(start, start + 1) is None
        assert ranges.growth(start, start + 1) == 1
        ranges.add(start, start + 1)
    assert len(ranges) == 1 << 16
    for number in range((1 << 16) - 1):
        ranges.add(2 * number + 1, 2 * number + 2)
    assert list(ranges) == [(0, (1 << 17) - 1)]


# Blocks.


@given(st.integers(0, 30), st.integers(1, 100), st.integers(1, 40), st.data())
def test_each_block_is_told_once_and_when_it_is_complete(
    start: int, length: int, size: int, data: st.DataObject
) -> None:
    count = BlockCount(start, length, size)
    total = start + length
    edges = sorted({0, total, *data.draw(st.lists(st.integers(0, total), max_size=20))})
    pieces = data.draw(st.permutations(list(pairwise(edges))))
    arrived: set[int] = set()
    told: list[int] = []
    for begin, end in pieces:
        arrived |= set(range(begin, end))
        told += count.add(begin, end - begin)
        complete = {index for index in range(count.blocks) if set(range(total)[count.span(index)]) <= arrived}
        assert set(told) == complete
    assert sorted(told) == list(range(-(-length // size)))
    covered = [place for index in range(count.blocks) for place in range(total)[count.span(index)]]
    assert covered == list(range(start, total))


def test_the_digest_is_a_hash_of_block_hashes() -> None:
    data = bulk(100)
    hashes = [sha256(data[at : at + 30]).digest() for at in (0, 30, 60, 90)]
    assert block_digest(data, 30) == combine(hashes) == sha256(b"".join(hashes)).digest()
    assert block_digest(data) == sha256(sha256(data).digest()).digest()
    assert block_digest(memoryview(bytearray(data)).cast("I"), 30) == block_digest(data, 30)
    assert DIGEST_BLOCK == 32 * 1024 * 1024


class Hook:
    """Hashes at once, and keeps what it was told in order."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.hashes: dict[int, dict[int, bytes]] = {}

    def block(self, key: int, index: int, data: memoryview) -> None:
        self.told.append(("block", key, index))
        self.hashes.setdefault(key, {})[index] = sha256(data).digest()

    def message(self, key: int, message: Message, blocks: int) -> None:
        self.told.append(("message", key, message))
        assert sorted(self.hashes[key]) == list(range(blocks))

    def dropped(self, key: int) -> None:
        self.told.append(("dropped", key))

    def digest(self, key: int) -> bytes:
        return combine(self.hashes[key][index] for index in sorted(self.hashes[key]))


def pieces(content: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    for at in range(0, len(content), size):
        yield at, content[at : at + size]


def put(into: Reassembler, msg_id: int, total: int, offset: int, data: bytes) -> Message | None:
    into.begin(msg_id, total, offset, len(data))[:] = data
    return into.commit(msg_id, offset, len(data))


@given(st.randoms(use_true_random=False), st.integers(7, 300))
def test_blocks_are_reported_while_chunks_arrive(rng: object, size: int) -> None:
    of = session(200, 50)
    hook = Hook()
    into = Reassembler(Role.LEARNER, of, hook=hook, block=128)
    message = bcast(of)
    content = wire([message])
    parts = list(pieces(content, size))
    rng.shuffle(parts)  # type: ignore[attr-defined]
    results = [put(into, 4, len(content), offset, data) for offset, data in parts]
    assert results[-1] == message
    assert hook.told[-1] == ("message", 0, message)
    assert sorted(hook.told[:-1]) == [("block", 0, index) for index in range(7)]
    assert hook.digest(0) == block_digest(message.tensor, 128)


def test_only_messages_of_two_or_more_blocks_are_reported() -> None:
    of = session(32, 33)
    hook = Hook()
    into = Reassembler(Role.LEARNER, of, hook=hook, block=128)
    one, two = wire([bcast(of, 0)]), wire([bcast(of, 1)])
    put(into, 0, len(one), 0, one)
    assert hook.told == []
    put(into, 0, len(two), 0, two)
    assert [each[0] for each in hook.told] == ["block", "block", "message"]


def test_keys_tell_messages_apart_that_share_an_id() -> None:
    of = session(200)
    hook = Hook()
    into = Reassembler(Role.LEARNER, of, hook=hook, block=128)
    for version in (1, 2):
        content = wire([bcast(of, 0, version)])
        put(into, 0, len(content), 0, content)
    assert len(hook.hashes) == 2
    messages = [each for each in hook.told if each[0] == "message"]
    for _, key, message in messages:
        assert isinstance(message, BcastFragment) and isinstance(key, int)
        assert hook.digest(key) == block_digest(message.tensor, 128)


def test_a_message_that_will_never_be_complete_is_dropped() -> None:
    of = session(200, 50)
    hook = Hook()
    into = Reassembler(Role.LEARNER, of, TINY, hook=hook, block=128)
    content = wire([bcast(of)])
    put(into, 0, len(content), 0, content[:700])
    put(into, 1, len(wire([bcast(of, 1)])), 0, wire([bcast(of, 1)])[:100])
    small = wire([received(Role.LEARNER, of)[0]])
    put(into, 2, len(small), 0, small[:20])
    into.clear()
    assert [each for each in hook.told if each[0] == "dropped"] == [("dropped", 0), ("dropped", 1)]
    bad = bytearray(content)
    bad[13] = 9  # a fragment that the session does not have
    with pytest.raises(BadFragment):
        put(into, 0, len(bad), 0, bytes(bad))
    assert hook.told[-1] == ("dropped", 3)


def test_a_syncer_has_no_hook() -> None:
    with pytest.raises(BadArgument):
        Reassembler(Role.SYNCER, session(), hook=Hook())
    assert put(
        Reassembler(Role.SYNCER, session()), 0, len(wire([push(session())])), 0, wire([push(session())])
    )
