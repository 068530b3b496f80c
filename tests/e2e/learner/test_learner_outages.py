"""`Learner`: outages, catch-ups and restarts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.e2e.learner.rig import (
    arrived,
    catch_up,
    caught_up,
    flat,
    flat_initial,
    parameters,
    running,
    settle,
    train,
    wire_values,
)
from tests.e2e.scripted_syncer import WAIT, Peer, ScriptedSyncer
from yeto_learner import Learner
from yeto_proto._generated import messages as wire


def lost_with_a_pull(
    made: Learner, arrays: dict[str, npt.NDArray[np.float32]], first: Peer, syncer: ScriptedSyncer, step: int
) -> Peer:
    """A pull that has to wait for another local step, an outage, and a catch-up that brings nothing new."""
    first.send(wire.PullReq(0, step, 1))
    arrived(made, pulls=1)
    train(arrays)
    made.step(tokens=1)
    assert made.pending_pulls == 1
    first.close()
    second = syncer.next_peer()
    for fragment in range(2):
        second.broadcast(fragment, 0, flat_initial(made, fragment))
    return second


def test_training_goes_on_during_an_outage_and_what_is_asked_again_is_answered() -> None:
    arrays = parameters()
    with running(arrays, min_local_steps=2) as (made, first, syncer):
        second = lost_with_a_pull(made, arrays, first, syncer, 1)
        second.send(wire.PullReq(0, 1, 1))
        caught_up(made, pulls=1)
        train(arrays)
        made.step(tokens=1)
        push = second.expect(wire.PushFragment)
        assert (push.global_step, push.c_steps) == (1, 2)
        second.expect_nothing()


def test_a_pull_that_a_restarted_syncer_does_not_repeat_is_not_answered() -> None:
    """It asks for a round that is lost, and would spend the anchor that the present round needs."""
    arrays = parameters()
    with running(arrays, min_local_steps=2) as (made, first, syncer):
        second = lost_with_a_pull(made, arrays, first, syncer, 5)
        caught_up(made)
        train(arrays)
        made.step(tokens=1)
        assert made.pending_pulls == 0
        second.send(wire.PullReq(0, 3, 1))
        arrived(made, pulls=1)
        made.step(tokens=1)
        assert second.expect(wire.PushFragment).global_step == 3


def test_a_catch_up_moves_unpushed_progress_onto_the_new_global() -> None:
    arrays = parameters()
    with running(arrays, merge_alpha=0.5) as (made, first, syncer):
        anchor = flat(made, arrays, 0)
        train(arrays)
        made.step(tokens=3)
        local = flat(made, arrays, 0)
        first.close()
        second = syncer.next_peer()
        raw, data = wire_values(made, 0, 4)
        second.broadcast(0, 5, data)
        arrived(made, updates=1)
        made.step(tokens=3)
        np.testing.assert_array_equal(flat(made, arrays, 0), raw + (local - anchor))
        second.send(wire.PullReq(0, 7, 1))
        arrived(made, pulls=1)
        made.step(tokens=3)
        push = second.expect(wire.PushFragment)
        assert (push.base_version, push.c_steps, push.c_tokens) == (5, 3, 9)


def test_a_rewound_syncer_is_followed() -> None:
    arrays = parameters()
    with running(arrays) as (made, first, syncer):
        _, data = wire_values(made, 0, 4)
        first.broadcast(0, 9, data)
        arrived(made, updates=1)
        made.step()
        assert made.versions[0] == 9
        first.reset()
        second = syncer.next_peer()
        _, old = wire_values(made, 0, 5)
        second.broadcast(0, 3, old)
        arrived(made, updates=1)
        made.step()
        assert made.versions[0] == 3
        second.send(wire.PullReq(0, 5, 1))
        arrived(made, pulls=1)
        made.step()
        assert second.expect(wire.PushFragment).base_version == 3


@pytest.mark.rule("learner.anchor.released")
def test_an_anchor_spent_on_a_replaced_link_answers_again() -> None:
    arrays = parameters()
    with running(arrays) as (made, first, syncer):
        anchor = flat(made, arrays, 0).tobytes()
        first.send(wire.PullReq(0, 1, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step()
        first.expect(wire.PushFragment)
        settle(made)
        made.step()
        assert made.rounds_answered == 1
        first.close()
        second = syncer.next_peer()
        assert made.client.wait_for(lambda: made.connected, WAIT)
        # The PULL overtakes the catch-up. A syncer that merged step 1 would broadcast a newer version now.
        second.send(wire.PullReq(0, 3, 1))
        arrived(made, pulls=1)
        made.step()
        assert made.pending_pulls == 1
        # This one restarted from an older checkpoint and holds nothing of step 1.
        second.send(wire.BcastFragment(0, 0, anchor))
        assert made.client.wait_for(lambda: 0 not in made.client.catching_up, WAIT)
        made.step()
        assert second.expect(wire.PushFragment).global_step == 3


def test_a_restart_keeps_local_progress(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays, path = parameters(), tmp_path / "sync.npz"
    with running(arrays) as (made, peer, _):
        anchors = [flat(made, arrays, fragment) for fragment in range(2)]
        for _ in range(3):
            train(arrays)
            made.step(tokens=10)
        made.save_state(path)
    saved = {name: array.copy() for name, array in arrays.items()}
    raw, data = wire_values(made, 1, 4)
    with (
        ScriptedSyncer(admit=catch_up({0: (0, anchors[0].tobytes()), 1: (2, data)})) as syncer,
        Learner(
            arrays, syncer.address, num_fragments=2, dtype="f32", session_contract="test", resume=path
        ) as back,
    ):
        peer = syncer.next_peer()
        assert back.versions == [0, 2]
        assert back.local_step == 3
        np.testing.assert_array_equal(flat(back, arrays, 0), flat(back, saved, 0))  # same version: untouched
        np.testing.assert_array_equal(flat(back, arrays, 1), raw + (flat(back, saved, 1) - anchors[1]))
        peer.send(wire.PullReq(0, 1, 1))
        arrived(back, pulls=1)
        train(arrays)
        back.step(tokens=10)
        push = peer.expect(wire.PushFragment)  # and learner 0 sent no initial values before it
        assert (push.local_step, push.c_steps, push.c_tokens, push.base_version) == (4, 4, 40, 0)
        assert bytes(push.delta) == (flat(back, arrays, 0) - anchors[0]).tobytes()
    assert "resumed at local step 3; fragments by install mode: " in caplog.text
    assert "anchor 1" in caplog.text
    assert "shift 1" in caplog.text


@pytest.mark.rule("learner.init.probe")
def test_a_resumed_learner_0_sends_its_values_when_the_syncer_has_none() -> None:
    arrays = parameters()
    with running(arrays) as (made, _, _):
        record = made.save_state()
    with running(arrays, resume=record, init_probe_s=0.05) as (back, _, _):
        assert back.versions == [0, 0]


def test_a_record_of_another_layout_starts_cold(caplog: pytest.LogCaptureFixture) -> None:
    with running() as (made, _, _):
        record = made.save_state()
    other = {"w": np.ones(9, np.float32)}
    with running(other, num_fragments=1, resume=record) as (back, _, _):
        assert back.local_step == 0
    assert "another layout" in caplog.text
