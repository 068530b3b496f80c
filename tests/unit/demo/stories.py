"""Made-up runs for the tests of view, checks and report."""

from __future__ import annotations

from typing import Any

from yeto_learner.demo.story import Round, Story, Trainee


def record(
    step: int, answers: dict[int, int], expected: dict[int, int] | None = None, **more: Any
) -> dict[str, Any]:
    """A merge record of the tape. `answers` and `expected` map learners to their generations."""
    asked = answers if expected is None else expected
    return {
        "step": step,
        "fragment": (step - 1) % 4,
        "attempt": 1,
        "ms": 12,
        "gnorm": 0.5,
        "expected_members": [{"id": learner, "generation": value} for learner, value in asked.items()],
        "responders": [
            {"id": learner, "generation": value, "staleness": step % 2, "c_steps": 24, "c_tokens": 6144}
            for learner, value in answers.items()
        ],
        **more,
    }


def story(rounds: int = 12) -> Story:
    """Learner 1 is killed after round 4, misses 5 and 6, and is back in round 7 with another generation."""
    result = Story(rounds, [Trainee(f"learner {learner}") for learner in range(3)])
    for step in range(1, rounds + 1):
        answers = {0: 10, 1: 11, 2: 12}
        expected = dict(answers)
        if step == 5:
            del answers[1]
        elif step == 6:
            del answers[1], expected[1]
        elif step > 6:
            answers[1] = expected[1] = 99
        result.rounds.append(Round.from_record(record(step, answers, expected)))
    for index, trainee in enumerate((*result.learners, result.alone_shard, result.alone_full)):
        for step in range(10, 80, 10):
            trainee.hear(
                {"kind": "progress", "step": step, "loss": 5 - step / 20 + index / 10, "bytes_per_s": 3e4}
            )
        trainee.hear({"kind": "held_out", "step": 70, "loss": 2.5 + index / 10})
    result.killed_after, result.returned_at = 4, 7
    result.before, result.merged, result.alone_on_shard, result.alone_on_full = 5.5, 1.5, 2.0, 1.7
    result.seconds = 12.0
    return result
