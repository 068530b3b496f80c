"""Islands that fail: one raises, one is killed, one never works, and one finds no room."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import ray

from yeto_learner.ray import FleetError, Island, run_fleet

folder = sys.argv[1]


def unsteady(island: Island) -> tuple[int, int]:
    if island.learner_id == 1 and island.attempt == 0:
        raise RuntimeError("out of memory, for once")
    if island.learner_id == 1 and island.attempt == 1:
        Path(folder, "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return island.learner_id, island.attempt


def hopeless(island: Island) -> str:
    if island.learner_id == 1:
        raise ValueError("never")
    return "well"


ray.init()
print("results", run_fleet(unsteady, 2, max_restarts=2))
try:
    run_fleet(hopeless, 2, max_restarts=1)
except FleetError as error:
    print(error)
    print("kept", error.results)
try:
    run_fleet(hopeless, 2, resources={"CPU": 8}, placement_timeout_s=1)
except TimeoutError as error:
    print(error)
