"""What the records of an event tape add up to on a page: learners, recent rounds, events, curves. No clock.

The status page of a running server and `yeto-tape report` both show a `Board`. The server adds what no record
tells: rounds in flight, step rates, checkpoints, memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from yeto_proto.files import expected_version
from yeto_syncer.tape_file import COMMIT, Record, kind_of
from yeto_syncer.tape_words import tell

RECENT_ROUNDS = 40
RECENT_EVENTS = 60
RECENT_RATES = 9
"""Answers of a learner whose step rates are compared; the median of them is shown."""

CURVE_POINTS = 400
"""Rounds kept for the curves, which are about 500 pixels wide. Beyond twice as many, every second one is
dropped."""

CURVE_LEARNERS = 8
"""Learners whose staleness is drawn: those with the lowest ids, one for each colour of the page."""

QUIET = frozenset({COMMIT, "late_join", "rebound", "rejected"})
"""Kinds that are shown as rounds and numbers: as events they would push all others out."""


@dataclass(slots=True)
class LearnerRow:
    """One learner over all its connections."""

    state: str = "unknown"
    generation: int | None = None
    since: float | None = None
    reason: str | None = None
    joins: int = 0
    asked: int = 0
    answered: int = 0
    rejected: int = 0
    share: float = 0.0
    staleness: int | None = None
    last_step: int | None = None
    last_at: float | None = None
    missed_in_a_row: int = 0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_RATES))
    answers: dict[int, float] = field(default_factory=dict)
    """When it last answered for each fragment."""

    @property
    def rate(self) -> float | None:
        """Inner steps a second, by its answers."""
        return median(self.rates) if self.rates else None


class Board:
    """Takes the records of a tape in their order; `add` never fails for a record of the specification."""

    def __init__(self) -> None:
        self.learners: dict[int, LearnerRow] = {}
        self.versions: list[int] = []
        self.rounds: deque[dict[str, Any]] = deque(maxlen=RECENT_ROUNDS)
        self.events: deque[dict[str, Any]] = deque(maxlen=RECENT_EVENTS)
        self.curves: list[dict[str, Any]] = []
        self.rejections: dict[str, int] = {}
        self.expected: int | None = None
        self.quorum: int | None = None
        self.total_steps: int | None = None
        self.step = 0
        self.started_at: float | None = None
        self.last_at: float | None = None
        self.processes = 0
        self.ended: dict[str, Any] | None = None
        self._commits: deque[tuple[float, int]] = deque(maxlen=RECENT_ROUNDS)
        self._stride = 1
        self._seen = 0

    def add(self, record: Record) -> None:
        """Take the next record."""
        kind = kind_of(record)
        at = record.get("time")
        self.last_at = at if at is not None else self.last_at
        match kind:
            case "run_started":
                self._start(record, at)
            case "run_ended":
                self.ended = {"code": record["code"], "message": record["message"]}
            case "learner_joined":
                row = self._row(record)
                row.state, row.generation, row.since, row.reason = "connected", record["generation"], at, None
                row.joins += 1
            case "learner_left":
                self._left(record, at)
            case "rejected":
                self._row(record).rejected += 1
                self.rejections[record["reason"]] = self.rejections.get(record["reason"], 0) + 1
            case "commit":
                self._commit(record, at)
        if kind not in QUIET:
            self.events.append({"at": at, "kind": kind, "text": tell(record)})

    def rate(self, until: float | None = None) -> float | None:
        """Outer steps a second over the recent rounds, up to the moment `until`, else to the last commit."""
        if len(self._commits) < 2:
            return None
        (first_at, first), (last_at, last) = self._commits[0], self._commits[-1]
        span = max(last_at, until or last_at) - first_at
        return (last - first) / span if span > 0 else None

    def _row(self, record: Record) -> LearnerRow:
        return self.learners.setdefault(record["id"], LearnerRow())

    def _start(self, record: Record, at: float | None) -> None:
        self.processes += 1
        self.ended = None
        self.started_at = self.started_at if self.started_at is not None else at
        self.expected, self.quorum = record["learners"], record["quorum"]
        self.total_steps, self.step = record["total_steps"], record["step"]
        count = record["fragments"]
        self.versions = [expected_version(self.step, fragment, count) for fragment in range(count)]
        self._commits.clear()
        for row in self.learners.values():
            row.state = "away"
            row.answers.clear()

    def _left(self, record: Record, at: float | None) -> None:
        row = self._row(record)
        if row.generation != record["generation"]:
            return  # its successor is here already
        row.state, row.since, row.reason = "away", at, record["reason"]
        row.answers.clear()

    def _commit(self, record: Record, at: float | None) -> None:
        self.step = record["step"]
        fragment = record["fragment"]
        while len(self.versions) <= fragment:
            self.versions.append(0)
        self.versions[fragment] = self.step
        if at is not None:
            self._commits.append((at, self.step))
        answers = {answer["id"]: answer for answer in record["responders"]}
        asked = [member["id"] for member in record["expected_members"]]
        missed = [learner for learner in asked if learner not in answers]
        for learner in asked:
            row = self.learners.setdefault(learner, LearnerRow())
            row.asked += 1
            row.missed_in_a_row = 0 if learner in answers else row.missed_in_a_row + 1
        for learner, answer in answers.items():
            self._answer(self.learners.setdefault(learner, LearnerRow()), answer, record, at)
        bar = {
            "step": self.step,
            "fragment": fragment,
            "attempt": record["attempt"],
            "quorum": record["quorum"],
            "answered": sorted(answers),
            "missed": missed,
            "ms": record.get("ms"),
            "quorum_ms": record.get("quorum_ms"),
            "grace_ms": record.get("grace_waited_ms"),
            "commit_ms": record.get("sync_ms"),
            "at": at,
        }
        self.rounds.append(bar)
        self._curve(record, answers, bar)

    def _answer(self, row: LearnerRow, answer: Record, record: Record, at: float | None) -> None:
        if row.state == "unknown":  # the tape begins in the middle
            row.state, row.generation = "connected", answer["generation"]
        row.answered += 1
        row.share += answer.get("contribution", 0.0)
        row.staleness = answer["staleness"]
        row.last_step, row.last_at = record["step"], at
        if at is None:
            return
        before = row.answers.get(record["fragment"])
        if before is not None and at > before:
            row.rates.append(answer["c_steps"] / (at - before))
        row.answers[record["fragment"]] = at

    def _curve(self, record: Record, answers: dict[int, Record], bar: dict[str, Any]) -> None:
        self._seen += 1
        if self._seen % self._stride:
            return
        self.curves.append(
            {
                "step": bar["step"],
                "at": bar["at"],
                "ms": bar["ms"],
                "gnorm": record.get("gnorm"),
                "staleness": {
                    learner: answers[learner]["staleness"]
                    for learner in sorted(self.learners)[:CURVE_LEARNERS]
                    if learner in answers
                },
            }
        )
        if len(self.curves) >= 2 * CURVE_POINTS:
            self.curves = self.curves[1::2]
            self._stride *= 2


def state(board: Board) -> dict[str, Any]:
    """What the page shows, as JSON values; everything that the records alone can tell."""
    now = board.last_at
    return {
        "live": False,
        "now": now,
        "phase": "ended" if board.ended else "no end on the tape",
        "step": board.step,
        "total_steps": board.total_steps,
        "rate": board.rate(),
        "quorum": board.quorum,
        "expected": board.expected,
        "started_at": board.started_at,
        "processes": board.processes,
        "ended": board.ended,
        "fragments": list(board.versions),
        "learners": [learner_state(number, row) for number, row in sorted(board.learners.items())],
        "flight": [],
        "rounds": list(board.rounds),
        "events": list(board.events),
        "rejections": dict(sorted(board.rejections.items())),
        "curves": board.curves,
        "warnings": warnings(board),
    }


def learner_state(number: int, row: LearnerRow) -> dict[str, Any]:
    """One row of the table of learners."""
    return {
        "id": number,
        "state": row.state,
        "generation": None if row.generation is None else str(row.generation),  # more than JavaScript counts
        "since": row.since,
        "reason": row.reason,
        "joins": row.joins,
        "rate": row.rate,
        "staleness": row.staleness,
        "last_step": row.last_step,
        "last_at": row.last_at,
        "asked": row.asked,
        "answered": row.answered,
        "rejected": row.rejected,
        "share": row.share,
        "catch_up": None,
    }


MISSED_IN_A_ROW = 5
MANY_JOINS = 5


def warnings(board: Board, observers: Collection[int] = ()) -> list[str]:
    """What somebody should look at, in words. `observers` come and go as they like."""
    found = []
    if board.ended and board.ended["code"] != 0:
        found.append(f"The run ended with exit code {board.ended['code']}: {board.ended['message']}")
    for number, row in sorted(board.learners.items()):
        if number in observers:
            continue
        if row.state == "away" and not board.ended:
            why = f" ({row.reason})" if row.reason else ""
            found.append(f"Learner {number} is away{why}; the rounds go on without it.")
        elif row.missed_in_a_row >= MISSED_IN_A_ROW:
            found.append(
                f"Learner {number} has missed its last {row.missed_in_a_row} rounds: it is slower than the "
                "grace window allows, or its link is."
            )
        if row.joins >= MANY_JOINS:
            found.append(
                f"Learner {number} has connected {row.joins} times: its link is bad, or two processes share "
                "this id."
            )
    serious = {reason: count for reason, count in sorted(board.rejections.items()) if reason != "OutOfRound"}
    if serious:
        told = ", ".join(f"{count} {reason}" for reason, count in serious.items())
        found.append(f"Answers were dropped: {told}.")
    return found
