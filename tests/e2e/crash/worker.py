"""A learner in a process of its own, each of whose local steps leaves a mark that can be found again.

The model is one vector. Each local step of a learner, in whichever of its lives, adds 1 to one value that no
other step of any learner touches. With plain averaging of a single learner its final value says how often
that step was merged. After every boundary the model and the resume record are saved; the process then may
kill itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from yeto_learner import Learner
from yeto_learner.core.boundary import Answer

LEARNERS = 2  # at most: their marks stand in turn
SIZE = 1 << 16
PACE_S = 0.01


class Diary:
    """Files of this learner: every step that was begun, every boundary, and the newest whole save."""

    def __init__(self, folder: Path, learner: int) -> None:
        self._folder = folder
        self._learner = learner
        self._steps = (folder / "steps").open("a+")
        self._steps.seek(0)
        self.begun = len(self._steps.readlines())
        self._boundaries = (folder / "boundaries.jsonl").open("a")

    def begin(self) -> int:
        """The mark of a step that starts now; no later life gets it again."""
        self._steps.write("x\n")
        self._steps.flush()
        self.begun += 1
        return (self.begun - 1) * LEARNERS + self._learner

    def boundary(self, **fields: Any) -> None:
        self._boundaries.write(json.dumps(fields) + "\n")
        self._boundaries.flush()

    def load(self) -> tuple[np.ndarray, list[int], str | None]:
        """Model, the steps that are in it, and the path of the record that belongs to it."""
        newest = self._folder / "newest"
        if not newest.exists():
            return np.zeros(SIZE, np.float32), [], None
        name = newest.read_text()
        with np.load(self._folder / f"{name}.model.npz") as file:
            return file["model"].copy(), file["line"].tolist(), str(self._folder / f"{name}.record.npz")

    def save(self, name: str, learner: Learner, model: np.ndarray, line: list[int]) -> None:
        """Both files, then the word that they count; the ones before are removed."""
        learner.save_state(self._folder / f"{name}.record.npz")
        np.savez(self._folder / f"{name}.model.npz", model=model, line=np.array(line))
        part = self._folder / "newest.tmp"
        part.write_text(name)
        part.replace(self._folder / "newest")
        for old in self._folder.glob("*.npz"):
            if not old.name.startswith(f"{name}."):
                old.unlink()


def watch(learner: Learner) -> list[Answer]:
    """The list that gets every answer as it is handed to the sender."""
    found: list[Answer] = []
    submit = learner._exporter.submit

    def noted(answer: Answer, delta: Any) -> None:
        found.append(answer)
        submit(answer, delta)

    learner._exporter.submit = noted  # type: ignore[method-assign]  # to look, not to change
    return found


def marking_learner(address: str, learner_id: int, model: np.ndarray, record: str | None) -> Learner:
    """A learner of one avg fragment in f32, which sends what it marked without blending or rounding."""
    return Learner(
        {"w": model},
        address,
        learner_id=learner_id,
        num_fragments=1,
        avg_name_regex="w",
        dtype="f32",
        num_streams=1,
        merge_alpha=0.0,
        session_contract="marks",
        min_local_steps=3,
        resume=record,
        init_probe_s=60.0,
        initial_cut_timeout_s=300.0,
        connect_timeout_s=300.0,
        finalization_timeout_s=300.0,
    )


def main(job: dict[str, Any]) -> None:
    diary = Diary(Path(job["folder"]), job["learner"])
    model, line, record = diary.load()
    learner = marking_learner(job["address"], job["learner"], model, record)
    handed_out = watch(learner)
    with learner:
        # After the first broadcast of this life was installed, and before anything else.
        held = [mark for mark in line if model[mark]]
        (Path(job["folder"]) / f"opened{job['life']}").write_text(json.dumps([learner.versions[0], held]))
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
            diary.boundary(
                life=job["life"],
                local=learner.local_step,
                version=state.version,
                pushed=state.pushed,
                ids=line[len(line) - state.c_steps :],
                handed_out=[
                    {"base": answer.base_version, "ids": line[len(line) - answer.c_steps :]}
                    for answer in handed_out
                ],
            )
            handed_out.clear()
            diary.save(str(number), learner, model, line)
            death = job["death"]
            if (
                death is not None
                and learner.local_step >= death["after"]
                and state.pushed == death["pushed"]
                and state.c_steps >= 2
            ):
                os.kill(os.getpid(), signal.SIGKILL)
        learner.finish()
        np.save(Path(job["folder"]) / "final.npy", model)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
