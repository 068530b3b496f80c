"""One training process of the demo: a learner of the run, or a lone baseline.

    python -m yeto_learner.demo.worker TASK [GATE]        TASK: `settings.Task` as JSON

Each line of standard output is a JSON object with `kind`: "ready" once model and text are loaded, "joined"
when a learner is connected and has the first parameters, "progress" and "held_out" (the loss on held-out
text) now and then, and "done" after the final parameters were written to `Task.output` as an `.npz` of named
float32 arrays. With the number of an inherited file as GATE it says "loaded" before all that, and goes on at
the end of that file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

import numpy as np

from yeto_learner import Learner
from yeto_learner.demo.model import Parameters
from yeto_learner.demo.settings import Task
from yeto_learner.demo.text import load_corpus
from yeto_learner.demo.trainer import Batches, make_trainer
from yeto_proto.errors_base import YetoError

REPORT_EVERY = 10
"""Local steps between two "progress" lines."""


class Worker:
    """Trains on one text and reports; what it does between steps is up to the role."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._settings = task.settings
        corpus = load_corpus(self._settings.learners)
        text = corpus.full if task.text < 0 else corpus.shards[task.text]
        self._held_out = corpus.held_out
        self.parameters: Parameters = self._settings.model.init(self._settings.seed)
        # A learner that comes back draws other batches than in its first life.
        seed = (self._settings.seed, task.text + 1, task.life)
        batches = Batches(self._settings.model, text, self._settings.batch, seed)
        self._trainer = make_trainer(self._settings, self.parameters, batches)
        self._loss = 0.0
        self._mark = (time.monotonic(), 0)

    def run(self) -> None:
        report("ready")
        steps = 0
        for _ in self._boundaries():
            loss = self._trainer.step()
            steps += 1
            self._loss = loss if steps == 1 else 0.9 * self._loss + 0.1 * loss
            if steps % REPORT_EVERY == 0:
                self._report_progress(steps)
        np.savez(self._task.output, allow_pickle=False, **self.parameters)
        report("done", step=steps)

    def _boundaries(self) -> Iterator[None]:
        """Yields before every local step; leaves `parameters` final when it ends."""
        if self._task.role == "alone":
            for _ in range(self._task.steps):
                yield
            return
        yield from self._learn()

    def _learn(self) -> Iterator[None]:
        settings = self._settings
        learner = Learner(
            self.parameters,
            self._task.address,
            learner_id=self._task.learner_id,
            num_fragments=settings.fragments,
            dtype=settings.dtype,
            num_streams=settings.streams,
            session_contract=bytes.fromhex(self._task.contract),
            min_local_steps=settings.min_local_steps,
        )
        with learner:
            report("joined")
            while not learner.done:
                yield
                learner.step(tokens=settings.batch)
            learner.finish()

    def _report_progress(self, steps: int) -> None:
        now, (then, before) = time.monotonic(), self._mark
        self._mark = (now, steps)
        bytes_per_s = (steps - before) * self._settings.batch / (now - then)
        report("progress", step=steps, loss=self._loss, bytes_per_s=bytes_per_s)
        if steps % self._settings.evaluate_every == 0:
            limit = self._settings.evaluate_windows
            loss = self._settings.model.loss(self.parameters, self._held_out, limit)
            report("held_out", step=steps, loss=loss)


def report(kind: str, **fields: float) -> None:
    """Print one line for the process that started this one."""
    print(json.dumps({"kind": kind, **fields}), flush=True)


def main() -> int:
    """Do the task of the command line; the exit code."""
    try:
        worker = Worker(Task.from_json(sys.argv[1]))
        if len(sys.argv) > 2:
            report("loaded")
            os.read(int(sys.argv[2]), 1)
        worker.run()
    except (YetoError, RuntimeError, OSError) as error:  # RuntimeError: the syncer refused this learner
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
