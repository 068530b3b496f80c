"""What must be known about the values of a message before the coordinator sees it. Pure; runs on any
thread."""

from __future__ import annotations

import numpy as np

from yeto_proto import dtypes
from yeto_proto._generated.messages import InitParams, Message, PushFragment
from yeto_proto._generated.types import Dtype
from yeto_proto.session import Session
from yeto_syncer.core.jobs import F32

INLINE_BYTES = 1 << 18
"""Bulk up to this size is checked on the event loop: that takes less time than changing threads."""


def bulk_dtype(session: Session) -> Dtype:
    """The dtype of INIT_PARAMS and BCAST_FRAGMENT: the session's, but bf16 where pushes are q4."""
    return Dtype.BF16 if session.dtype == Dtype.Q4 else session.dtype


def bulk_size(message: Message) -> int:
    """Bytes of values that `examine` has to look at; 0 when there is nothing to check."""
    if isinstance(message, InitParams):
        return len(message.tensor)
    if isinstance(message, PushFragment):
        return len(message.delta)
    return 0


def examine(message: Message, session: Session) -> F32 | None:
    """Check that every value is finite (D11), and decode those of an INIT_PARAMS to f32.

    Raises NonFinite or BadScale with the offset of the value.
    """
    if isinstance(message, PushFragment):
        dtypes.check_finite(session.dtype, message.delta)
        return None
    if isinstance(message, InitParams):
        dtype = bulk_dtype(session)
        dtypes.check_finite(dtype, message.tensor)
        values = dtypes.decode(dtype, message.tensor, session.numel(message.fragment_id))
        # The state's own array from now on: every merge will read it, so it has to be aligned.
        return np.require(values, np.float32, ["C", "A"])
    return None
