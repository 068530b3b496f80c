"""The demo itself: a real syncer, three real learners, one of them killed; then two lone baselines; then the
checks.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from yeto_learner.demo.crew import Child, Crew
from yeto_learner.demo.folder import DemoError, Folder
from yeto_learner.demo.model import Parameters
from yeto_learner.demo.promises import Evidence, Promise, check, named
from yeto_learner.demo.settings import Settings, Task
from yeto_learner.demo.story import Round, Story, TapeFollower, Trainee
from yeto_learner.demo.text import Corpus, load_corpus
from yeto_learner.demo.view import View
from yeto_proto.console.signals import SignalGuard
from yeto_proto.errors_base import YetoError
from yeto_proto.files import read_snapshot
from yeto_proto.layout import Layout, build_layout

POLL_S = 0.05
STALL_S = 120.0
"""A demo that hears nothing new for this long gives up."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    story: Story
    promises: list[Promise]
    layout: Layout

    @property
    def kept(self) -> bool:
        return all(promise.kept for promise in self.promises)


class Demo:
    """One run. `run` raises DemoError when it cannot be brought to its end, and leaves no process behind."""

    def __init__(
        self, settings: Settings, folder: Folder, port: int, story: Story, view: View, guard: SignalGuard
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._port = port
        self._view = view
        self._guard = guard
        self._story = story
        self._tape = TapeFollower(folder.tape)
        self._contract = secrets.token_hex(32)  # fresh: this run continues no other
        self._address = ""
        self._syncer: Child | None = None
        self._learners: dict[int, Child] = {}
        self._spare_loaded = False
        self._start = time.monotonic()
        self._moved = self._start

    def run(self) -> Result:
        try:
            corpus = load_corpus(self._settings.learners)
        except (ModuleNotFoundError, ValueError) as error:
            # Some distributions ship Python without its documentation.
            advice = "install the whole standard library (Debian: libpython3-stdlib)"
            raise DemoError(f"the demo's text cannot be read: {error}", "pydoc_data", advice) from error
        first = self._settings.model.init(self._settings.seed)
        layout = build_layout({name: value.shape for name, value in first.items()}, self._settings.fragments)
        self._folder.layout.write_text(layout.to_json() + "\n")
        self._phase("measuring the untrained model")
        self._story.before = self._measure(first, corpus)

        crew = Crew(self._guard, self._folder.logs)
        with crew.running():
            syncer = self._start_syncer(crew)
            self._train(crew, syncer)
            self._train_alone(crew)

        self._phase("comparing")
        try:
            return self._compare(corpus, first, layout, syncer)
        except (OSError, YetoError) as error:
            raise DemoError(f"the run left unreadable files: {error}", str(self._folder.root)) from error

    def _compare(self, corpus: Corpus, first: Parameters, layout: Layout, syncer: Child) -> Result:
        """Measures what was trained and checks the promises, from the files alone."""
        snapshot = read_snapshot(self._folder.checkpoint)
        fragments = [fragment.params for fragment in snapshot.fragments]
        merged = {name: values.reshape(first[name].shape) for name, values in named(layout, fragments)}
        self._story.merged = self._measure(merged, corpus)
        self._story.alone_on_shard = self._measure(_load(self._alone_file("shard")), corpus)
        self._story.alone_on_full = self._measure(_load(self._alone_file("all")), corpus)
        self._story.seconds = self._clock()
        promises = check(
            Evidence(
                settings=self._settings,
                layout=layout,
                story=self._story,
                snapshot=snapshot,
                learners=[_load(self._folder.learner(learner)) for learner in range(self._settings.learners)],
                checkpoint=self._folder.checkpoint,
                final_state=self._folder.final_state,
                syncer_exit=syncer.exit_code if syncer.exit_code is not None else -1,
            )
        )
        return Result(self._story, promises, layout)

    def _measure(self, parameters: Parameters, corpus: Corpus) -> float:
        return self._settings.model.loss(parameters, corpus.held_out, self._settings.measure_windows)

    # -- phases

    def _start_syncer(self, crew: Crew) -> Child:
        self._phase("starting the syncer")
        settings, folder = self._settings, self._folder

        def on_line(line: str) -> None:
            prefix = "listening on "
            if line.startswith(prefix):
                self._address = line.removeprefix(prefix).strip()

        arguments: dict[str, object] = {
            "--learners": settings.learners,
            "--quorum": settings.quorum,
            "--total-steps": settings.rounds,
            "--port": self._port,
            "--preset": "training",
            "--sync-interval-steps": settings.inner_steps,
            "--outer-lr": settings.outer_rate,
            "--outer-momentum": settings.outer_momentum,
            # Room for a learner that the operating system held up for some steps of a few milliseconds.
            "--grace-ms": 1000,
            "--grace-tau": settings.inner_steps,
            "--quorum-timeout-s": 30,
            "--checkpoint-path": folder.checkpoint,
            "--final-state": folder.final_state,
            "--event-tape": folder.tape,
        }
        flags = [str(part) for pair in arguments.items() for part in pair]
        self._syncer = crew.start("syncer", "yeto_syncer", flags, on_line)
        self._wait(crew, lambda: bool(self._address), "the syncer to listen")
        return self._syncer

    def _train(self, crew: Crew, syncer: Child) -> None:
        self._phase("starting the learners")
        victim = self._settings.victim
        # The one that comes back is loaded before the others begin: on a busy machine that can take longer
        # than the rest of the run.
        spare = self._start_learner(crew, victim, life=1)
        self._wait(crew, lambda: self._spare_loaded, "a spare learner to load")
        for learner in range(self._settings.learners):
            self._learners[learner] = self._start_learner(crew, learner, life=0)
        self._wait(crew, lambda: bool(self._story.rounds), "the first round")
        self._phase("training")
        self._wait(crew, lambda: len(self._story.rounds) >= self._settings.kill_at, "the round of the kill")
        self._kill(victim)
        # Back only after the tape shows that the others went on without it.
        self._wait(crew, lambda: self._missed(victim), "a round without the killed learner")
        self._story.learners[victim].reborn(self._story.step_now(victim))
        self._learners[victim] = spare
        spare.let_go()
        self._note(f"learner {victim} started again")
        self._wait(
            crew,
            lambda: len(self._story.lives(victim)) > 1 or len(self._story.rounds) == self._settings.rounds,
            "the killed learner to answer again",
        )
        lives = self._story.lives(victim)
        if len(lives) < 2:
            what = f"the run was over before learner {victim} was back"
            raise DemoError(what, str(self._folder.tape), "run it again when the machine is less busy")
        self._story.returned_at = lives[1][0]
        self._note(f"learner {victim} answered again in round {self._story.returned_at}")
        self._wait(crew, lambda: len(self._story.rounds) == self._settings.rounds, "the last round")
        self._phase("final cut")
        self._wait(crew, lambda: syncer.exit_code is not None, "the syncer to end")
        self._wait(crew, lambda: not self._learners, "the learners to end")

    def _train_alone(self, crew: Crew) -> None:
        """The baselines run side by side, after the run: nothing else then competes for the cores."""
        steps = self._story.alone_steps = max(one.total_steps for one in self._story.learners)
        self._phase(f"two learners alone, {steps} steps each")
        baselines = (
            ("shard", self._settings.victim, self._story.alone_shard),
            ("all", -1, self._story.alone_full),
        )
        running = []
        for name, text, trainee in baselines:
            task = Task("alone", text, self._alone_file(name), self._settings, steps=steps)
            running.append(self._start_worker(crew, f"alone-{name}", task, trainee))
        self._wait(crew, lambda: all(child.exit_code == 0 for child in running), "the baselines")

    # -- parts

    def _start_learner(self, crew: Crew, learner: int, life: int) -> Child:
        task = Task(
            "learner",
            learner,
            self._folder.learner(learner),
            self._settings,
            address=self._address,
            learner_id=learner,
            contract=self._contract,
            life=life,
        )
        name = f"learner-{learner}" + ("-again" if life else "")
        return self._start_worker(crew, name, task, self._story.learners[learner], gated=life > 0)

    def _start_worker(
        self, crew: Crew, name: str, task: Task, trainee: Trainee, *, gated: bool = False
    ) -> Child:
        def on_line(line: str) -> None:
            message = json.loads(line)
            if message["kind"] == "loaded":
                self._spare_loaded = True
            else:
                trainee.hear(message)
            self._moved = time.monotonic()

        return crew.start(name, "yeto_learner.demo.worker", [task.to_json()], on_line, gated=gated)

    def _kill(self, victim: int) -> None:
        child = self._learners.pop(victim)
        child.expected_to_die = True
        child.kill()
        self._story.killed_after = self._story.rounds[-1].step
        self._story.learners[victim].status = "killed"
        self._note(f"learner {victim} killed after round {self._story.killed_after}")

    def _missed(self, victim: int) -> bool:
        last = self._story.rounds[-1]
        return last.step > (self._story.killed_after or 0) and victim not in last.responders

    def _wait(self, crew: Crew, done: Callable[[], bool], what: str) -> None:
        """Lets the run go on until `done`. Raises DemoError when a process ends badly or nothing moves."""
        self._moved = time.monotonic()
        while not done():
            for child in crew.poll(POLL_S):
                self._ended(child)
            for record in self._tape.records():
                self._story.rounds.append(Round.from_record(record))
                self._moved = time.monotonic()
            self._view.update()
            if (
                self._syncer
                and self._syncer.exit_code is not None
                and len(self._story.rounds) < self._settings.rounds
            ):
                raise DemoError(
                    f"the syncer ended after {len(self._story.rounds)} of {self._settings.rounds} rounds",
                    str(self._syncer.log),
                    "look at this log",
                )
            if time.monotonic() - self._moved > STALL_S:
                raise DemoError(
                    f"nothing moved for {STALL_S:.0f} s while waiting for {what}",
                    str(self._folder.logs),
                    "look at the logs there",
                )

    def _ended(self, child: Child) -> None:
        self._learners = {learner: one for learner, one in self._learners.items() if one is not child}
        if child.exit_code == 0 or child.expected_to_die:
            return
        words = child.last_words()
        if words.startswith("error: "):  # already in the form what; where; what to do
            raise DemoError(f"{child.name}: {words.removeprefix('error: ')}")
        raise DemoError(
            f"{child.name} ended with exit code {child.exit_code}: {words}",
            str(child.log),
            "look at this log",
        )

    def _alone_file(self, name: str) -> Path:
        return self._folder.parameters / f"alone-{name}.npz"

    def _phase(self, text: str) -> None:
        self._story.phase = text
        self._view.phase(text)

    def _note(self, text: str) -> None:
        self._story.notes.append((self._clock(), text))
        self._view.note(text)

    def _clock(self) -> float:
        return time.monotonic() - self._start


def _load(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}
