"""Continuing from a checkpoint: what is compared, with whom, and where the run goes on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.simulation.driver import CONTRACT, FINGERPRINT, NUMEL, Driver, Peer, layout_of, saves
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.errors import GroupedLegacySnapshot, SnapshotMismatch
from yeto_proto._generated.types import Dtype, IsoBackend, MergeMode
from yeto_proto.files import FragmentState, LedgerEntry, Snapshot, SnapshotVersion, expected_version
from yeto_proto.session import WireLayout
from yeto_syncer.core import resume
from yeto_syncer.core.coordinator import Phase
from yeto_syncer.core.effects import Deliver, RemoveMarker, Save, SaveKind

SETTINGS: dict[str, Any] = {"checkpoint_path": "state.ckpt", "resume": True, "total_steps": 8}


def snapshot(step: int = 4, **changes: Any) -> Snapshot:
    versions = [expected_version(step, fragment, 3) for fragment in range(3)]
    made = Snapshot(
        version_tag=SnapshotVersion.V3,
        iso_backend=IsoBackend.SCALAR,
        fingerprint=FINGERPRINT,
        global_step=step,
        fragments=[
            FragmentState(version, np.full(NUMEL, 10.0 + f, np.float32), np.full(NUMEL, 0.5, np.float32))
            for f, version in enumerate(versions)
        ],
        ledger={0: LedgerEntry(4, 40, 400)},
        contract=CONTRACT,
    )
    return dataclasses.replace(made, **changes)


def resumed(made: Snapshot, **settings: Any) -> Driver:
    return Driver(config(**{**SETTINGS, **settings}), made)


def test_the_run_goes_on_at_the_first_uncommitted_step() -> None:
    run = resumed(snapshot(4))
    peers = [Peer(run, learner, 1) for learner in range(3)]
    assert run.core.phase is Phase.TRAINING, "no INIT is needed"
    (cut,) = run.of(Deliver)
    assert [(each.version, float(each.params[0])) for each in cut.fragments] == [
        (4, 10.0),
        (2, 11.0),
        (3, 12.0),
    ]
    play(peers)
    assert [record["step"] for record in run.tape()] == [5, 6, 7, 8]
    assert run.tape()[0]["fragment"] == 1


def test_the_ledger_goes_on() -> None:
    run = resumed(snapshot(4))
    play([Peer(run, learner, 1) for learner in range(3)])
    ledger = run.of(Save)[-1].snapshot.ledger
    assert (ledger[0].merges, ledger[0].steps, ledger[0].tokens) == (8, 44, 404)
    assert (ledger[1].merges, ledger[1].steps) == (4, 4)


def test_init_after_a_resume_is_ignored() -> None:
    run = resumed(snapshot(4))
    peers = [Peer(run, learner, 1) for learner in range(3)]
    peers[0].init(value=99.0)
    assert peers[0].connected
    assert len(run.of(Deliver)) == 1


def test_the_momentum_is_the_files() -> None:
    run = resumed(snapshot(4))
    peers = [Peer(run, learner, 1) for learner in range(3)]
    run.hold_merges = True
    play(peers)
    assert run.merging is not None and run.merging.momentum.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"fingerprint": bytes(32)}, "fingerprint"),
        ({"contract": bytes(32)}, "contract"),
        ({"layout": layout_of(2)}, "num_fragments"),
        (
            {"layout": WireLayout.build([(MergeMode.AVG, [n], None) for n in (2, 3, 2)])},
            "numel",
        ),
    ],
)
def test_a_hello_that_does_not_match_is_refused_and_the_next_may_match(
    changes: dict[str, Any], what: str
) -> None:
    run = resumed(snapshot(4))
    stray = Peer(run, 0, 1, **changes)
    assert isinstance(stray.refused, SnapshotMismatch)
    assert stray.refused.field == what
    assert run.exit is None
    peers = [Peer(run, learner, 2) for learner in range(3)]
    assert all(peer.connected for peer in peers)
    assert run.core.phase is Phase.TRAINING


def test_the_wire_dtype_may_change() -> None:
    run = resumed(snapshot(4))
    assert Peer(run, 0, 1, dtype=Dtype.BF16).connected


def test_a_file_without_a_contract_needs_a_client_without_one() -> None:
    """Such a client sends the layout fingerprint as its contract."""
    run = resumed(snapshot(4, contract=None))
    assert isinstance(Peer(run, 0, 1).refused, SnapshotMismatch)
    assert Peer(run, 0, 2, contract=FINGERPRINT).connected


@pytest.mark.rule("syncer.resume.legacy")
def test_v2_resumes_ungrouped_layouts_whatever_the_contract() -> None:
    run = resumed(snapshot(4, version_tag=SnapshotVersion.V2, fingerprint=None, contract=None))
    grouped = WireLayout.build([(MergeMode.AVG, [1, 1], None)] * 3)
    assert isinstance(Peer(run, 0, 1, layout=grouped).refused, GroupedLegacySnapshot)
    assert Peer(run, 0, 2).connected


def test_at_the_last_step_it_goes_straight_to_the_final_cut() -> None:
    run = resumed(snapshot(8), mark_final_checkpoint=True)
    run.marker = 8
    peers = [Peer(run, learner, 1) for learner in range(2)]
    assert run.core.phase is Phase.WAITING, "all learners are waited for"
    peers.append(Peer(run, 2, 1))
    assert run.core.phase is Phase.FINALIZING
    assert saves(run) == [(SaveKind.TERMINAL, 8)]
    assert all(deliver.final for deliver in run.of(Deliver)), "no BCAST"
    assert not run.of(RemoveMarker), "no progress will be made"
    for peer in peers:
        peer.ack()
    assert run.exit is not None and run.exit.code == 0


def test_a_marker_of_a_killed_process_does_not_outlive_a_failed_terminal_checkpoint() -> None:
    run = Driver(config(**SETTINGS, mark_final_checkpoint=True), snapshot(8), hold_saves=True)
    run.marker = 8
    for learner in range(3):
        Peer(run, learner, 1)
    assert run.core.phase is Phase.TERMINAL
    run.finish_save("disk full")
    assert run.exit is not None and run.exit.code == 1
    assert run.marker is None


def test_beyond_the_last_step_is_a_failure_that_says_what_to_do() -> None:
    assert resume.problem(config(**SETTINGS), snapshot(8)) is None
    trouble = resume.problem(config(**SETTINGS), snapshot(9))
    assert trouble is not None and "--total-steps" in trouble
    run = resumed(snapshot(9))
    run.conn()
    assert run.exit is not None and run.exit.code == 1


@pytest.mark.parametrize(
    "settings",
    [{"checkpoint_every": 1}, {"checkpoint_on_start": True}, {"checkpoint_every": 1, "pipeline": 2}],
)
def test_the_loaded_file_is_not_written_again_at_the_start(settings: dict[str, Any]) -> None:
    run = resumed(snapshot(4), **settings)
    for learner in range(3):
        Peer(run, learner, 1)
    assert run.core.phase is Phase.TRAINING
    assert not run.of(Save)


def test_what_a_run_saved_continues_it_bit_for_bit() -> None:
    whole, peers = training(config=config(checkpoint_path="state.ckpt", checkpoint_every=5))
    play(peers)
    fifth = next(save.snapshot for save in whole.of(Save) if save.snapshot.global_step == 5)
    again = Driver(config(checkpoint_path="state.ckpt", resume=True), fifth)
    play([Peer(again, learner, 1) for learner in range(3)])
    ours, theirs = whole.of(Save)[-1].snapshot, again.of(Save)[-1].snapshot
    assert ours.global_step == theirs.global_step == 12
    assert all(
        mine.version == other.version and np.array_equal(mine.params, other.params)
        for mine, other in zip(ours.fragments, theirs.fragments, strict=True)
    )
    assert {k: v.merges for k, v in ours.ledger.items()} == {k: v.merges for k, v in theirs.ledger.items()}
