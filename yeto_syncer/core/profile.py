"""The semantic profile hash: one 32-byte name for how this server merges, schedules and recovers (D40).

A client that offers a hash is refused unless it equals this one. Port, paths, keys and the iso backend are
not part of it; neither is anything that cannot change a result or what a restart recovers.
"""

from __future__ import annotations

import hashlib

import numpy as np

from yeto_proto._generated.constants import PROFILE_DOMAIN
from yeto_syncer.core.config import Config
from yeto_syncer.core.later_flags import later_flags


def encode_profile(config: Config) -> bytes:
    """The bytes that are hashed: the fixed recipe, then every later flag that is on."""
    c = config
    recipe = (
        PROFILE_DOMAIN,
        _u32(c.learners),
        _u32(c.quorum),
        _u64(c.grace_ms),
        _f64(c.grace_gamma),
        _f64(c.grace_tau),
        _u32(c.pipeline),
        _u64(c.min_round_interval_ms),
        _f64(c.sync_interval_steps),
        _u8(c.delta_correction == "heloco"),
        _u64(c.quorum_timeout_s),
        _u64(c.quorum_timeout_s if c.final_ack_timeout_s is None else c.final_ack_timeout_s),
        _u64(c.total_steps),
        _u8(0) if c.policy_sweep_fragments is None else _u8(1) + _u32(c.policy_sweep_fragments),
        _f32(c.outer_lr),
        _f32(c.outer_momentum),
        _u8(c.checkpoint_path is not None),
        _u64(c.checkpoint_every),
        # A supervisor restarts with --resume-if-exists; the first start must give the same hash as the
        # second.
        _u8(c.resume or c.resume_if_exists),
        _u8(c.mark_final_checkpoint),
        _u8(0) if c.learner_budget_steps is None else _u8(1) + _u64(c.learner_budget_steps),
        _u8(0) if c.max_base_lag is None else _u8(1) + _u64(c.max_base_lag),
        _u8(c.learner_weight == "equal"),
        _u8(c.require_profile_binding),
    )
    return b"".join(recipe) + b"".join(_named(name, value) for name, value in sorted(later_flags(config)))


def profile_hash(config: Config) -> bytes:
    """SHA-256 of `encode_profile`, 32 bytes."""
    return hashlib.sha256(encode_profile(config)).digest()


def _named(name: str, value: str) -> bytes:
    return b"".join(_u8(len(text)) + text for text in (name.encode(), value.encode()))


def _u8(value: int) -> bytes:
    return int(value).to_bytes(1, "little")


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _f32(value: float) -> bytes:
    return np.array(value, "<f4").tobytes()


def _f64(value: float) -> bytes:
    return np.array(value, "<f8").tobytes()
