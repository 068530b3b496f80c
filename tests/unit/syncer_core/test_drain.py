"""The SVD pool is drained before the checkpoint that ends a process, and a poisoned one prevents it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.driver import Driver, Peer, saves
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.messages import BudgetDone
from yeto_syncer.core.effects import Drain, Save, SaveKind, WriteMarker
from yeto_syncer.core.events import MergeFailed, Stop

PATH = {"checkpoint_path": "state.ckpt", "checkpoint_every": 2}


def run(**settings: Any) -> tuple[Driver, list[Peer]]:
    values = {"learners": 1, "quorum": 1, "total_steps": 5, "iso_backend": "torch-svd", **PATH, **settings}
    return training(config=config(**values))


def files(driver: Driver) -> list[object]:
    """Drains, and the kinds of the saves, in order."""
    found = [effect for effect in driver.performed if isinstance(effect, Drain | Save)]
    return ["drain" if isinstance(effect, Drain) else effect.kind for effect in found]


@pytest.mark.rule("iso_worker.pool.drain")
@pytest.mark.parametrize("every", [0, 1, 2])
def test_only_the_terminal_checkpoint_is_behind_a_drain(every: int) -> None:
    driver, peers = run(checkpoint_every=every)
    play(peers)
    kinds = files(driver)
    assert kinds[-2:] == ["drain", SaveKind.TERMINAL]
    assert kinds.count("drain") == 1
    peers[0].ack()
    assert driver.exit is not None and driver.exit.code == 0


def test_a_background_save_ends_before_the_drain_begins() -> None:
    driver, peers = run(background_checkpoint=True, total_steps=3)
    driver.hold_saves = True
    play(peers)
    assert files(driver) == [SaveKind.PERIODIC]
    driver.finish_save()
    assert files(driver) == [SaveKind.PERIODIC, "drain", SaveKind.TERMINAL]


@pytest.mark.rule("iso_worker.pool.drain")
def test_a_poisoned_pool_prevents_the_terminal_checkpoint() -> None:
    driver, peers = run(checkpoint_every=0, mark_final_checkpoint=True)
    driver.poison = "SVD worker 0 (cuda:0): exited with 1"
    play(peers)
    assert files(driver) == ["drain"]
    assert driver.disk is None and not driver.of(WriteMarker)
    assert driver.exit is not None and driver.exit.code == 1
    assert driver.poison in driver.exit.message


@pytest.mark.rule("iso_worker.pool.drain")
@pytest.mark.parametrize("poison", [None, "SVD worker 0 (cuda:0): exited with 1"])
def test_so_it_is_for_the_cutoff(poison: str | None) -> None:
    driver, peers = run(learner_budget_steps=3, total_steps=100, checkpoint_every=0)
    driver.poison = poison
    peers[0].answer()
    peers[0].send(BudgetDone(3))
    assert files(driver) == (["drain", SaveKind.CUTOFF] if poison is None else ["drain"])
    assert driver.exit is not None and driver.exit.code == (0 if poison is None else 1)


@pytest.mark.parametrize("poison", [None, "SVD worker 0 (cuda:0): exited with 1"])
def test_so_it_is_for_the_graceful_stop(poison: str | None) -> None:
    driver, peers = run(checkpoint_every=0)
    driver.poison = poison
    peers[0].answer()
    driver.feed(Stop(15))
    peers[0].answer()
    assert files(driver) == (["drain", SaveKind.STOP] if poison is None else ["drain"])
    assert driver.exit is not None and driver.exit.code == (0 if poison is None else 1)


def test_the_scalar_backend_has_nothing_to_drain() -> None:
    driver, peers = run(iso_backend="scalar")
    play(peers)
    assert not driver.of(Drain)
    assert saves(driver)[-1] == (SaveKind.TERMINAL, 5)


def test_a_merge_that_the_pool_fails_ends_the_run_without_a_checkpoint() -> None:
    driver, peers = run(mark_final_checkpoint=True, checkpoint_every=0)
    driver.hold_merges = True
    peers[0].answer()
    job = driver.merging
    assert job is not None
    driver.feed(MergeFailed(job.step, job.attempt, "SVD worker 0 (cuda:0): exited with 1"))
    assert not driver.of(Save) and driver.marker is None
    assert driver.exit is not None and driver.exit.code == 1
    assert "exited with 1; step 1" in driver.exit.message
