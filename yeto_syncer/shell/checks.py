"""What must be known of a message's values before the coordinator sees it. Pure; runs on any thread."""

from __future__ import annotations

from functools import partial

import numpy as np

from yeto_proto import dtypes
from yeto_proto._generated.errors import YetoError
from yeto_proto._generated.messages import Buffer, InitParams, Message, PushFragment
from yeto_proto._generated.rules import RULES
from yeto_proto._generated.types import Dtype
from yeto_proto.memory import Allocate, fresh
from yeto_proto.session import Session
from yeto_syncer.core.jobs import F32
from yeto_syncer.core.merge import Map

INLINE_BYTES = 1 << 18
"""Bulk up to this size is checked on the event loop: that takes less time than changing threads."""

PART = 1 << 20
"""Values of one part, where a fragment is checked, decoded or encoded in parts side by side."""


def bulk_size(message: Message) -> int:
    """Bytes of values that `examine` has to look at; 0 when there is nothing to check."""
    if isinstance(message, InitParams):
        return len(message.tensor)
    if isinstance(message, PushFragment):
        return len(message.delta)
    return 0


def examine(message: Message, session: Session, spread: Map = map, allocate: Allocate = fresh) -> F32 | None:
    """Check that every value is finite (D11), and decode those of an INIT_PARAMS to f32.

    `spread` may run the parts of a large INIT side by side; a PUSH is checked by the calling thread alone.
    `allocate` gives the memory of values that are decoded.
    Raises NonFinite or BadScale with the offset of the value, FrameTooLarge when there is no memory for it.
    """
    try:
        if isinstance(message, PushFragment):
            dtypes.check_finite(session.dtype, message.delta)
        if isinstance(message, InitParams):
            numel = session.numel(message.fragment_id)
            return _decode(session.bulk_dtype, message.tensor, numel, spread, allocate)
    except MemoryError:
        raise no_memory("a payload", bulk_size(message)) from None
    return None


def no_memory(what: str, size: int) -> YetoError:
    """The error of a peer whose bytes cannot be decoded for want of memory; it costs that peer alone."""
    detail = f"there is no memory to decode {what} of this size"
    return RULES["header.len.limit"].error_at(offset=None, seen=size, detail=detail)


def _decode(dtype: Dtype, tensor: Buffer, numel: int, spread: Map, allocate: Allocate) -> F32:
    out = None if dtype is Dtype.F32 else np.frombuffer(allocate(4 * numel), np.float32)
    for _ in spread(partial(_decode_part, dtype, tensor, numel, out), range(0, numel, PART)):
        pass
    # The state's own array from now on: every merge will read it, so it has to be aligned.
    values = dtypes.decode(dtype, tensor, numel) if out is None else out
    return np.require(values, np.float32, ["C", "A"])


def _decode_part(dtype: Dtype, tensor: Buffer, numel: int, out: F32 | None, start: int) -> None:
    stop = min(start + PART, numel)
    base = dtypes.encoded_bytes(dtype, start)
    try:
        dtypes.check_finite(dtype, memoryview(tensor)[base : dtypes.encoded_bytes(dtype, stop)])
    except YetoError as error:
        if error.offset is not None:
            error.offset += base  # counted from the start of the whole tensor
        raise
    if out is not None:
        dtypes.decode_range(dtype, tensor, numel, start, stop, out[start:stop])


def encode(dtype: Dtype, params: F32, spread: Map = map, allocate: Allocate = fresh) -> Buffer:
    """The wire bytes of a fragment, its parts encoded side by side. f32 stays the array's own memory."""
    if dtype is Dtype.F32 or params.size <= PART:
        return dtypes.encode(dtype, params)
    out = allocate(dtypes.encoded_bytes(dtype, params.size))
    for _ in spread(partial(_encode_part, dtype, params, out), range(0, params.size, PART)):
        pass
    return out


def _encode_part(dtype: Dtype, params: F32, out: memoryview, start: int) -> None:
    stop = min(start + PART, params.size)
    begin, end = dtypes.encoded_bytes(dtype, start), dtypes.encoded_bytes(dtype, stop)
    dtypes.encode(dtype, params[start:stop], out[begin:end])
