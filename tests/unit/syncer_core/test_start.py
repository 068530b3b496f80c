"""INIT, and what has to be there before the first round."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulation.driver import Driver, Peer, saves
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.errors import NotInitializer, OutOfRound
from yeto_proto._generated.messages import FinalAck, InitParams, PullReq
from yeto_syncer.core.coordinator import Phase
from yeto_syncer.core.effects import Deliver, RemoveMarker, Save, SaveKind, Send
from yeto_syncer.core.events import Received


@pytest.mark.rule("init_params.initializer")
def test_only_learner_0_may_initialize() -> None:
    run = Driver(config())
    zero, one = Peer(run, 0, 1), Peer(run, 1, 1)
    one.init(1)
    assert isinstance(one.refused, NotInitializer)
    assert zero.connected
    assert run.core.phase is Phase.WAITING


@pytest.mark.rule("syncer.init.first")
def test_the_first_init_of_a_fragment_wins() -> None:
    run = Driver(config(learners=1, quorum=1))
    zero = Peer(run, 0, 1)
    zero.init(2, value=3.0)
    zero.init(3, value=5.0)
    (cut,) = run.of(Deliver)
    assert [float(each.params[0]) for each in cut.fragments] == [3.0, 3.0, 5.0]
    assert [each.version for each in cut.fragments] == [0, 0, 0]


@pytest.mark.rule("syncer.init.first")
def test_init_in_any_order_completed_by_a_later_generation() -> None:
    run = Driver(config(learners=1, quorum=1))
    old = Peer(run, 0, 1)
    old.driver.feed(Received(old.conn, old.link, InitParams(2, b""), np.full(2, 7.0, np.float32)))
    old.close()
    new = Peer(run, 0, 2)
    assert run.core.phase is Phase.WAITING
    new.init(2)
    assert run.core.phase is Phase.TRAINING
    assert float(run.of(Deliver)[0].fragments[2].params[0]) == 7.0


@pytest.mark.rule("syncer.init.superseded")
def test_init_of_a_superseded_generation_is_dropped() -> None:
    run = Driver(config(learners=1, quorum=1))
    old, new = Peer(run, 0, 1), Peer(run, 0, 2)
    old.init()
    assert run.core.phase is Phase.WAITING
    new.init(value=2.0)
    assert float(run.of(Deliver)[0].fragments[0].params[0]) == 2.0


def test_init_after_the_start_changes_nothing() -> None:
    run, peers = training(config=config())
    before = len(run.of(Deliver))
    peers[0].init(value=99.0)
    assert len(run.of(Deliver)) == before
    assert peers[0].refused is None


def test_the_state_is_not_shared_with_a_writable_array() -> None:
    run, _ = training(config=config())
    assert not any(each.params.flags.writeable for each in run.of(Deliver)[0].fragments)


@pytest.mark.rule("syncer.start.learners")
def test_training_waits_for_all_learners_and_all_fragments() -> None:
    run = Driver(config())
    zero, _one = Peer(run, 0, 1), Peer(run, 1, 1)
    zero.init()
    assert run.core.phase is Phase.WAITING
    Peer(run, 2, 1)
    assert run.core.phase is Phase.TRAINING


def test_a_learner_that_left_before_the_start_is_waited_for() -> None:
    run = Driver(config())
    zero, one = Peer(run, 0, 1), Peer(run, 1, 1)
    one.close()
    Peer(run, 2, 1)
    zero.init()
    assert run.core.phase is Phase.WAITING
    Peer(run, 1, 2)
    assert run.core.phase is Phase.TRAINING


@pytest.mark.rule("syncer.start.learners")
def test_min_start_learners_starts_with_fewer() -> None:
    run = Driver(config(min_start_learners=2))
    zero = Peer(run, 0, 1)
    zero.init()
    assert run.core.phase is Phase.WAITING
    one = Peer(run, 1, 1)
    assert run.core.phase is Phase.TRAINING
    assert zero.pulls() and one.pulls()


@pytest.mark.rule("syncer.observers.apart")
def test_observers_are_not_waited_for_and_never_captured() -> None:
    run = Driver(config(observers=(2,)))
    zero, one = Peer(run, 0, 1), Peer(run, 1, 1)
    zero.init()
    assert run.core.phase is Phase.TRAINING
    observer = Peer(run, 2, 1)
    play([zero, one])
    assert not observer.pulls()
    assert all(record["expected"] == [0, 1] for record in run.tape())
    assert observer.version(0) == 10, "it gets every broadcast"


def test_the_initial_cut_goes_to_everybody_once_and_before_any_pull() -> None:
    run, peers = training(config=config())
    kinds = [effect for effect in run.performed if isinstance(effect, (Deliver, Send))]
    assert isinstance(kinds[0], Deliver)
    assert kinds[0].links == tuple(peer.link for peer in peers)
    assert [each.fragment_id for each in kinds[0].fragments] == [0, 1, 2]
    assert len(run.of(Deliver)) == 1


@pytest.mark.rule("syncer.start.learners")
def test_the_first_launch_waits_until_the_cut_has_left_to_a_quorum() -> None:
    run = Driver(config(learners=3, quorum=2), hold_deliveries=True)
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    run.deliver(peers[1].link)
    assert not run.of(Send)
    run.deliver(peers[2].link)
    assert [len(peer.pulls()) for peer in peers] == [0, 1, 1], "only who holds the cut is captured"
    run.deliver(peers[0].link)
    assert len(peers[0].pulls()) == 1, "it joins the open round when its cut has left"
    assert run.tape("late_join") == [
        {"event": "late_join", "id": 0, "generation": 1, "step": 1, "attempt": 1}
    ]


@pytest.mark.rule("syncer.start.learners")
def test_a_learner_that_is_lost_before_its_cut_has_left_is_not_waited_for_for_ever() -> None:
    run = Driver(config(learners=3, quorum=3), hold_deliveries=True)
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    run.deliver(peers[0].link)
    peers[2].close()
    (line,) = run.logged("the first round waits for learners that were lost before they had the initial cut")
    assert line.fields == {"learners": "2", "at_most_s": 60}
    run.wait(61.0)
    assert not run.of(Send), "the cut of learner 1 is on its way, however long it takes"
    run.deliver(peers[1].link)
    assert [len(peer.pulls()) for peer in peers[:2]] == [1, 1]
    for peer in peers[:2]:
        peer.push(PullReq(0, 1, 1))
    assert run.tape()[0]["quorum"] == 2


@pytest.mark.rule("syncer.start.learners")
def test_a_lost_learner_has_the_quorum_timeout_to_come_back_before_the_first_round() -> None:
    run = Driver(config(learners=3, quorum=3), hold_deliveries=True)
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    peers[2].close()
    run.deliver()
    run.wait(59.0)
    assert not run.of(Send)
    back = Peer(run, 2, 2)
    run.wait(600.0)
    assert not run.of(Send), "nobody is missing any more"
    back.close()
    run.wait(59.0)
    assert not run.of(Send)
    run.wait(1.1)
    assert [len(peer.pulls()) for peer in peers[:2]] == [1, 1]


def test_observers_do_not_count_for_the_first_launch() -> None:
    run = Driver(config(observers=(2,), min_start_learners=1), hold_deliveries=True)
    peers = [Peer(run, learner, 1) for learner in (2, 0, 1)]
    peers[1].init()
    run.deliver(peers[0].link)
    run.deliver(peers[1].link)
    assert not run.of(Send)
    run.deliver(peers[2].link)
    assert len(run.of(Send)) == 2


@pytest.mark.rule("push_fragment.global_step.round")
def test_push_and_ack_before_the_start_are_dropped() -> None:
    run = Driver(config())
    zero = Peer(run, 0, 1)
    zero.push(PullReq(0, 1, 1))
    zero.send(FinalAck(12))
    assert zero.connected
    assert run.counted("rejected", reason=OutOfRound.__name__) == 2


def test_a_heartbeat_before_the_start_is_no_sample() -> None:
    run = Driver(config(grace_ms=10_000, grace_gamma=1.0, grace_tau=1.0, learners=2, quorum=1))
    zero, one = Peer(run, 0, 1), Peer(run, 1, 1)
    zero.heartbeat(1)
    run.wait(100.0)
    zero.heartbeat(2)
    zero.init()
    one.answer()
    assert run.core.phase is Phase.TRAINING
    run.wait(9.9)
    assert not run.tape(), "without an estimate the window is the full cap"
    run.wait(0.2)
    assert run.tape()[0]["grace_ms"] == 10_000


# -- files before the first round ----------------------------------------------------------------------------


def test_per_round_mode_saves_version_zero_before_the_first_broadcast() -> None:
    run = Driver(config(checkpoint_path="state.ckpt", checkpoint_every=1), hold_saves=True)
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    assert saves(run) == [(SaveKind.VERSION_ZERO, 0)]
    assert run.core.phase is Phase.PREPARING
    assert not run.of(Deliver)
    run.finish_save()
    assert run.core.phase is Phase.TRAINING
    assert run.of(Deliver)


def test_checkpoint_on_start_is_written_once_before_the_first_round() -> None:
    run = Driver(config(checkpoint_path="state.ckpt", checkpoint_on_start=True), hold_saves=True)
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    assert saves(run) == [(SaveKind.ON_START, 0)]
    assert not run.of(Send)
    run.finish_save()
    assert run.of(Send)
    assert len(run.of(Save)) == 1


def test_checkpoint_on_start_in_the_background_does_not_wait() -> None:
    run = Driver(
        config(checkpoint_path="state.ckpt", checkpoint_on_start=True, background_checkpoint=True),
        hold_saves=True,
    )
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    assert [(save.kind, save.background) for save in run.of(Save)] == [(SaveKind.ON_START, True)]
    assert run.of(Send)


def test_an_old_marker_is_removed_before_the_first_round() -> None:
    run, _ = training(config=config(checkpoint_path="state.ckpt"))
    kinds = [type(effect) for effect in run.performed if isinstance(effect, (RemoveMarker, Deliver))]
    assert kinds == [RemoveMarker, Deliver]


def test_a_failed_save_before_the_start_ends_the_run() -> None:
    run = Driver(config(checkpoint_path="state.ckpt", checkpoint_every=1), hold_saves=True)
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    run.finish_save("no space left")
    assert run.exit is not None and run.exit.code == 1
    assert "no space left" in run.exit.message and "state.ckpt" in run.exit.message
    assert not run.of(Deliver)


def test_a_run_without_steps_goes_straight_to_its_end() -> None:
    run = Driver(config(total_steps=0))
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init()
    assert all(deliver.final for deliver in run.of(Deliver))
    for peer in peers:
        peer.ack()
    assert run.exit is not None and run.exit.code == 0
