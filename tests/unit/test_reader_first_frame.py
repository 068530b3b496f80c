"""The first frame of a socket: what a syncer takes for one, its cap, and HELLOs with a MAC."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.wire_samples import (
    bulk,
    first,
    hello,
    joined,
    push,
    refuse,
    session,
    wire,
)
from yeto_proto import hello_mac
from yeto_proto._generated.constants import DATA_HELLO_MAX, HEADER_BYTES, HELLO_MAX, TINY, Preset
from yeto_proto._generated.errors import (
    AuthenticationFailed,
    BadFragmentCount,
    BadGeneration,
    BadMagic,
    FrameTooLarge,
    InvalidFirstFrame,
    UnexpectedType,
    VersionMismatch,
    WrongState,
)
from yeto_proto._generated.messages import DataHello, Heartbeat, InitParams, Message
from yeto_proto._generated.types import FrameType, Role
from yeto_proto.chunks import Reassembler, slices
from yeto_proto.codec import header
from yeto_proto.reader import FrameReader, decode_hello
from yeto_proto.session import WireLayout

S = session(200, 50)
FIRST = (FrameType.HELLO, FrameType.DATA_HELLO)


def chunked(message: Message, msg_id: int = 0, preset: Preset = TINY) -> list[bytes]:
    return [joined(each) for each in slices(message, msg_id, preset)]


@pytest.mark.parametrize("message", first(S), ids=lambda message: message.frame_type.name)
def test_a_syncer_reads_one_frame_and_waits(message: Message) -> None:
    into = FrameReader(Role.SYNCER)
    assert not into.paused
    behind: list[Message] = [InitParams(0, bulk(800)), Heartbeat(0, 1)]
    assert into.feed(wire([message, *behind])) == [message]
    assert into.paused
    with pytest.raises(WrongState):
        into.get_buffer()
    with pytest.raises(WrongState):
        into.buffer_updated(0)
    assert into.feed(wire([Heartbeat(0, 2)])) == []
    into.eof()
    assert into.open(S) == [*behind, Heartbeat(0, 2)]
    assert not into.paused
    with pytest.raises(WrongState):
        into.open(S)
    assert into.feed(wire([Heartbeat(0, 3)])) == [Heartbeat(0, 3)]


def test_a_fault_behind_the_first_frame_waits_too() -> None:
    into = FrameReader(Role.SYNCER)
    assert into.feed(wire(first(S)[:1]) + wire(first(S)[:1])) == first(S)[:1]
    with pytest.raises(UnexpectedType):
        into.open(S)


def test_a_paused_reader_keeps_only_what_fits() -> None:
    into = FrameReader(Role.SYNCER)
    into.feed(wire(first(S)[:1]))
    with pytest.raises(WrongState):
        into.feed(bytes(1 << 20))


def test_a_reader_is_not_opened_before_its_first_frame() -> None:
    with pytest.raises(WrongState):
        FrameReader(Role.SYNCER).open(S)
    with pytest.raises(WrongState):
        FrameReader(Role.SYNCER, S).open(S)


def test_an_opened_reader_shares_the_reassembler_of_its_group() -> None:
    shared = Reassembler(Role.SYNCER, S, TINY)
    parts = chunked(push(S))
    control, data = FrameReader(Role.SYNCER, preset=TINY), FrameReader(Role.SYNCER, preset=TINY)
    control.feed(wire(first(S)[:1]))
    data.feed(wire(first(S)[1:]) + b"".join(parts[1:]))
    assert control.open(S, shared) == data.open(S, shared) == []
    assert control.feed(parts[0]) == [push(S)]


@pytest.mark.rule("header.type.first")
@pytest.mark.parametrize("kind", [0, *(kind for kind in FrameType if kind not in FIRST), 15, 255])
def test_anything_but_hello_and_data_hello(kind: int) -> None:
    error = refuse(InvalidFirstFrame, FrameReader(Role.SYNCER), header(kind, 0))
    assert error.rule == "header.type.first"
    assert str(error).startswith("invalid first frame: first frame must be HELLO/DATA_HELLO")
    assert f"got {kind}" in str(error)


@pytest.mark.rule("header.magic.must")
def test_bad_magic_at_the_start() -> None:
    error = refuse(BadMagic, FrameReader(Role.SYNCER), b"GET / HTTP/1.1\r\n")
    assert str(error).startswith("invalid first frame: bad magic")


@pytest.mark.rule("header.len.limit")
@pytest.mark.parametrize(
    ("kind", "limit"), [(FrameType.HELLO, HELLO_MAX), (FrameType.DATA_HELLO, DATA_HELLO_MAX)]
)
def test_the_cap_of_the_first_frame(kind: FrameType, limit: int) -> None:
    for length in (limit - 1, limit):
        assert FrameReader(Role.SYNCER).feed(header(kind, length)) == []
    error = refuse(FrameTooLarge, FrameReader(Role.SYNCER), header(kind, limit + 1))
    assert str(error).startswith("invalid first frame: frame exceeds limit")
    assert (error.limit, error.seen) == (limit, limit + 1)


@pytest.mark.rule("hello.protocol_version.must")
def test_the_version_is_judged_first() -> None:
    content = bytearray(wire([hello(S)]))
    content[HEADER_BYTES] = 3
    content[HEADER_BYTES + 14] = 9
    error = refuse(VersionMismatch, FrameReader(Role.SYNCER), bytes(content))
    assert str(error).startswith("invalid HELLO: protocol version mismatch")


@pytest.mark.rule("hello.num_fragments.fits")
def test_a_hello_is_judged_where_it_is_read() -> None:
    content = bytearray(wire([hello(S)]))
    content[HEADER_BYTES + 15 : HEADER_BYTES + 19] = b"\xff" * 4
    error = refuse(BadFragmentCount, FrameReader(Role.SYNCER), bytes(content))
    assert str(error).startswith("invalid HELLO: ")


@pytest.mark.rule("data_hello.connection_generation.must")
def test_a_data_hello_is_judged_where_it_is_read() -> None:
    error = refuse(BadGeneration, FrameReader(Role.SYNCER), wire([DataHello(0, 0, 1)]))
    assert str(error).startswith("invalid DATA_HELLO: ")


def test_a_first_frame_of_the_largest_size() -> None:
    largest = WireLayout.build([(0, np.ones(2_000_000, np.uint64), None)])  # type: ignore[list-item]
    of = replace(S, layout=largest)
    message = hello(of)
    content = wire([message])
    assert HELLO_MAX - 1_000_000 < len(content) < HELLO_MAX
    assert FrameReader(Role.SYNCER).feed(content) == [message]


def test_a_known_layout_is_not_parsed_again() -> None:
    message = hello(S)
    (again,) = FrameReader(Role.SYNCER, known=S).feed(wire([message]))
    assert again == message
    assert again.layout is S.layout  # type: ignore[union-attr]
    (other,) = FrameReader(Role.SYNCER, known=S).feed(wire([hello(session(1))]))
    assert S.difference(other) is not None  # type: ignore[arg-type]


def sealed(key: bytes) -> bytes:
    payload = hello_mac.seal(wire([hello(S)])[HEADER_BYTES:], key)
    return header(FrameType.HELLO, len(payload)) + payload


@pytest.mark.rule("hello.hello_mac.mac")
def test_a_sealed_hello() -> None:
    assert FrameReader(Role.SYNCER, key=b"key").feed(sealed(b"key")) == [hello(S)]
    error = None
    for content in (sealed(b"other"), wire([hello(S)])):
        with pytest.raises(AuthenticationFailed) as caught:
            FrameReader(Role.SYNCER, key=b"key").feed(content)
        error = caught.value
        assert str(error).startswith("HELLO authentication failed")


def test_a_data_hello_carries_no_mac() -> None:
    assert FrameReader(Role.SYNCER, key=b"key").feed(wire(first(S)[1:])) == first(S)[1:]


@pytest.mark.parametrize("key", [None, b"key"])
def test_a_hello_may_be_decoded_elsewhere(key: bytes | None) -> None:
    into = FrameReader(Role.SYNCER, key=key, defer_hello=True)
    assert into.hello_payload is None
    assert into.feed(sealed(key) if key else wire([hello(S)])) == []
    assert into.paused
    assert into.hello_payload is not None
    assert decode_hello(into.hello_payload, known=S, key=key) == hello(S)
    assert into.open(S) == []
    assert into.hello_payload is None
    direct = FrameReader(Role.SYNCER, defer_hello=True)
    assert direct.feed(wire(first(S)[1:])) == first(S)[1:]
