"""Short ways to a run in a certain state, for the scenario tests."""

from __future__ import annotations

from typing import Any

from tests.simulation.driver import Driver, Peer
from yeto_syncer.core.config import Config
from yeto_syncer.core.coordinator import Phase


def config(**settings: Any) -> Config:
    """Three learners, quorum 2, one round at a time, no throttle; a good configuration."""
    values = {
        "learners": 3,
        "quorum": 2,
        "total_steps": 12,
        "pipeline": 1,
        "sync_interval_steps": 0.0,
        "quorum_timeout_s": 60,
        "event_tape": "tape.jsonl",
        **settings,
    }
    made = Config(**values)
    assert made.validate() == []
    return made


def training(
    *,
    peers: int | None = None,
    config: Config,
    hold_deliveries: bool = False,
    hold_saves: bool = False,
    hold_merges: bool = False,
    **driver: Any,
) -> tuple[Driver, list[Peer]]:
    """A run whose learners (all of them, or the first `peers`) have joined, initialized and got their cut.

    Learner i has generation 10 + i.
    """
    run = Driver(config, **driver)
    count = config.learners if peers is None else peers
    joined = [Peer(run, learner, 10 + learner) for learner in range(count)]
    joined[0].init()
    assert run.core.phase is Phase.TRAINING
    run.hold_deliveries = hold_deliveries
    run.hold_saves = hold_saves
    run.hold_merges = hold_merges
    return run, joined


def play(peers: list[Peer]) -> None:
    """Answer pulls until there are none: the run is at its end."""
    while sum(peer.answer() for peer in peers if peer.connected):
        pass
