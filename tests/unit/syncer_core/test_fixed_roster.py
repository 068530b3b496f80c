"""The strict mode: max-base-lag 0, quorum of all, no grace. Slots belong to learners, and nothing is
discarded."""

from __future__ import annotations

from typing import Any

from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.messages import PullReq
from yeto_syncer.core.config import Config
from yeto_syncer.core.coordinator import Phase


def strict(**settings: Any) -> Config:
    made = config(**{"quorum": 3, "grace_ms": 0, "max_base_lag": 0, **settings})
    assert made.fixed_roster
    return made


def reasons(run: Driver) -> list[object]:
    return [record["reason"] for record in run.tape("rejected")]


def test_any_generation_of_a_learner_may_answer() -> None:
    run, peers = training(config=strict())
    new = Peer(run, 0, 50)
    new.push(PullReq(0, 1, 1))
    peers[0].answer()
    assert reasons(run) == ["Duplicate"], "the learner has answered, whichever connection it used"
    peers[1].answer(), peers[2].answer()
    assert run.tape()[0]["responded"] == [0, 1, 2]


def test_a_reconnect_is_pulled_again_for_every_unanswered_round() -> None:
    run, peers = training(config=strict(pipeline=2))
    peers[1].push(PullReq(1, 2, 1))
    peers[1].close()
    back = Peer(run, 1, 50)
    assert back.pulls() == [PullReq(0, 1, 1)]
    back.push(PullReq(0, 1, 1))
    peers[0].answer(), peers[2].answer()
    assert [record["step"] for record in run.tape()] == [1, 2]


def test_the_quorum_timeout_asks_again_and_discards_nothing() -> None:
    run, peers = training(config=strict())
    peers[0].answer()
    peers[1].pulls(), peers[2].pulls()
    run.wait(60.1)
    assert not peers[0].pulls(), "it has answered"
    assert peers[1].pulls() == [PullReq(0, 1, 1)], "the same attempt"
    peers[1].push(PullReq(0, 1, 1)), peers[2].push(PullReq(0, 1, 1))
    assert run.tape()[0]["attempt"] == 1
    assert not run.tape("attempt_discarded")


def test_with_somebody_missing_the_timeout_only_waits_on() -> None:
    run, peers = training(config=strict())
    peers[0].answer()
    peers[2].close()
    peers[1].pulls()
    run.wait(200.0)
    assert not peers[1].pulls()
    back = Peer(run, 2, 50)
    back.answer()
    peers[1].push(PullReq(0, 1, 1))
    assert run.tape()[0]["responded"] == [0, 1, 2]


def test_no_round_starts_with_somebody_missing() -> None:
    run, peers = training(config=strict())
    for peer in peers:
        peer.answer()
    for peer in peers:
        peer.answer()
    assert len(run.tape()) == 2
    peers[2].close()
    third = peers[0].pulls()
    assert [pull.global_step for pull in third] == [3]
    peers[0].push(third[0]), peers[1].answer()
    back = Peer(run, 2, 50)
    back.answer()
    assert len(run.tape()) == 3


def test_a_stale_answer_is_refused_and_the_slot_stays_open() -> None:
    run, peers = training(config=strict())
    for _ in range(3):
        for peer in peers:
            peer.answer()
    pull = peers[0].pulls()[0]
    peers[0].push(pull, base=0)
    assert reasons(run) == ["StaleBase"]
    assert run.exit is None, "no push ends the process"
    peers[0].push(pull)
    peers[1].answer(), peers[2].answer()
    assert len(run.tape()) == 4


def test_the_final_members_are_all_launch_ids_connected_or_not() -> None:
    run, peers = training(config=strict(total_steps=1, final_ack_timeout_s=30), hold_merges=True)
    play(peers)
    peers[2].close()
    run.finish_merge()
    assert run.core.phase is Phase.FINALIZING
    peers[0].ack(), peers[1].ack()
    assert run.exit is None
    Peer(run, 2, 50).ack()
    assert run.exit is not None and run.exit.code == 0
