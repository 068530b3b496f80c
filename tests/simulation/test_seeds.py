"""The coordinator in a few hundred random worlds: every invariant after every effect, and every run ends.

`YETO_SIM_SEEDS=20000` plays more of them; a failure names its seed and tells its story.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.world import World

SEEDS = int(os.environ.get("YETO_SIM_SEEDS", "300"))
BATCHES = 6

# What has to happen often enough for the worlds to be worth their time.
KINDS = (
    "rejected OutOfRound",
    "rejected UnexpectedMember",
    "rejected FutureBase",
    "rejected StaleBase",
    "rejected Duplicate",
    "rejected NonFiniteMerge",
    "attempts_retried",
    "discarded",
    "tape late_join",
    "tape carried",
    "carried",
    "released",
    "tape rebound",
    "learners_left disconnected",
    "learners_left WriteTimeout",
    "learners_left NonFinite",
    "learners_left lease expired",
)


def play(seed: int) -> World:
    world = World(seed)
    try:
        world.run()
    except AssertionError as failure:
        story = "\n".join(world.story[-40:])
        raise AssertionError(f"seed {seed}: {failure}\n{world.config}\n{story}") from failure
    return world


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_world_keeps_its_promises_and_ends(batch: int) -> None:
    counts: Counter[str] = Counter()
    starts = 0
    for seed in range(batch, SEEDS, BATCHES):
        world = play(seed)
        counts.update(world.counts)
        starts += world.starts
    missing = [kind for kind in KINDS if counts[kind] == 0]
    assert not missing, f"never happened: {missing}"
    assert starts > SEEDS // BATCHES, "no syncer was ever killed or stopped"


def test_a_seed_replays_its_world() -> None:
    one, other = play(7), play(7)
    assert one.story == other.story
    assert one.counts == other.counts
