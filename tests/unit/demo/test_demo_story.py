"""What is read from a growing tape and from the workers' lines."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.demo.stories import record, story
from yeto_learner.demo.story import Round, TapeFollower, Trainee


def test_a_growing_tape_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    follower = TapeFollower(path)
    assert list(follower.records()) == []
    one, two = (json.dumps(record(step, {0: 7})) for step in (1, 2))
    path.write_text(one + "\n" + two[:30])
    assert [each["step"] for each in follower.records()] == [1]
    assert list(follower.records()) == []
    path.write_text(one + "\n" + two + "\n" + json.dumps({"event": "push_refused", "step": 2}) + "\n")
    assert [each["step"] for each in follower.records()] == [2]


def test_a_round_keeps_who_was_asked_and_who_answered() -> None:
    one = Round.from_record(record(6, {0: 7, 2: 9}, {0: 7, 1: 8, 2: 9}))
    assert one.responders == {0, 2}
    assert one.expected == ((0, 7), (1, 8), (2, 9))
    assert (one.step, one.fragment) == (6, 1)


def test_lives_are_told_apart_by_the_generation() -> None:
    told = story()
    assert told.lives(0) == [list(range(1, 13))]
    assert told.lives(1) == [[1, 2, 3, 4], [7, 8, 9, 10, 11, 12]]
    assert told.versions(4) == [9, 10, 11, 12]


def test_a_second_life_goes_on_where_the_others_are() -> None:
    trainee = Trainee("learner 1")
    trainee.hear({"kind": "progress", "step": 30, "loss": 3.0, "bytes_per_s": 1.0})
    trainee.reborn(offset=50)
    assert (trainee.total_steps, trainee.steps, trainee.status) == (30, 0, "starting")
    trainee.hear({"kind": "joined"})
    assert trainee.status == "joined"
    trainee.hear({"kind": "progress", "step": 10, "loss": 2.0, "bytes_per_s": 1.0})
    trainee.hear({"kind": "held_out", "step": 10, "loss": 2.5})
    trainee.hear({"kind": "done", "step": 14})
    assert trainee.training.x == [30, 60]
    assert trainee.training.breaks == [1]
    assert trainee.held_out.x == [60]
    assert trainee.total_steps == 44
    assert story().step_now(victim=1) == 70
