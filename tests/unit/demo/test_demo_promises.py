"""Each promise is broken by the one thing that it is about, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.demo.stories import record, story
from yeto_learner.demo.promises import Evidence, check
from yeto_learner.demo.settings import Settings
from yeto_learner.demo.story import Round
from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import (
    FragmentState,
    Snapshot,
    SnapshotVersion,
    remove_marker,
    write_final_state,
    write_marker,
)
from yeto_proto.layout import build_layout

ROUNDS = 12
SHAPES = {"embed.weight": (4, 3), "layers.0.mlp.weight": (3, 2), "layers.1.mlp.weight": (2, 2)}


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    """A run that kept every promise."""
    layout = build_layout(SHAPES, 3)
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    fragments = [
        FragmentState(
            version=10 + number,
            params=np.concatenate([values[tensor.name].reshape(-1) for tensor in fragment.tensors]),
            momentum=np.zeros(fragment.numel, np.float32),
        )
        for number, fragment in enumerate(layout.fragments)
    ]
    snapshot = Snapshot(
        version_tag=SnapshotVersion.V3,
        iso_backend=IsoBackend.SCALAR,
        fingerprint=layout.fingerprint(),
        global_step=ROUNDS,
        fragments=fragments,
        ledger={},
        contract=bytes(32),
    )
    write_marker(tmp_path / "checkpoint", ROUNDS)
    write_final_state(tmp_path / "state", [fragment.params for fragment in fragments])
    return Evidence(
        settings=replace(Settings(), rounds=ROUNDS),
        layout=layout,
        story=story(ROUNDS),
        snapshot=snapshot,
        learners=[{name: value.copy() for name, value in values.items()} for _ in range(3)],
        checkpoint=tmp_path / "checkpoint",
        final_state=tmp_path / "state",
        syncer_exit=0,
    )


def broken(evidence: Evidence) -> list[str]:
    return [promise.text for promise in check(evidence) if not promise.kept]


def test_a_good_run_keeps_them_all(evidence: Evidence) -> None:
    promises = check(evidence)
    assert broken(evidence) == []
    assert len(promises) == 8
    assert all(promise.detail for promise in promises)


def flip_a_bit(evidence: Evidence) -> None:
    evidence.learners[2]["layers.0.mlp.weight"].view(np.uint32)[1, 1] ^= 1


def lose_a_learner(evidence: Evidence) -> None:
    assert isinstance(evidence.learners, list)
    evidence.learners.pop()


def write_another_state(evidence: Evidence) -> None:
    fragments = [fragment.params + 1 for fragment in evidence.snapshot.fragments]
    write_final_state(evidence.final_state, fragments)


def mark_another_step(evidence: Evidence) -> None:
    write_marker(evidence.checkpoint, ROUNDS - 1)


def lose_the_marker(evidence: Evidence) -> None:
    assert remove_marker(evidence.checkpoint)


def lose_a_round(evidence: Evidence) -> None:
    del evidence.story.rounds[8]


def fall_too_little(evidence: Evidence) -> None:
    evidence.story.before = 1.49 * evidence.story.merged


def do_worse_than_alone(evidence: Evidence) -> None:
    evidence.story.alone_on_shard = evidence.story.merged


def never_kill(evidence: Evidence) -> None:
    evidence.story.killed_after = None


def never_come_back(evidence: Evidence) -> None:
    rounds = evidence.story.rounds
    for index in range(6, ROUNDS):
        rounds[index] = Round.from_record(record(index + 1, {0: 10, 2: 12}))


def reconnect_without_missing_a_round(evidence: Evidence) -> None:
    for index in (4, 5):
        evidence.story.rounds[index] = Round.from_record(record(index + 1, {0: 10, 1: 11, 2: 12}))


@pytest.mark.parametrize(
    ("damage", "promise"),
    [
        (fall_too_little, "the held-out loss fell by more than a third"),
        (do_worse_than_alone, "the merged model beats a learner alone on one shard"),
        (flip_a_bit, "every learner's parameters equal the f32 checkpoint, bit for bit"),
        (lose_a_learner, "every learner's parameters equal the f32 checkpoint, bit for bit"),
        (write_another_state, "the final state equals the checkpoint"),
        (mark_another_step, "the checkpoint is marked final at its step"),
        (lose_the_marker, "the checkpoint is marked final at its step"),
        (lose_a_round, "the event tape holds every round in order"),
        (never_kill, "learner 1 was killed, missed rounds and came back"),
        (never_come_back, "learner 1 was killed, missed rounds and came back"),
        (reconnect_without_missing_a_round, "learner 1 was killed, missed rounds and came back"),
    ],
)
def test_one_fault_breaks_one_promise(
    damage: Callable[[Evidence], None], promise: str, evidence: Evidence
) -> None:
    damage(evidence)
    assert broken(evidence) == [promise]


def test_a_syncer_that_failed_breaks_its_promise(evidence: Evidence) -> None:
    assert broken(replace(evidence, syncer_exit=1)) == ["the syncer ended by itself with exit code 0"]
