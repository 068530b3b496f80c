"""A learner as in worker.py that saves once, hands out a delta of what it saved, and dies before its next
save: the window that only the journal beside its record covers."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.crash.worker import Diary, marking_learner, watch

PACE_S = 0.01


def main(job: dict[str, Any]) -> None:
    """`until`: "merged", the broadcast that holds the delta was installed; "handed out"; or None, to the end
    of the run."""
    folder = Path(job["folder"])
    diary = Diary(folder, 0)
    model, line, record = diary.load()
    learner = marking_learner(job["address"], 0, model, record)
    handed_out = watch(learner)
    saved: int | None = None  # the version that the saved progress is based on
    with learner:
        client = learner.client
        while not learner.done:
            client.wait_for(
                lambda: client.has_pulls or client.has_updates or client.finalizing.is_set(), PACE_S
            )
            number = diary.begin()
            model[number] += 1.0
            line.append(number)
            learner.step(tokens=1)
            state = learner.save_state().fragments[0]
            assert state is not None
            if job["until"] is None:
                handed_out.clear()
                continue
            if saved is None and state.version > 0 and state.c_steps == 2 and not state.pushed:
                saved = state.version
                diary.save(str(number), learner, model, line)
                diary.boundary(life=job["life"], saved=line[-2:], version=saved)
                handed_out.clear()
            if saved is None or all(answer.base_version != saved for answer in handed_out):
                continue
            if job["until"] == "handed out" or state.version > saved:
                os.kill(os.getpid(), signal.SIGKILL)
        learner.finish()
        np.save(folder / "final.npy", model)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
