"""Records of an event tape as sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from yeto_syncer.tape_file import COMMIT, Record, kind_of
from yeto_syncer.tape_summary import PHASES

__all__ = ["tell"]


def tell(record: Record) -> str:
    """A record as a sentence, without its time."""
    return _TELL.get(kind_of(record), _other_line)(record)


def _commit_line(record: Record) -> str:
    answers = record["responders"]
    lags = sorted({answer["staleness"] for answer in answers})
    answered = {answer["id"] for answer in answers}
    missed = [member["id"] for member in record["expected_members"] if member["id"] not in answered]
    parts = [
        f"step {record['step']} fragment {record['fragment']}: "
        f"{len(answers)} of {len(record['expected_members'])} answered"
    ]
    if missed:
        parts.append(f"missed by {', '.join(map(str, missed))}")
    if lags and lags[-1]:
        parts.append(f"staleness {'-'.join(map(str, sorted({lags[0], lags[-1]})))}")
    if record["attempt"] > 1:
        parts.append(f"attempt {record['attempt']}")
    if "ms" in record:
        parts.append(f"{record['ms']} ms")
    return ", ".join(parts)


def _start_line(record: Record) -> str:
    how = "resumed" if record["resumed"] else "started"
    return (
        f"{how} at step {record['step']} of {record['total_steps']}: {record['learners']} learners, "
        f"quorum {record['quorum']}, {record['fragments']} fragments"
    )


def _recovery_line(record: Record) -> str:
    phases = ", ".join(f"{phase.replace('_', '-')} {record[f'{phase}_ms']} ms" for phase in PHASES)
    return f"learner {record['id']} is back with step {record['step']}: {phases}"


def _other_line(record: Record) -> str:
    pairs = (f"{key} {value}" for key, value in record.items() if key not in ("event", "time"))
    return f"{kind_of(record).replace('_', ' ')}: {', '.join(pairs)}"


def _who(record: Record) -> str:
    return f"learner {record['id']}"


def _where(record: Record) -> str:
    return f"step {record['step']} attempt {record['attempt']}"


_TELL: Final[dict[str, Callable[[Record], str]]] = {
    COMMIT: _commit_line,
    "run_started": _start_line,
    "run_ended": lambda record: f"ended with exit code {record['code']}: {record['message']}",
    "learner_joined": lambda record: f"{_who(record)} joined, generation {record['generation']}",
    "learner_left": lambda record: (
        f"{_who(record)} left, generation {record['generation']}: {record['reason']}"
    ),
    "late_join": lambda record: f"{_who(record)} was pulled into {_where(record)}",
    "rebound": lambda record: f"{_who(record)} took over its slot in {_where(record)}",
    "rejected": lambda record: (
        f"{_who(record)}: an answer to step {record['step']} was dropped, {record['reason']}"
    ),
    "attempt_discarded": lambda record: f"{_where(record)} was given up with {record['answers']} answers",
    "round_dropped": lambda record: f"{_where(record)} was dropped with {record['answers']} answers",
    "recovery": _recovery_line,
}
