"""The event tape beside its commits: who came, left and came back, and how a process begins and ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.files import TAPE
from yeto_syncer.core.effects import AppendTape, Exit
from yeto_syncer.core.events import Dropped, Stop


def events(run: Driver) -> list[str]:
    """The kinds of all records, in order."""
    return [str(effect.record.get("event", "commit")) for effect in run.of(AppendTape)]


def test_a_process_begins_and_ends_on_the_tape() -> None:
    run, peers = training(config=config(total_steps=2, quorum=3))
    play(peers)
    for peer in peers:
        peer.ack()
    assert events(run) == [
        *("run_started", "learner_joined", "learner_joined", "learner_joined"),
        *("commit", "commit", "run_ended"),
    ]
    assert run.tape("run_started") == [
        {
            "event": "run_started",
            "step": 0,
            "resumed": False,
            "learners": 3,
            "quorum": 3,
            "total_steps": 2,
            "fragments": 3,
        }
    ]
    assert run.tape("run_ended") == [
        {"event": "run_ended", "step": 2, "code": 0, "message": "training complete at step 2"}
    ]


def test_a_resumed_process_says_so() -> None:
    run, peers = training(config=config(checkpoint_path="state.ckpt", checkpoint_every=1))
    for peer in peers:
        peer.answer()
    again = Driver(config(checkpoint_path="state.ckpt", resume=True), run.disk)
    Peer(again, 0, 1)
    [started] = again.tape("run_started")
    assert (started["step"], started["resumed"]) == (1, True)


def test_a_process_that_nobody_joined_ends_without_a_step() -> None:
    run = Driver(config())
    run.feed(Stop(15))
    assert run.tape() == [] and run.tape("run_ended") == [
        {"event": "run_ended", "step": None, "code": 0, "message": "stopped before training"}
    ]
    assert isinstance(run.performed[-1], Exit)


def lose_and_return(run: Driver, lost: Peer) -> Peer:
    """Silent for 3 s, then gone for 5 s, 2 s of catch-up, and 4 s to the answer."""
    lost.heartbeat(7)
    run.wait(3.0)
    lost.close()
    run.wait(5.0)
    back = Peer(run, lost.link.learner_id, 99)
    run.wait(2.0)
    run.deliver(back.link)
    run.wait(4.0)
    return back


def test_a_recovery_tells_its_four_phases() -> None:
    run, peers = training(config=config(quorum=3, quorum_timeout_s=600))
    run.hold_deliveries = True
    back = lose_and_return(run, peers[1])
    assert run.tape("recovery") == [], "not before it has answered"
    assert back.answer() == 1
    expected = {
        "event": "recovery",
        "id": 1,
        "generation": 99,
        "lost_generation": 11,
        "step": 1,
        "reason": "disconnected",
        "connections": 1,
        "detect_ms": 3000,
        "connect_ms": 5000,
        "catch_up_ms": 2000,
        "answer_ms": 4000,
    }
    assert run.tape("recovery") == [expected]
    assert list(run.tape("recovery")[0]) == list(TAPE["recovery"])
    peers[0].answer()
    peers[2].answer()
    back.answer()
    assert len(run.tape("recovery")) == 1, "the next answer is an ordinary one"


def test_an_outage_goes_on_when_the_learner_is_lost_again_before_it_answered() -> None:
    run, peers = training(config=config(quorum=3, quorum_timeout_s=600))
    run.hold_deliveries = True
    back = lose_and_return(run, peers[1])
    run.feed(Dropped(back.link, "no byte went out"))
    run.wait(1.0)
    again = Peer(run, 1, 100)
    run.deliver(again.link)
    again.answer()
    [record] = run.tape("recovery")
    assert (record["lost_generation"], record["connections"], record["reason"]) == (11, 2, "disconnected")
    assert record["connect_ms"] == 5000 + 2000 + 4000 + 1000
    assert (record["catch_up_ms"], record["answer_ms"]) == (0, 0)


def test_a_redial_that_comes_before_the_loss_was_noticed_is_its_detection() -> None:
    run, peers = training(config=config(quorum=3, quorum_timeout_s=600))
    run.wait(6.0)
    again = Peer(run, 1, 100)
    run.wait(1.0)
    peers[1].close()  # its slot goes to the new generation
    run.wait(1.0)
    again.answer()
    [record] = run.tape("recovery")
    assert (record["reason"], record["lost_generation"]) == ("superseded", 11)
    assert (record["detect_ms"], record["connect_ms"], record["catch_up_ms"]) == (6000, 0, 0)
    assert record["answer_ms"] == 2000


def test_a_loss_outside_training_is_no_outage() -> None:
    run = Driver(config())
    early = Peer(run, 1, 1)
    early.close()
    peers = [Peer(run, learner, 10 + learner) for learner in range(3)]
    peers[0].init()
    play(peers)
    assert run.tape("recovery") == []
    assert len(run.tape("learner_left")) == 1


def test_an_observer_that_returns_is_no_recovery() -> None:
    run, peers = training(config=config(observers=(2,), quorum=2))
    peers[2].close()
    Peer(run, 2, 50)
    play(peers[:2])
    assert run.tape("recovery") == []


@pytest.mark.parametrize("kind", sorted(TAPE.keys() - {"commit", "member", "responder", "stamp"}))
def test_records_of_the_spec_begin_with_their_event(kind: str) -> None:
    fields: Any = TAPE[kind]
    assert next(iter(fields)) == "event" and fields["event"].type == "text"
