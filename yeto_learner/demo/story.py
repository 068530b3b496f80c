"""What happened in a run: the rounds from the event tape, the learners' reports, and what is derived from
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One learner's part in a merge."""

    learner: int
    generation: int
    staleness: int
    steps: int


@dataclass(frozen=True)
class Round:
    """A merge record of the event tape."""

    step: int
    fragment: int
    expected: tuple[tuple[int, int], ...]
    """(learner, generation) of those that were asked."""
    answers: tuple[Answer, ...]
    milliseconds: float

    @property
    def responders(self) -> frozenset[int]:
        return frozenset(answer.learner for answer in self.answers)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Round:
        return cls(
            step=record["step"],
            fragment=record["fragment"],
            expected=tuple((member["id"], member["generation"]) for member in record["expected_members"]),
            answers=tuple(
                Answer(row["id"], row["generation"], row["staleness"], row["c_steps"])
                for row in record["responders"]
            ),
            milliseconds=record["ms"],
        )


class TapeFollower:
    """Reads the merge records of an event tape as they are written. A line that is not complete yet is left
    alone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def records(self) -> Iterator[dict[str, Any]]:
        """New merge records since the last call. A tape that is not there yet has none."""
        try:
            with self._path.open("rb") as tape:
                tape.seek(self._offset)
                data = tape.read()
        except FileNotFoundError:
            return
        complete = data.rfind(b"\n") + 1
        self._offset += complete
        for line in data[:complete].splitlines():
            record = json.loads(line)
            # The tape holds other records too (refused pushes, for one); only a merge has responders.
            if isinstance(record.get("responders"), list):
                yield record


@dataclass
class Curve:
    """A measured line: x in local steps, y in nats per byte."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    """Numbers of the points before which the line is interrupted."""

    def add(self, x: float, y: float) -> None:
        self.x.append(x)
        self.y.append(y)


@dataclass
class Trainee:
    """One learner or baseline, over all its lives."""

    name: str
    training: Curve = field(default_factory=Curve)
    held_out: Curve = field(default_factory=Curve)
    status: str = "starting"
    steps: int = 0
    """Local steps of the present life."""
    offset: int = 0
    """Where the present life starts on the x axis: what the others had done by then."""
    past_steps: int = 0
    bytes_per_s: float = 0.0

    @property
    def total_steps(self) -> int:
        return self.past_steps + self.steps

    def reborn(self, offset: int) -> None:
        self.past_steps += self.steps
        self.steps, self.offset, self.bytes_per_s, self.status = 0, offset, 0.0, "starting"
        for curve in (self.training, self.held_out):
            curve.breaks.append(len(curve.x))

    def hear(self, message: Mapping[str, Any]) -> None:
        """Takes one line of a worker."""
        kind = message["kind"]
        if kind == "progress":
            self.steps = message["step"]
            self.bytes_per_s = message["bytes_per_s"]
            self.training.add(self.offset + self.steps, message["loss"])
            self.status = "training"
        elif kind == "held_out":
            self.held_out.add(self.offset + message["step"], message["loss"])
        elif kind == "done":
            self.steps = message["step"]
            self.status = "done"
        else:
            self.status = str(kind)


@dataclass
class Story:
    """Everything that view, checks and report tell."""

    rounds_planned: int
    learners: list[Trainee]
    alone_shard: Trainee = field(default_factory=lambda: Trainee("alone, one shard"))
    alone_full: Trainee = field(default_factory=lambda: Trainee("alone, all text"))
    rounds: list[Round] = field(default_factory=list)
    phase: str = ""
    notes: list[tuple[float, str]] = field(default_factory=list)
    killed_after: int | None = None
    returned_at: int | None = None
    before: float = float("nan")
    merged: float = float("nan")
    alone_on_shard: float = float("nan")
    alone_on_full: float = float("nan")
    alone_steps: int = 0
    seconds: float = 0.0

    def step_now(self, victim: int) -> int:
        """How many local steps a learner that was never away has made."""
        return max(one.offset + one.steps for index, one in enumerate(self.learners) if index != victim)

    def versions(self, fragments: int) -> list[int]:
        """The version of every fragment: the step of its last merge."""
        result = [0] * fragments
        for one in self.rounds:
            result[one.fragment] = one.step
        return result

    def lives(self, learner: int) -> list[list[int]]:
        """The rounds that a learner answered, one list for each of its connections, in order of
        appearance.
        """
        steps: dict[int, list[int]] = {}
        for one in self.rounds:
            for answer in one.answers:
                if answer.learner == learner:
                    steps.setdefault(answer.generation, []).append(one.step)
        return list(steps.values())
