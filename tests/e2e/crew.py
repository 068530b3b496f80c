"""Learners on threads that train until they are told to leave, for tests that look on."""

from __future__ import annotations

import threading

from tests.e2e.test_learner_real_syncer import parameters
from yeto_learner import Learner

WAIT = 300.0


class Crew:
    """A context manager. The deltas never come to rest, so a run may go on for as long as a test looks.

    With `hold_at` nobody goes on from this global step before `may_pass` is set: a run that needs them all
    cannot be over before the test has seen what it wants to see.
    """

    def __init__(self, hold_at: int | None = None) -> None:
        self.hold_at = hold_at
        self.may_pass = threading.Event()
        self.steps: dict[int, int] = {}
        self._leave: dict[int, threading.Event] = {}
        self._threads: dict[int, threading.Thread] = {}
        self.errors: list[BaseException] = []

    def start(self, address: str, *numbers: int, **options: object) -> None:
        """Learners of these ids join."""
        for number in numbers:
            self._leave[number] = threading.Event()
            arguments = (address, number, self._leave[number], options)
            self._threads[number] = threading.Thread(target=self._train, args=arguments)
            self._threads[number].start()

    def _train(self, address: str, number: int, leave: threading.Event, options: dict[str, object]) -> None:
        arrays = parameters(number)
        settings: dict[str, object] = {"num_fragments": 3, "num_streams": 2, "session_contract": "a test"}
        learner = Learner(arrays, address, learner_id=number, **{**settings, **options})
        try:
            with learner:
                while not learner.done and not leave.wait(0.002):
                    if self.hold_at is not None and learner.global_step >= self.hold_at:
                        self.may_pass.wait(WAIT)
                    for array in arrays.values():
                        array += 0.01 * (number + 1)
                    learner.step(tokens=16)
                    self.steps[number] = learner.global_step
                if learner.done:
                    learner.finish()
        except (RuntimeError, OSError) as error:
            self.errors.append(error)

    def leave(self, number: int) -> None:
        """One learner goes; returns when it has gone."""
        self.may_pass.set()
        self._leave[number].set()
        self._threads[number].join(WAIT)
        assert not self._threads[number].is_alive(), "a learner hangs"

    def finished(self) -> None:
        """The run has ended by itself, and everybody with it."""
        for thread in self._threads.values():
            thread.join(WAIT)
            assert not thread.is_alive(), "a learner hangs"
        assert not self.errors, self.errors

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._leave:
            self.leave(number)
