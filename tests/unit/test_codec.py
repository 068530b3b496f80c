"""The codec against the published frame vectors, and what it does beyond single rules."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from yeto_proto import codec, hello_mac
from yeto_proto._generated import errors, structs
from yeto_proto._generated.constants import CHUNK_SLICE, HEADER_BYTES, MAX_ALLOC
from yeto_proto._generated.limits import INNER, RECEIVES, chunk_total_limit, payload_limit
from yeto_proto._generated.messages import (
    BcastFragment,
    Chunk,
    DataHello,
    Error,
    FinalAck,
    FinalManifest,
    Hello,
    InitParams,
    PullReq,
    PushFragment,
    Shutdown,
)
from yeto_proto._generated.sizes import bulk_bytes, push_bytes
from yeto_proto._generated.types import Dtype, FrameType, MergeMode, Role
from yeto_proto.errors_base import YetoError
from yeto_proto.session import Session, WireLayout

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "frames.json").read_text())
FRAMES = {each["name"]: each for each in VECTORS["messages"]}
LAYOUT = WireLayout.build([(MergeMode.RDA, [4], None), (MergeMode.AVG, [300], None)])
SESSION = Session(Dtype.F32, LAYOUT, bytes(32), bytes(32), None)


def payload(name: str) -> bytes:
    return bytes.fromhex(FRAMES[name]["payload_hex"])


@pytest.mark.parametrize("name", FRAMES)
def test_a_vector_is_decoded_and_encoded_byte_for_byte(name):
    vector = FRAMES[name]
    message = codec.decode(vector["type"], payload(name))
    assert b"".join(map(bytes, codec.encode(message))).hex() == vector["frame_hex"]
    assert message.frame_type == vector["type"]
    for field, value in vector["fields"].items():
        if isinstance(value, int) and hasattr(message, field):
            assert getattr(message, field) == value
        elif isinstance(value, str) and value.startswith("0x"):
            assert getattr(message, field) == int(value, 16)


def test_vectors_hold_every_frame():
    assert {each["type"] for each in FRAMES.values()} == set(FrameType)


def test_fields_of_the_hello_vectors():
    plain, bound, iso = (codec.decode(1, payload(name)) for name in list(FRAMES)[:3])
    assert plain.layout_fingerprint == plain.session_contract_hash
    assert plain.syncer_profile_hash is None
    assert bound.syncer_profile_hash == bytes(range(32))
    assert bound.num_streams == 3
    assert iso.dtype is Dtype.Q4
    assert iso.layout.merge_modes.tolist() == [MergeMode.AVG, MergeMode.ISO]
    assert iso.layout.shapes(1).tolist() == [[2, 3], [4, 2]]


@pytest.mark.parametrize("vector", VECTORS["hello_mac"]["vectors"], ids=lambda each: each["hello"])
def test_a_sealed_hello_is_the_hello_and_its_mac(vector):
    key = VECTORS["hello_mac"]["key_ascii"].encode()
    sealed = hello_mac.seal(payload(vector["hello"]), key)
    assert sealed[-32:].hex() == vector["mac_hex"]
    assert len(sealed) == vector["sealed_payload_length"]
    assert codec.decode(1, hello_mac.open(sealed, key)) == codec.decode(1, payload(vector["hello"]))


@pytest.mark.parametrize("name", FRAMES)
def test_every_cut_of_a_vector_is_refused_or_a_shorter_message(name):
    whole = payload(name)
    frame = structs.FRAMES[FRAMES[name]["type"]]
    for length in range(len(whole)):
        try:
            codec.decode(frame.frame_type, whole[:length])
        except errors.WireError:
            continue
        without_profile = name == "HELLO_with_profile" and length == len(whole) - 32
        assert frame.bulk is not None or without_profile, f"{name} was taken when cut to {length} bytes"


def test_bulk_is_a_view_of_the_payload():
    data = bytearray(payload("PUSH_FRAGMENT"))
    message = codec.decode(4, memoryview(data))
    data[-1] ^= 0xFF
    assert bytes(message.delta) == bytes(data[48:])


def test_encoding_joins_and_copies_no_bulk():
    tensor = np.arange(4, dtype="<f4")
    head, bulk = codec.encode(BcastFragment(0, 2, tensor))
    assert len(head) == HEADER_BYTES + 12
    tensor[0] = 9
    assert bytes(bulk) == tensor.tobytes()


def test_decoding_a_large_payload_costs_no_memory():
    big = np.zeros(8 << 20, np.uint8)
    tracemalloc.start()
    codec.decode(FrameType.INIT_PARAMS, memoryview(big))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


def test_bulk_may_be_a_view_of_another_shape_or_type():
    values = np.zeros((2, 2), np.float32)
    assert len(codec.encode(InitParams(0, values))[1]) == 16
    assert codec.decode(2, memoryview(np.zeros(5, np.uint32))).tensor.nbytes == 16
    with pytest.raises(errors.BadArgument):
        codec.encode(InitParams(0, np.zeros((4, 4))[:, ::2]))
    strided = memoryview(bytes(100))[::2]
    for frame_type in FrameType:
        with pytest.raises(errors.BadArgument, match="contiguous"):
            codec.decode(frame_type, strided)


@pytest.mark.parametrize(
    "message",
    [
        PullReq(1 << 32, 0, 1),
        PullReq(-1, 0, 1),
        PullReq(0, 1 << 64, 1),
        PullReq(0.5, 0, 1),
        FinalManifest(3, (1 << 64,)),
        FinalManifest(3, (-1,)),
        FinalManifest(3, ("x",)),
        Error("\ud800"),
        Error(b"bytes"),
        PushFragment(0, 0, 0, 1, 0, 0, 1, 0, "text"),
        Hello(0, 1, Dtype.F32, LAYOUT, bytes(32), bytes(32), None, 1 << 16),
        Hello(0, 1, Dtype.F32, None, bytes(32), bytes(32), None, 0),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_does_not_fit_the_wire_is_the_callers_mistake(message):
    with pytest.raises(errors.BadArgument):
        codec.encode(message)


def test_hashes_of_a_wrong_length_are_not_padded():
    short = Hello(0, 1, Dtype.F32, LAYOUT, bytes(31), bytes(32), None, 0)
    with pytest.raises(errors.BadArgument):
        codec.encode(short)
    long = Hello(0, 1, Dtype.F32, LAYOUT, bytes(32), bytes(33), None, 0)
    with pytest.raises(errors.BadArgument):
        codec.encode(long)


def test_the_version_is_judged_before_anything_that_another_version_may_lack():
    for whole in (b"\x03\x00", b"\x05\x00" + bytes(3), b"\x03\x00" + payload("HELLO")[2:]):
        with pytest.raises(errors.VersionMismatch, match=r"^invalid HELLO: protocol version mismatch"):
            codec.decode(1, whole)
    with pytest.raises(errors.VersionMismatch, match=r"^invalid DATA_HELLO: protocol version mismatch"):
        codec.decode(8, b"\x03\x00")


def test_a_cut_payload_names_the_field_and_its_offset():
    with pytest.raises(errors.Truncated) as refused:
        codec.decode(4, payload("PUSH_FRAGMENT")[:21])
    assert (refused.value.field, refused.value.offset, refused.value.seen) == ("base_version", 20, 21)


def test_a_wrong_direction_is_refused_when_the_side_is_known():
    with pytest.raises(errors.UnexpectedType) as refused:
        codec.decode(FrameType.PULL_REQ, payload("PULL_REQ"), SESSION, Role.SYNCER)
    assert refused.value.rule == "header.type.direction"
    assert codec.decode(FrameType.PULL_REQ, payload("PULL_REQ"), SESSION, Role.LEARNER).round_attempt == 1


def test_a_layout_that_the_session_has_already_is_not_parsed_again():
    hello = Hello(0, 1, Dtype.F32, LAYOUT, bytes(32), bytes(32), None, 0)
    body = b"".join(map(bytes, codec.encode(hello)))[HEADER_BYTES:]
    assert codec.decode(1, body, SESSION).layout is SESSION.layout
    assert codec.decode(1, body).layout is not SESSION.layout
    assert codec.decode(1, body).layout == SESSION.layout


def test_the_text_of_an_unreadable_error_is_not_lost():
    with pytest.raises(errors.BadText) as refused:
        codec.decode(10, b"session mismatch \xff")
    assert "session mismatch" in refused.value.detail
    assert refused.value.offset == 17


def test_header_helpers():
    assert codec.parse_header(codec.header(9, CHUNK_SLICE)) == (0xD170C0DE, 9, CHUNK_SLICE)
    with pytest.raises(errors.BadArgument):
        codec.header(9, -1)
    with pytest.raises(errors.BadArgument):
        codec.parse_header(bytes(12))


# -- limits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "init", "push"), [(Dtype.F32, 1204, 1248), (Dtype.BF16, 604, 648), (Dtype.Q4, 604, 48 + 264)]
)
def test_limits_follow_the_largest_fragment(dtype, init, push):
    session = Session(dtype, LAYOUT, bytes(32), bytes(32), None)
    assert payload_limit(2, Role.SYNCER, session) == init
    assert payload_limit(4, Role.SYNCER, session) == push
    assert payload_limit(5, Role.LEARNER, session) == init + 8
    assert payload_limit(13, Role.LEARNER, session) == 12 + 1200
    assert payload_limit(11, Role.LEARNER, session) == 14 + 16
    assert chunk_total_limit(Role.SYNCER, session) == 13 + max(init, push)
    assert chunk_total_limit(Role.LEARNER, session) == 13 + max(init + 8, 1212)


@pytest.mark.parametrize("dtype", Dtype)
def test_no_size_of_a_session_is_above_the_most_that_is_allocated(dtype):
    largest = (MAX_ALLOC - HEADER_BYTES - 48) // 4
    hello = Hello(
        0, 1, dtype, WireLayout.build([(MergeMode.AVG, [largest], None)]), bytes(32), bytes(32), None, 0
    )
    session = Session.from_hello(codec.decode(1, b"".join(map(bytes, codec.encode(hello)))[HEADER_BYTES:]))
    for role in Role:
        sizes = [payload_limit(each, role, session) for each in INNER[role]]
        assert max(*sizes, chunk_total_limit(role, session)) <= MAX_ALLOC
    more = WireLayout.build([(MergeMode.AVG, [largest + 1], None)])
    with pytest.raises(errors.LayoutOverflow):
        codec.decode(1, b"".join(map(bytes, codec.encode(replace(hello, layout=more))))[HEADER_BYTES:])


def test_limits_of_first_frames_and_of_small_ones():
    assert payload_limit(1, Role.SYNCER, None) == 16 << 20
    assert payload_limit(8, Role.SYNCER, None) == 16
    exact = {6: 12, 12: 10, 14: 8, 9: 24 + (4 << 20)}
    assert {each: payload_limit(each, Role.SYNCER, SESSION) for each in exact} == exact
    assert payload_limit(3, Role.LEARNER, SESSION) == 16
    assert payload_limit(7, Role.LEARNER, SESSION) == 0
    assert payload_limit(10, Role.LEARNER, SESSION) == 65536


def test_a_size_needs_a_dtype():
    for size in (bulk_bytes, push_bytes):
        with pytest.raises(errors.BadArgument):
            size(4, 256)
    assert [push_bytes(Dtype.Q4, numel) for numel in (1, 256, 257)] == [132, 132, 264]


def test_types_without_a_limit():
    for frame_type in set(FrameType) - {1, 8}:
        with pytest.raises(errors.InvalidFirstFrame, match="first frame must be HELLO/DATA_HELLO"):
            payload_limit(frame_type, Role.SYNCER, None)
    with pytest.raises(errors.UnknownType):
        payload_limit(15, Role.LEARNER, SESSION)
    with pytest.raises(errors.BadArgument):
        payload_limit(3, Role.LEARNER, None)
    for role in Role:
        taken = RECEIVES[role] - {1, 8}
        for frame_type in FrameType:
            if frame_type in taken:
                assert 0 <= payload_limit(frame_type, role, SESSION) <= MAX_ALLOC
            else:
                with pytest.raises(errors.UnexpectedType):
                    payload_limit(frame_type, role, SESSION)
        assert INNER[role] == taken - {9}


# -- errors --------------------------------------------------------------------------------------------------


def test_errors_carry_what_a_program_needs_and_survive_a_pickle():
    with pytest.raises(errors.BadCounter) as refused:
        codec.decode(3, bytes(16), SESSION)
    error = refused.value
    found = (error.rule, error.frame, error.field, error.offset, error.limit, error.seen)
    assert found == ("pull_req.round_attempt.must", "PULL_REQ", "round_attempt", 12, 1, 0)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.BadCounter
    assert str(again) == str(error)
    assert "round_attempt is at least 1" in str(error)


def test_the_text_of_an_error_is_one_short_line():
    error = errors.SessionMismatch(detail="a", seen="x\ny" * 200, limit=bytes(100))
    assert "\n" not in str(error)
    assert len(str(error)) < 400
    assert str(errors.FrameTooLarge(prefix="invalid first frame: ", seen=1, limit=2)).startswith(
        "invalid first frame: frame exceeds limit"
    )
    assert str(YetoError()) == "refused"


def test_families_say_what_becomes_of_the_connection():
    assert errors.BadLength.fatal
    assert errors.BadLength.sends
    for name in ("OutOfRound", "UnexpectedMember", "FutureBase", "StaleBase", "Duplicate", "NonFiniteMerge"):
        dropped = getattr(errors, name)
        assert issubclass(dropped, errors.PeerError)
        assert not dropped.fatal
        assert not dropped.sends
    assert not errors.BadArgument.sends
    outside = str(errors.LearnerOutOfRange(frame="HELLO"))
    assert outside.startswith("invalid HELLO: learner id outside configured range")
    assert str(errors.ProfileMissing(frame="HELLO")).startswith("HELLO is missing the required")


def test_messages_are_frozen_and_say_their_type():
    assert Shutdown().frame_type is FrameType.SHUTDOWN
    assert FinalAck(17) == FinalAck(17, revision=1)
    assert DataHello(7, 1, 0).protocol_version == 4
    assert FinalManifest(17, (1, 2)).num_fragments == 2
    with pytest.raises(AttributeError):
        Chunk(0, 13, 0, b"x").offset = 1
