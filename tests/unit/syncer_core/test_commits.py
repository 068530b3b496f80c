"""Merge, commit, ledger, checkpoints and tape: strictly in order, durable before visible, all or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulation.driver import Driver, Peer, saves
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.files import TAPE
from yeto_proto.files import Snapshot
from yeto_syncer.core.effects import AppendTape, Deliver, Effect, Merge, Save, SaveKind
from yeto_syncer.core.events import FileFailed, MergeFailed
from yeto_syncer.core.merge import run as run_merge

PATH = "state.ckpt"


def visible(effects: list[Effect]) -> list[str]:
    """The order of what matters in a commit, in words."""
    names = []
    for effect in effects:
        match effect:
            case Save():
                names.append(f"save {effect.kind.value} {effect.snapshot.global_step}")
            case Deliver(_, fragments, final, _):
                names.append(f"{'final' if final else 'bcast'} {fragments[0].version}")
            case AppendTape(record) if "event" not in record:
                names.append(f"tape {record['step']}")
            case Merge(job):
                names.append(f"merge {job.step}")
    return names


# -- merge and commit ----------------------------------------------------------------------------------------


def test_the_job_holds_the_whole_step() -> None:
    run, peers = training(config=config(outer_lr=0.5, outer_momentum=0.25, delta_correction="none"))
    for peer in reversed(peers):
        peer.push(peer.pulls()[0], c_steps=2, c_tokens=4, value=float(peer.link.learner_id))
    job = run.of(Merge)[0].job
    assert (job.step, job.attempt, job.fragment_id, job.lr, job.mu) == (1, 1, 0, 0.5, 0.25)
    assert not job.correction
    assert [answer.link for answer in job.answers] == [peer.link for peer in peers], (
        "ascending, not by arrival"
    )
    assert [answer.weight for answer in job.answers] == [8.0] * 3
    assert [float(np.frombuffer(answer.delta, np.float32)[0]) for answer in job.answers] == [0.0, 1.0, 2.0]
    assert job.params.tolist() == [1.0, 1.0] and job.momentum.tolist() == [0.0, 0.0]
    assert job.tensors.numels.tolist() == [2] and job.tensors.shapes is None


def test_a_commit_replaces_the_arrays_and_keeps_the_old_ones_whole() -> None:
    run, peers = training(config=config())
    for _ in range(4):
        for peer in peers:
            peer.answer()
    first, fourth = (merge.job for merge in run.of(Merge) if merge.job.fragment_id == 0)
    assert first.params.tolist() == [1.0, 1.0]
    assert fourth.params.tolist() == [4.0, 4.0], "three deltas of 1"
    assert not fourth.params.flags.writeable


def test_the_real_merge_fits_the_job() -> None:
    run, peers = training(
        config=config(delta_correction="none", outer_lr=1.0, outer_momentum=0.0), merge=run_merge
    )
    for peer in peers:
        peer.push(peer.pulls()[0], value=0.5)
    (broadcast,) = [each for each in run.of(Deliver) if each.token is None]
    assert broadcast.fragments[0].params.tolist() == [1.5, 1.5], "anchor plus the mean local move"
    assert run.tape()[0]["gnorm"] == pytest.approx(float(np.hypot(0.5, 0.5)))


@pytest.mark.rule("syncer.order.contiguous")
def test_later_rounds_wait_for_the_earlier_one() -> None:
    run, peers = training(config=config(pipeline=3))
    pulls = [peer.pulls() for peer in peers]
    for index in (2, 1, 0):
        for peer, each in zip(peers, pulls, strict=True):
            peer.push(each[index])
    assert [name for name in visible(run.performed) if name.startswith("merge")] == [
        "merge 1",
        "merge 2",
        "merge 3",
    ]
    assert [record["step"] for record in run.tape()] == [1, 2, 3]


@pytest.mark.rule("syncer.order.contiguous")
def test_one_merge_at_a_time() -> None:
    run, peers = training(config=config(pipeline=3), hold_merges=True)
    play(peers)
    assert len(run.of(Merge)) == 1
    run.finish_merge()
    assert [merge.job.step for merge in run.of(Merge)] == [1, 2]


def test_a_fragment_is_busy_until_its_commit() -> None:
    run, peers = training(config=config(pipeline=3), hold_merges=True)
    play(peers)
    assert not any(peer.pulls() for peer in peers)
    run.finish_merge()
    assert [pull.fragment_id for pull in peers[0].pulls()] == [0]


@pytest.mark.rule("syncer.order.contiguous")
def test_broadcast_then_tape_and_no_broadcast_of_the_last_step() -> None:
    run, peers = training(config=config(total_steps=2))
    start = len(run.performed)
    play(peers)
    assert visible(run.performed[start:])[:5] == ["merge 1", "bcast 1", "tape 1", "merge 2", "tape 2"]
    assert run.broadcasts() == [(0, 1)]


def test_a_failed_merge_ends_the_run_without_a_trace() -> None:
    run, peers = training(config=config(checkpoint_path=PATH), hold_merges=True)
    play(peers)
    run.feed(MergeFailed(1, 1, "out of memory"))
    assert run.exit is not None and run.exit.code == 1
    assert "out of memory" in run.exit.message
    assert not run.tape() and not run.broadcasts()


# -- non-finite merges ---------------------------------------------------------------------------------------


@pytest.mark.rule("round.merge.finite")
def test_a_merge_that_is_not_finite_refuses_all_answers_and_tries_again() -> None:
    run, peers = training(config=config(), hold_merges=True)
    play(peers)
    old = run.merging
    assert old is not None
    run.finish_merge(finite=False)
    assert run.counted("rejected", reason="NonFiniteMerge") == 3
    assert not run.tape() and not run.broadcasts()
    assert [pull.round_attempt for pull in peers[0].pulls()] == [2]
    for peer in peers:
        peer.push_again(1, attempt=2)
    assert run.merging is not None
    assert run.merging.params is old.params, "nothing was written"
    run.finish_merge()
    assert run.tape()[0]["attempt"] == 2


@pytest.mark.rule("round.merge.finite")
def test_three_in_a_row_on_one_fragment_end_the_run() -> None:
    run, peers = training(config=config(), hold_merges=True)
    for attempt in (1, 2, 3):
        assert run.exit is None
        for peer in peers:
            peer.push_again(1, attempt=attempt)
        run.finish_merge(finite=False)
    assert run.exit is not None and run.exit.code == 1
    assert "3 times in a row" in run.exit.message and "fragment 0" in run.exit.message


def test_a_commit_ends_the_row() -> None:
    run, peers = training(config=config(), hold_merges=True)
    for step in (1, 4, 7):
        for attempt in (1, 2, 3):
            for peer in peers:
                peer.push_again(step, attempt=attempt)
            run.finish_merge(finite=attempt == 3)
        for other in (step + 1, step + 2):
            for peer in peers:
                peer.push_again(other)
            run.finish_merge()
    assert run.exit is None
    assert len(run.tape()) == 9


def test_a_refused_round_with_nobody_left_waits_for_somebody() -> None:
    run, peers = training(config=config(), hold_merges=True)
    play(peers)
    for peer in peers:
        peer.close()
    run.finish_merge(finite=False)
    run.wait(30.0)
    back = Peer(run, 1, 50)
    assert [(pull.global_step, pull.round_attempt) for pull in back.pulls()] == [(1, 2)]


# -- checkpoints ---------------------------------------------------------------------------------------------


def test_per_round_checkpoints_are_durable_before_their_broadcast() -> None:
    run, peers = training(config=config(checkpoint_path=PATH, checkpoint_every=1), hold_saves=True)
    start = len(run.performed)
    for peer in peers:
        peer.answer()
    assert visible(run.performed[start:]) == ["merge 1", "save per-round 1"]
    run.wait(3.0)
    assert not peers[0].pulls(), "the fragment stays busy"
    run.finish_save()
    assert visible(run.performed[start:]) == ["merge 1", "save per-round 1", "bcast 1", "tape 1"]
    assert run.tape()[0]["sync_ms"] == 3000, "the save counts into the commit"


def test_a_catch_up_never_shows_a_version_that_is_not_durable() -> None:
    run, peers = training(config=config(checkpoint_path=PATH, checkpoint_every=1), hold_saves=True)
    for peer in peers:
        peer.answer()
    late = Peer(run, 2, 50)
    assert not run.cuts[late.link], "held behind the save"
    run.finish_save()
    assert late.version(0) == 1


def test_a_failed_per_round_checkpoint_ends_the_run_unseen() -> None:
    run, peers = training(config=config(checkpoint_path=PATH, checkpoint_every=1), hold_saves=True)
    for peer in peers:
        peer.answer()
    run.finish_save("disk full")
    assert run.exit is not None and run.exit.code == 1
    assert "disk full" in run.exit.message and PATH in run.exit.message
    assert not run.broadcasts() and not run.tape()


def test_the_last_step_is_written_once() -> None:
    for every, expected in (
        (1, [("version-zero", 0), ("per-round", 1), ("per-round", 2), ("per-round", 3), ("terminal", 4)]),
        (2, [("periodic", 2), ("terminal", 4)]),
        (3, [("periodic", 3), ("terminal", 4)]),
        (0, [("terminal", 4)]),
    ):
        run, peers = training(config=config(total_steps=4, checkpoint_path=PATH, checkpoint_every=every))
        play(peers)
        assert [(kind.value, step) for kind, step in saves(run)] == expected


def test_periodic_checkpoints_follow_broadcast_and_tape() -> None:
    run, peers = training(config=config(checkpoint_path=PATH, checkpoint_every=2))
    start = len(run.performed)
    play(peers)
    order = visible(run.performed[start:])
    assert order[order.index("merge 2") :][:4] == ["merge 2", "bcast 2", "tape 2", "save periodic 2"]


def test_a_blocking_periodic_checkpoint_holds_the_next_merge() -> None:
    run, peers = training(
        config=config(checkpoint_path=PATH, checkpoint_every=1 + 1, pipeline=3), hold_saves=True
    )
    play(peers)
    assert run.saving is not None
    assert [merge.job.step for merge in run.of(Merge)] == [1, 2]
    run.finish_save()
    assert [merge.job.step for merge in run.of(Merge)][:3] == [1, 2, 3]


def test_without_a_path_nothing_is_saved() -> None:
    run, peers = training(config=config())
    play(peers)
    assert not run.of(Save)


def snapshot_of(run: Driver, step: int) -> Snapshot:
    return next(save.snapshot for save in run.of(Save) if save.snapshot.global_step == step)


def test_a_snapshot_is_the_state_at_its_step() -> None:
    run, peers = training(config=config(checkpoint_path=PATH, checkpoint_every=4))
    play(peers)
    snapshot = snapshot_of(run, 4)
    assert [fragment.version for fragment in snapshot.fragments] == [4, 2, 3]
    assert [float(fragment.params[0]) for fragment in snapshot.fragments] == [7.0, 4.0, 4.0]
    assert {
        learner: (entry.merges, entry.steps, entry.tokens) for learner, entry in snapshot.ledger.items()
    } == {0: (4, 4, 4), 1: (4, 4, 4), 2: (4, 4, 4)}
    assert list(snapshot.ledger) == [0, 1, 2]


def test_the_ledger_charges_responders_only() -> None:
    run, peers = training(config=config(checkpoint_path=PATH, total_steps=1))
    peers[2].push(peers[2].pulls()[0], c_steps=7, c_tokens=70)
    peers[0].push(peers[0].pulls()[0], c_steps=3, c_tokens=0)
    run.wait(2.0)
    ledger = snapshot_of(run, 1).ledger
    assert {learner: (entry.merges, entry.steps, entry.tokens) for learner, entry in ledger.items()} == {
        0: (1, 3, 0),
        2: (1, 7, 70),
    }


# -- background checkpoints ----------------------------------------------------------------------------------

BACKGROUND: dict[str, Any] = {"checkpoint_path": PATH, "checkpoint_every": 2, "background_checkpoint": True}


def test_rounds_go_on_behind_a_background_checkpoint() -> None:
    run, peers = training(config=config(**BACKGROUND), hold_saves=True)
    for _ in range(3):
        for peer in peers:
            peer.answer()
    assert [(save.kind, save.background) for save in run.of(Save)] == [(SaveKind.PERIODIC, True)]
    assert len(run.tape()) == 3


def test_one_background_write_at_a_time_and_the_newest_cut_lands_last() -> None:
    run, peers = training(config=config(**BACKGROUND), hold_saves=True)
    for _ in range(7):
        for peer in peers:
            peer.answer()
    assert saves(run) == [(SaveKind.PERIODIC, 2)]
    run.finish_save()
    assert saves(run) == [(SaveKind.PERIODIC, 2), (SaveKind.PERIODIC, 7)], "taken when the writer is free"


def test_the_terminal_save_waits_for_the_background_one() -> None:
    run, peers = training(config=config(total_steps=3, **BACKGROUND), hold_saves=True)
    play(peers)
    assert saves(run) == [(SaveKind.PERIODIC, 2)]
    assert not any(deliver.final for deliver in run.of(Deliver))
    run.finish_save()
    assert saves(run) == [(SaveKind.PERIODIC, 2), (SaveKind.TERMINAL, 3)]
    run.finish_save()
    assert any(deliver.final for deliver in run.of(Deliver))


def test_a_failed_background_write_shows_at_the_next_save() -> None:
    run, peers = training(config=config(**BACKGROUND), hold_saves=True)
    for _ in range(2):
        for peer in peers:
            peer.answer()
    run.finish_save("disk full")
    assert run.exit is None and run.logged("background checkpoint failed")
    for _ in range(2):
        for peer in peers:
            peer.answer()
    assert run.exit is not None and run.exit.code == 1 and "disk full" in run.exit.message


@pytest.mark.parametrize("well_again", [True, False])
def test_the_last_save_is_tried_although_a_background_write_has_failed(well_again: bool) -> None:
    run, peers = training(config=config(total_steps=3, **BACKGROUND), hold_saves=True)
    play(peers)
    run.finish_save("disk full")
    assert run.logged("background checkpoint failed") and run.exit is None
    assert saves(run)[-1] == (SaveKind.TERMINAL, 3)
    run.finish_save(None if well_again else "disk full")
    assert any(deliver.final for deliver in run.of(Deliver)) == well_again
    assert (run.exit is None) == well_again
    assert run.exit is None or run.exit.code == 1


# -- tape ----------------------------------------------------------------------------------------------------


def test_the_tape_holds_every_field_of_the_reference_line() -> None:
    vectors = json.loads((Path(__file__).parents[2] / "vectors" / "merge.json").read_text(encoding="utf-8"))
    line = json.loads(vectors["vectors"]["event_tape_line"]["line"])
    run, peers = training(config=config())
    play(peers)
    record: Any = run.tape()[0]
    assert set(line) <= set(record)
    assert set(line["responders"][0]) <= set(record["responders"][0])
    assert record["protocol_version"] == 4 and record["delta_semantics"] == "local_minus_raw_anchor"
    assert record["sync/layout_hash"] == bytes(range(32)).hex()
    assert record["sync/base_version"] == record["launch_base_version"] == 0
    assert (record["sync/responders"], record["sync/quorum"], record["sync/rejected_stale_updates"]) == (
        3,
        2,
        0,
    )
    assert record["sync/global_delta_norm"] == record["gnorm"] == 3.0
    json.dumps(record, allow_nan=False)


def test_the_tape_has_the_keys_of_the_spec_in_their_order() -> None:
    run, peers = training(config=config())
    play(peers)
    record = run.tape()[0]
    assert list(record) == list(TAPE["commit"])
    assert list(record["responders"][0]) == list(TAPE["responder"])
    assert list(record["expected_members"][0]) == list(TAPE["member"])


def test_the_members_are_sorted_by_number() -> None:
    run = Driver(config(learners=12, quorum=12))
    peers = [Peer(run, learner, 1) for learner in reversed(range(12))]
    peers[-1].init()
    play(peers)
    record: Any = run.tape()[0]
    assert record["expected"] == record["responded"] == list(range(12))
    assert [each["id"] for each in record["responders"]] == list(range(12))


def test_staleness_and_contribution() -> None:
    run, peers = training(config=config(learners=2))
    for _ in range(3):
        for peer in peers:
            peer.answer()
    peers[0].push(peers[0].pulls()[0], base=0, c_tokens=3)
    peers[1].answer()
    first, second = run.tape()[3]["responders"]
    assert (first["base_version"], first["staleness"], first["contribution"]) == (0, 1, 0.9)
    assert (second["base_version"], second["staleness"], second["contribution"]) == (1, 0, 0.1)


def test_without_a_tape_no_record_is_made() -> None:
    run, peers = training(config=config(event_tape=None))
    play(peers)
    assert not run.of(AppendTape)


def test_a_tape_that_cannot_be_written_ends_the_run() -> None:
    run, _ = training(config=config())
    run.feed(FileFailed("event tape tape.jsonl", "no space left"))
    assert run.exit is not None and run.exit.code == 1
    assert "tape.jsonl" in run.exit.message
