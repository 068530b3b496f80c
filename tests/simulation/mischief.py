"""What a faulty learner or something between it and the syncer may make of its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np

from yeto_proto._generated.messages import PushFragment
from yeto_proto._generated.types import Dtype

Spoil = Callable[[PushFragment, Dtype, Random], list[PushFragment]]


def copy(push: PushFragment) -> PushFragment:
    """The same push in bytes of its own, so that the two can be told apart."""
    return replace(push, delta=bytes(bytearray(push.delta)))


def _twice(push: PushFragment, dtype: Dtype, rng: Random) -> list[PushFragment]:
    return [push, copy(push)]


def _future(push: PushFragment, dtype: Dtype, rng: Random) -> list[PushFragment]:
    return [replace(push, base_version=push.base_version + rng.randint(1, 50))]


def _stale(push: PushFragment, dtype: Dtype, rng: Random) -> list[PushFragment]:
    return [replace(push, base_version=max(push.base_version - rng.randint(1, 20), 0))]


def _stray(push: PushFragment, dtype: Dtype, rng: Random) -> list[PushFragment]:
    return [replace(push, round_attempt=push.round_attempt + 1)]


def _wrong_learner(push: PushFragment, dtype: Dtype, rng: Random) -> list[PushFragment]:
    return [replace(push, learner_id=push.learner_id + 1)]


def _not_finite(push: PushFragment, dtype: Dtype, rng: Random) -> list[PushFragment]:
    delta = bytearray(push.delta)
    if dtype is Dtype.BF16:
        delta[:2] = b"\xc0\x7f"
    else:  # a value, or the scale of a block
        delta[:4] = np.float32(np.nan).tobytes()
    return [replace(push, delta=bytes(delta))]


SPOILS: dict[str, Spoil] = {
    "push sent twice": _twice,
    "future base": _future,
    "stale base": _stale,
    "stray attempt": _stray,
    "wrong learner id": _wrong_learner,
    "NaN in a push": _not_finite,
}

TAINTING = ("stale base", "future base")
"""After these one anchor may be merged twice: the syncer knows it by another name."""

GUILTY = ("wrong learner id", "NaN in a push")
"""After these the syncer has the right to refuse the learner."""
