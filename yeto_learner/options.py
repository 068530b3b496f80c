"""The keyword arguments of `Learner`, for the wrappers that pass them on."""

from __future__ import annotations

import os
import ssl
from typing import Literal, TypedDict

from yeto_proto._generated.types import Dtype
from yeto_proto.layout import Pattern

from .record import ResumeRecord

__all__ = ["LearnerOptions"]


class LearnerOptions(TypedDict, total=False):
    """Every keyword of `Learner`, with its meaning and its default; all are optional."""

    learner_id: int
    num_fragments: int
    dtype: Dtype | str
    num_streams: int
    merge_alpha: float
    session_contract: bytes | str | None
    resume: ResumeRecord | str | os.PathLike[str] | None
    hmac_key: bytes | str | os.PathLike[str] | None
    tls: ssl.SSLContext | None
    syncer_profile: bytes | str | None
    pattern: Pattern
    matrix_merge: Literal["rda", "iso"]
    avg_name_regex: str | None
    min_local_steps: int
    budget_steps: int | None
    reuse_anchor: bool
    anchor_dtype: Dtype | str
    heartbeat_s: float
    heartbeat_stall_s: float
    initial_cut_timeout_s: float
    init_probe_s: float
    finalization_timeout_s: float
    accept_rewound_catch_up: bool
    connect_timeout_s: float
    max_reconnects: int | None
    receive_budget: int
    show_progress: bool
