"""The learner-budget benchmark: cutoff process, progress leases, and the consolidation that follows it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.driver import Driver, Peer, saves
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.errors import BudgetNotExpected
from yeto_proto._generated.messages import BudgetDone, FinalManifest, PullReq, Shutdown
from yeto_syncer.core.coordinator import Phase
from yeto_syncer.core.effects import Deliver, Merge, Save, SaveKind, Send, WriteMarker
from yeto_syncer.core.events import MergeFailed, Stop

BUDGET = 40
SETTINGS: dict[str, Any] = {
    "checkpoint_path": "state.ckpt",
    "checkpoint_every": 0,
    "learner_budget_steps": BUDGET,
    "quorum": 3,
    "total_steps": 1000,
}


def benchmark(**settings: Any) -> tuple[Driver, list[Peer]]:
    held = {name: settings.pop(name, False) for name in ("hold_merges", "hold_saves")}
    return training(config=config(**{**SETTINGS, **settings}), **held)


def report(peer: Peer, steps: int = BUDGET) -> None:
    peer.send(BudgetDone(steps))


def failure(run: Driver) -> str:
    assert run.exit is not None and run.exit.code == 1
    return run.exit.message


@pytest.mark.rule("syncer.budget.cutoff")
def test_all_reports_end_the_process_with_one_unmarked_checkpoint() -> None:
    run, peers = benchmark()
    for peer in peers:
        peer.answer()
    for peer in peers:
        report(peer)
    assert run.exit is not None and run.exit.code == 0
    assert saves(run) == [(SaveKind.CUTOFF, 1)]
    assert run.logged("learner-budget cutoff checkpoint written")
    assert not run.of(WriteMarker)
    assert not [send for send in run.of(Send) if isinstance(send.message, (FinalManifest, Shutdown))]
    assert not any(deliver.final for deliver in run.of(Deliver))


@pytest.mark.rule("syncer.budget.gate")
def test_the_first_report_closes_issuance_and_drops_rounds_whole() -> None:
    run, peers = benchmark(pipeline=3)
    for peer in peers:
        peer.pulls()
    for peer in peers[:2]:
        peer.push(PullReq(0, 1, 1))
    report(peers[0])
    assert run.core.phase is Phase.CUTOFF
    assert [record["step"] for record in run.tape("round_dropped")] == [1, 2, 3]
    peers[2].push(PullReq(0, 1, 1))
    run.wait(50.0)
    assert not run.of(Merge) and not run.tape()
    assert not any(peer.pulls() for peer in peers)


@pytest.mark.rule("syncer.budget.gate")
def test_a_merge_that_runs_is_drained_and_not_committed() -> None:
    run, peers = benchmark(hold_merges=True)
    play(peers)
    for peer in peers:
        report(peer)
    assert not run.of(Save), "the merge is drained first"
    run.finish_merge()
    assert saves(run) == [(SaveKind.CUTOFF, 0)]
    assert not run.tape() and not run.broadcasts()


def test_a_merge_that_does_not_end_in_time_prevents_the_checkpoint() -> None:
    run, peers = benchmark(hold_merges=True)
    play(peers)
    for peer in peers:
        report(peer)
    run.wait(60.1)
    assert "merge that was running" in failure(run)
    assert not run.of(Save)


def test_a_failed_merge_prevents_the_checkpoint() -> None:
    run, peers = benchmark(hold_merges=True)
    play(peers)
    report(peers[0])
    run.feed(MergeFailed(1, 1, "worker died"))
    assert "worker died" in failure(run)
    assert not run.of(Save)


def test_a_step_that_is_being_saved_is_shown_before_the_cutoff() -> None:
    run, peers = benchmark(checkpoint_every=1, hold_saves=True)
    play(peers)
    for peer in peers:
        report(peer)
    assert saves(run)[-1] == (SaveKind.PER_ROUND, 1)
    run.finish_save()
    assert run.broadcasts() == [(0, 1)] and run.tape()[-1]["step"] == 1
    run.finish_save()
    assert saves(run)[-1] == (SaveKind.CUTOFF, 1)
    assert run.exit is not None and run.exit.code == 0


@pytest.mark.rule("budget_done.exact_local_steps.mode")
@pytest.mark.rule("syncer.budget.outside")
def test_outside_budget_mode_it_is_an_error_of_that_connection() -> None:
    run, peers = training(config=config())
    report(peers[1])
    assert isinstance(peers[1].refused, BudgetNotExpected)
    assert peers[0].connected and run.exit is None


@pytest.mark.rule("budget_done.exact_local_steps.target")
@pytest.mark.rule("syncer.budget.ends_run")
def test_a_wrong_count_ends_the_run() -> None:
    run, peers = benchmark()
    report(peers[1], BUDGET - 1)
    assert "wrong learner budget" in failure(run)
    assert not run.of(Save)


@pytest.mark.rule("budget_done.exact_local_steps.once")
@pytest.mark.rule("syncer.budget.ends_run")
def test_a_second_report_ends_the_run() -> None:
    run, peers = benchmark()
    report(peers[1])
    assert run.exit is None
    report(peers[1])
    assert "duplicate budget report" in failure(run)


def test_a_report_of_a_superseded_generation_is_dropped() -> None:
    run, peers = benchmark()
    new = Peer(run, 1, 50)
    report(peers[1])
    assert run.exit is None and run.core.phase is Phase.TRAINING
    report(peers[0]), report(peers[2]), report(new)
    assert run.exit is not None and run.exit.code == 0


@pytest.mark.rule("syncer.budget.lease")
def test_silence_for_the_quorum_timeout_names_the_stalled_learners() -> None:
    run, peers = benchmark()
    report(peers[0])
    run.wait(60.1)
    message = failure(run)
    assert "learner 1, 2 " in message and "1/3" in message


@pytest.mark.rule("syncer.budget.lease")
def test_progress_within_the_budget_renews_the_lease() -> None:
    run, peers = benchmark()
    report(peers[0])
    for step in (10, 20, 40):
        run.wait(50.0)
        peers[1].heartbeat(step)
        peers[2].push(PullReq(0, 1, 1), local_step=step)
    assert run.exit is None
    report(peers[1]), report(peers[2])
    assert run.exit is not None and run.exit.code == 0


def test_steps_beyond_the_budget_renew_nothing() -> None:
    run, peers = benchmark()
    report(peers[0]), report(peers[2])
    run.wait(50.0)
    peers[1].heartbeat(BUDGET + 1)
    run.wait(10.1)
    assert "learner 1 " in failure(run)


def test_a_reconnect_renews_the_lease_and_may_report() -> None:
    run, peers = benchmark()
    report(peers[0]), report(peers[2])
    peers[1].close()
    run.wait(50.0)
    back = Peer(run, 1, 50)
    assert not run.cuts[back.link], "the cutoff process sends nothing more"
    run.wait(50.0)
    report(back)
    assert run.exit is not None and run.exit.code == 0


def test_reports_before_the_start_need_all_learners_in_one_time() -> None:
    run = Driver(config(**SETTINGS))
    peers = [Peer(run, learner, 1) for learner in range(2)]
    peers[0].init()
    report(peers[0])
    run.wait(50.0)
    peers[1].heartbeat(3)
    run.wait(10.1)
    assert "1/3" in failure(run)


def test_reports_before_the_start_close_it_too() -> None:
    run = Driver(config(**SETTINGS))
    peers = [Peer(run, learner, 1) for learner in range(2)]
    peers[0].init()
    report(peers[0]), report(peers[1])
    third = Peer(run, 2, 1)
    assert run.core.phase is Phase.CUTOFF, "training does not start any more"
    report(third)
    assert saves(run) == [(SaveKind.CUTOFF, 0)]
    assert run.exit is not None and run.exit.code == 0


def test_reports_without_parameters_are_a_failure() -> None:
    run = Driver(config(**SETTINGS))
    for peer in [Peer(run, learner, 1) for learner in range(3)]:
        report(peer)
    assert "before the run was initialized" in failure(run)


def test_the_last_step_without_a_report_is_a_failure() -> None:
    run, peers = benchmark(total_steps=2)
    play(peers)
    assert "no learner has reported" in failure(run)
    assert not run.of(Save)


def test_a_stop_during_the_cutoff_keeps_the_state() -> None:
    run, peers = benchmark()
    for peer in peers:
        peer.answer()
    report(peers[0])
    run.feed(Stop(15))
    assert saves(run) == [(SaveKind.STOP, 1)]
    assert run.exit is not None and run.exit.code == 0


def test_a_stop_during_the_cutoff_without_parameters_has_nothing_to_keep() -> None:
    run = Driver(config(**SETTINGS))
    report(Peer(run, 0, 1))
    run.feed(Stop(15))
    assert not saves(run)
    assert run.exit is not None and run.exit.code == 0


def test_the_lease_of_the_island_does_not_apply_to_frozen_learners() -> None:
    run, peers = benchmark(island_lease_s=2.0)
    report(peers[0])
    run.wait(30.0)
    assert peers[0].connected


@pytest.mark.rule("syncer.budget.consolidation")
def test_the_whole_benchmark_in_two_processes() -> None:
    cutoff, peers = benchmark(pipeline=3)
    for _ in range(4):
        for peer in peers:
            peer.answer()
    for peer in peers:
        report(peer)
    assert cutoff.disk is not None
    start = cutoff.disk.global_step
    fragments = 3
    second = Driver(
        config(
            checkpoint_path="state.ckpt",
            resume=True,
            quorum=3,
            pipeline=3,
            total_steps=start + fragments,
            mark_final_checkpoint=True,
        ),
        cutoff.disk,
    )
    frozen = [Peer(second, learner, 1) for learner in range(3)]
    pulls = [peer.pulls() for peer in frozen]
    for index in reversed(range(fragments)):
        for peer, asked in zip(frozen, pulls, strict=True):
            peer.push(asked[index], local_step=BUDGET, c_steps=BUDGET, c_tokens=100)
    records = second.tape()
    assert [record["step"] for record in records] == [start + 1, start + 2, start + 3], "strictly in order"
    assert {record["fragment"] for record in records} == {0, 1, 2}
    assert all(record["responded"] == [0, 1, 2] for record in records)
    assert all(each["c_steps"] == BUDGET for record in records for each in record["responders"])
    for peer in frozen:
        peer.ack()
    assert second.exit is not None and second.exit.code == 0
    assert second.marker == start + fragments
