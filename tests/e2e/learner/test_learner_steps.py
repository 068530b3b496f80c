"""`Learner`: the step boundary."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.e2e.learner.rig import arrived, flat, parameters, running, settle, train, wire_values
from tests.e2e.scripted_syncer import WAIT
from yeto_learner.errors import ProtocolError
from yeto_proto import dtypes
from yeto_proto._generated import messages as wire
from yeto_proto._generated.types import Dtype


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q4"])
def test_a_pull_is_answered_with_local_minus_anchor(dtype: str) -> None:
    arrays = parameters()
    with running(arrays, dtype=dtype) as (made, peer, _):
        anchor = flat(made, arrays, 1)
        for tokens in (10, 20):
            train(arrays)
            assert made.step(tokens=tokens) is False
        peer.send(wire.PullReq(1, 2, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step(tokens=30)
        push = peer.expect(wire.PushFragment)
        delta = flat(made, arrays, 1) - anchor
        assert bytes(push.delta) == bytes(dtypes.encode(made.client.dtype, delta))
        assert push == wire.PushFragment(0, 1, 2, 1, 0, 3, 3, 60, push.delta)
        settle(made)
        made.step()
        assert made.rounds_answered == 1


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_blending_changes_local_values_and_never_the_anchor(alpha: float, dtype: str) -> None:
    arrays = parameters()
    with running(arrays, dtype=dtype, merge_alpha=alpha) as (made, peer, _):
        train(arrays)
        local = flat(made, arrays, 0)
        raw, data = wire_values(made, 0, 7)
        peer.broadcast(0, 1, data)
        arrived(made, updates=1)
        made.step()
        blended = np.float32(alpha) * local + np.float32(1 - alpha) * raw if alpha else raw
        np.testing.assert_array_equal(flat(made, arrays, 0), blended)
        assert made.versions == [1, 0]
        assert made.global_step == 1
        peer.send(wire.PullReq(0, 3, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step(tokens=4)
        push = peer.expect(wire.PushFragment)
        expected = dtypes.encode(made.client.dtype, flat(made, arrays, 0) - raw)
        assert bytes(push.delta) == bytes(expected)
        assert (push.base_version, push.c_steps, push.c_tokens) == (1, 1, 4)


def test_two_broadcasts_before_one_boundary_are_blended_one_after_the_other() -> None:
    arrays = parameters()
    with running(arrays, merge_alpha=0.5, num_streams=0) as (made, peer, _):
        local = flat(made, arrays, 0)
        first, first_data = wire_values(made, 0, 7)
        second, second_data = wire_values(made, 0, 8)
        peer.broadcast(0, 1, first_data)
        peer.broadcast(0, 3, second_data)
        arrived(made, updates=2)
        made.step()
        half = np.float32(0.5)
        np.testing.assert_array_equal(
            flat(made, arrays, 0), half * (half * local + half * first) + half * second
        )


@pytest.mark.rule("learner.anchor.spent")
def test_a_retry_of_the_same_step_is_answered_again_and_another_step_waits() -> None:
    arrays = parameters()
    with running(arrays) as (made, peer, _):
        anchor = flat(made, arrays, 0)
        for attempt in (1, 2):
            peer.send(wire.PullReq(0, 1, attempt))
            arrived(made, pulls=1)
            train(arrays)
            made.step(tokens=10)
            push = peer.expect(wire.PushFragment)
            assert (push.round_attempt, push.c_steps, push.c_tokens) == (attempt, attempt, 10 * attempt)
            assert bytes(push.delta) == (flat(made, arrays, 0) - anchor).tobytes()
        peer.send(wire.PullReq(0, 3, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step()
        peer.expect_nothing()
        assert made.pending_pulls == 1
        _, data = wire_values(made, 0, 3)
        peer.broadcast(0, 1, data)
        arrived(made, updates=1)
        made.step()
        train(arrays)
        made.step()
        assert peer.expect(wire.PushFragment).global_step == 3


def test_the_h_gate() -> None:
    with running(min_local_steps=3) as (made, peer, _):
        peer.send(wire.PullReq(0, 1, 1))
        arrived(made, pulls=1)
        for _ in range(2):
            made.step()
        peer.expect_nothing()
        made.step()
        assert peer.expect(wire.PushFragment).c_steps == 3


def test_reuse_anchor_answers_consecutive_rounds() -> None:
    with running(reuse_anchor=True) as (made, peer, _):
        for step in (1, 3):
            peer.send(wire.PullReq(0, step, 1))
            arrived(made, pulls=1)
            made.step()
            assert peer.expect(wire.PushFragment).global_step == step


@pytest.mark.rule("learner.boundary.never_waits")
def test_a_stalled_syncer_never_blocks_a_step() -> None:
    arrays = {"w": np.zeros(6_000_000, np.float32)}
    with running(arrays, num_fragments=1, num_streams=1) as (made, peer, _):
        peer.reading.clear()
        for attempt in range(1, 9):
            peer.send(wire.PullReq(0, 1, attempt))
        arrived(made, pulls=8)
        for _ in range(6):
            train(arrays)
            made.step(tokens=1)  # one that waited for the syncer would never return: it reads after all six
        assert made.pending_pulls >= 4  # only what the buffers hold was taken off
        peer.reading.set()
        seen = {peer.expect(wire.PushFragment).round_attempt for _ in range(8 - made.pending_pulls)}
        deadline = time.monotonic() + WAIT
        while made.pending_pulls:
            assert time.monotonic() < deadline
            before = made.pending_pulls
            made.step()
            seen |= {peer.expect(wire.PushFragment).round_attempt for _ in range(before - made.pending_pulls)}
        assert seen == set(range(1, 9))


def test_a_slow_push_keeps_the_values_of_its_own_boundary() -> None:
    arrays = {"w": np.zeros(6_000_000, np.float32)}
    with running(arrays, num_fragments=1, num_streams=1) as (made, peer, _):
        peer.reading.clear()
        peer.send(wire.PullReq(0, 1, 1))
        arrived(made, pulls=1)
        train(arrays, 1.0)
        made.step()
        for _ in range(3):
            train(arrays, 1.0)
            made.step()
        peer.reading.set()
        delta = np.frombuffer(peer.expect(wire.PushFragment).delta, np.float32)
        np.testing.assert_array_equal(delta, np.ones_like(delta))


def test_parameters_of_other_dtypes_are_kept() -> None:
    arrays: dict[str, Any] = {"half": np.ones(40, np.float16), "double": np.ones(30, np.float64)}
    with running(arrays, num_fragments=1, merge_alpha=0.0) as (made, peer, _):
        raw, data = wire_values(made, 0, 5)
        peer.broadcast(0, 1, data)
        arrived(made, updates=1)
        made.step()
        assert (arrays["half"].dtype, arrays["double"].dtype) == (np.float16, np.float64)
        merged = np.concatenate(
            [arrays[tensor.name].astype(np.float64) for tensor in made.layout.fragments[0].tensors]
        )
        expected = np.concatenate(
            [
                part.astype(arrays[tensor.name].dtype).astype(np.float64)
                for tensor, part in zip(made.layout.fragments[0].tensors, np.split(raw, [40]), strict=True)
            ]
        )
        np.testing.assert_array_equal(merged, expected)


def test_bf16_anchors_push_the_same_bytes() -> None:
    pushes = []
    for anchor_dtype in ("f32", "bf16"):
        arrays = parameters()
        with running(arrays, dtype="bf16", anchor_dtype=anchor_dtype) as (made, peer, _):
            peer.send(wire.PullReq(0, 1, 1))
            arrived(made, pulls=1)
            train(arrays)
            made.step()
            pushes.append(bytes(peer.expect(wire.PushFragment).delta))
    assert pushes[0] == pushes[1]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broadcast_that_is_not_finite_leaves_the_parameters_untouched(dtype: str, bad: float) -> None:
    arrays = parameters()
    with running(arrays, dtype=dtype) as (made, peer, _):
        train(arrays)
        before = {name: array.copy() for name, array in arrays.items()}
        values = np.zeros(made.layout.fragments[0].numel, np.float32)
        values[-1] = bad
        peer.broadcast(0, 1, bytes(dtypes.encode(Dtype.F32 if dtype == "f32" else Dtype.BF16, values)))
        arrived(made, updates=1)
        with pytest.raises(ProtocolError, match="version 1 of fragment 0 is not finite; nothing was written"):
            made.step(tokens=1)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, before[name])
        peer.expect_nothing()
