"""Sessions, messages and byte streams for the tests of reader, writer, chunks and session."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest

from yeto_proto._generated.errors import WireError
from yeto_proto._generated.messages import (
    BcastFragment,
    BudgetDone,
    DataHello,
    Error,
    FinalAck,
    FinalFragment,
    FinalManifest,
    Heartbeat,
    Hello,
    InitParams,
    Message,
    PullReq,
    PushFragment,
    Shutdown,
)
from yeto_proto._generated.types import Dtype, MergeMode, Role
from yeto_proto.errors_base import YetoError
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session, WireLayout
from yeto_proto.writer import frame


def layout(*numels: int) -> WireLayout:
    """One rda fragment of one tensor for each number."""
    return WireLayout.build([(MergeMode.RDA, (numel,), None) for numel in numels])


def session(*numels: int, dtype: Dtype = Dtype.F32) -> Session:
    return Session(dtype, layout(*(numels or (6, 3))), b"f" * 32, b"c" * 32, None)


def hello(of: Session, learner_id: int = 0, num_streams: int = 2) -> Hello:
    return Hello(learner_id, 7, of.dtype, of.layout, of.fingerprint, of.contract, of.profile, num_streams)


def bulk(length: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8).tobytes()


def push(of: Session, fragment_id: int = 0, seed: int = 0) -> PushFragment:
    return PushFragment(0, fragment_id, 5, 1, 4, 10, 3, 300, bulk(of.push_bytes(fragment_id), seed))


def bcast(of: Session, fragment_id: int = 0, version: int = 2) -> BcastFragment:
    return BcastFragment(fragment_id, version, bulk(of.bulk_bytes(fragment_id), version))


def received(role: Role, of: Session) -> list[Message]:
    """One message of every type that this side takes within a session, CHUNK aside."""
    if role is Role.SYNCER:
        return [
            InitParams(1, bulk(of.bulk_bytes(1))),
            push(of),
            Heartbeat(0, 11),
            FinalAck(17),
            BudgetDone(4),
        ]
    return [
        PullReq(0, 5, 1),
        bcast(of, 1),
        Shutdown(),
        Error("session mismatch"),
        FinalManifest(17, tuple(range(of.num_fragments))),
        FinalFragment(1, 17, bulk(of.final_bytes(1))),
    ]


def first(of: Session) -> list[Message]:
    """The frames that may open a connection."""
    return [hello(of), DataHello(0, 7, 1)]


def wire(messages: Iterable[Message]) -> bytes:
    """The bytes of these frames in a row."""
    return b"".join(bytes(buffer) for message in messages for buffer in frame(message))


def joined(buffers: Iterable[object]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)  # type: ignore[call-overload]


def events(reader: FrameReader, pieces: Iterable[bytes]) -> list[Message | tuple[object, ...]]:
    """All that a reader says to these pieces and then to the end of the stream; a refusal by its fields."""
    seen: list[Message | tuple[object, ...]] = []
    try:
        for piece in pieces:
            seen += reader.feed(piece)
        reader.eof()
    except YetoError as error:
        seen.append((type(error), error.rule, error.field, error.offset, str(error), reader.frame_offset))
    return seen


def cut_at(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The data in pieces that end at these places."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(edges)]


def refuse(error: type[WireError], into: FrameReader, data: bytes) -> WireError:
    """Bytes that a reader must refuse so; the error, which the reader keeps."""
    with pytest.raises(error) as caught:
        into.feed(data)
    assert into.failure is caught.value
    return caught.value
