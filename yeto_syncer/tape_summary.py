"""What a tape tells of a run: rounds, goodput, staleness, who missed what, recoveries. Pure, in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from yeto_syncer.tape_file import Record, kind_of

__all__ = ["PHASES", "LearnerPart", "Process", "Summary", "summarize"]

PHASES = ("detect", "connect", "catch_up", "answer")
"""The phases of a recovery, in the order in which they follow one another."""


@dataclass(slots=True)
class Process:
    """One process of the syncer. Of one without a `run_started` nothing is known but its rounds."""

    started_at: float | None = None
    first_step: int | None = None
    """The global step that it started from."""
    resumed: bool = False
    rounds: int = 0
    first_commit: float | None = None
    last_commit: float | None = None
    end: str | None = None
    """Why it ended, in its own words; None when it was killed or is still running."""
    code: int | None = None
    down_s: float | None = None
    """Seconds between the last record of the process before it and its start."""


@dataclass(slots=True)
class LearnerPart:
    """What one learner has contributed, over all its connections."""

    asked: int = 0
    answered: int = 0
    rejected: int = 0
    steps: int = 0
    tokens: int = 0
    share: float = 0.0
    """Sum of its contributions, in rounds."""
    joins: int = 0
    losses: int = 0
    missed: list[int] = field(default_factory=list)
    """The outer steps that it was asked for and did not answer in time."""


@dataclass(slots=True)
class Summary:
    """Everything that is counted. `add` takes the records in the order of the tape."""

    processes: list[Process] = field(default_factory=list)
    learners: dict[int, LearnerPart] = field(default_factory=dict)
    rounds: int = 0
    repeated: int = 0
    """Commits of a step that an earlier process had committed already."""
    last_step: int = 0
    total_steps: int | None = None
    asked: int = 0
    merged: int = 0
    late: int = 0
    """Of the merged deltas those that had been carried over from an earlier round (D34)."""
    lost: int = 0
    """Accepted answers that went with a discarded attempt or a dropped round, and carried ones given up."""
    carried: int = 0
    carries_dropped: int = 0
    retries: int = 0
    dropped: int = 0
    late_joins: int = 0
    rebounds: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    round_ms: list[int] = field(default_factory=list)
    waited_ms: list[int] = field(default_factory=list)
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    _time: float | None = None

    # -- taking ----------------------------------------------------------------------------------------------

    def add(self, record: Record) -> None:
        """Take the next record."""
        kind = kind_of(record)
        time = record.get("time")
        if kind == "run_started":
            self._start(record, time)
        elif not self.processes:
            self.processes.append(Process())
        process = self.processes[-1]
        match kind:
            case "commit":
                self._commit(record, process, time)
            case "rejected":
                self.rejections[record["reason"]] += 1
                if "attempt" in record:
                    self._learner(record).rejected += 1
            case "attempt_discarded":
                self.retries += 1
                self.lost += record["answers"]
            case "round_dropped":
                self.dropped += 1
                self.lost += record["answers"]
            case "learner_joined":
                self._learner(record).joins += 1
            case "learner_left":
                self._learner(record).losses += 1
                self.losses[record["reason"]] += 1
            case "carried":
                self.carried += 1
            case "carry_dropped":
                self.carries_dropped += 1
                self.lost += 1
            case "late_join":
                self.late_joins += 1
            case "rebound":
                self.rebounds += 1
            case "recovery":
                self.recoveries.append(dict(record))
            case "run_ended":
                process.end, process.code = record["message"], record["code"]
            case _:
                pass
        if time is not None:
            self._time = time

    def _start(self, record: Record, time: float | None) -> None:
        down = None if time is None or self._time is None else max(time - self._time, 0.0)
        self.processes.append(Process(time, record["step"], record["resumed"], down_s=down))
        self.total_steps = record["total_steps"]

    def _learner(self, record: Record) -> LearnerPart:
        return self.learners.setdefault(record["id"], LearnerPart())

    def _commit(self, record: Record, process: Process, time: float | None) -> None:
        step = record["step"]
        self.rounds += 1
        self.repeated += step <= self.last_step
        self.last_step = max(self.last_step, step)
        process.rounds += 1
        if process.first_commit is None:
            process.first_commit = time
        process.last_commit = time
        if "ms" in record:
            self.round_ms.append(record["ms"])
        if record.get("grace_waited_ms") is not None:
            self.waited_ms.append(record["grace_waited_ms"])
        deltas = record["responders"]
        # A delta that was carried into this round is no answer to it.
        answers = {answer["id"] for answer in deltas if not answer.get("lag")}
        self.merged += len(deltas)
        self.late += sum(bool(answer.get("lag")) for answer in deltas)
        for member in record["expected_members"]:
            part = self._learner(member)
            self.asked += 1
            part.asked += 1
            if member["id"] not in answers:
                part.missed.append(step)
        for answer in deltas:
            part = self._learner(answer)
            part.answered += not answer.get("lag")
            part.steps += answer["c_steps"]
            part.tokens += answer["c_tokens"]
            part.share += answer["contribution"]
            self.staleness[answer["staleness"]] += 1

    # -- telling ---------------------------------------------------------------------------------------------

    @property
    def refused(self) -> int:
        """Pushes that were dropped."""
        return sum(part.rejected for part in self.learners.values())

    @property
    def goodput(self) -> float | None:
        """The share of the members' answers that were merged; the others were dropped, discarded or lost."""
        answers = self.merged + self.lost + self.refused
        return self.merged / answers if answers else None

    @property
    def answered(self) -> float | None:
        """The share of the asked members that are in the merges."""
        return (self.merged - self.late) / self.asked if self.asked else None

    @property
    def seconds(self) -> float | None:
        """From the first to the last commit of each process, summed up; None on a tape without times."""
        spans = [
            process.last_commit - process.first_commit
            for process in self.processes
            if process.first_commit is not None and process.last_commit is not None
        ]
        return sum(spans) if spans else None

    @property
    def rounds_per_s(self) -> float | None:
        """Rounds a second while processes were committing."""
        seconds = self.seconds
        intervals = sum(max(process.rounds - 1, 0) for process in self.processes)
        return intervals / seconds if seconds else None

    def phase_ms(self, phase: str) -> list[int]:
        """How long this phase of each recovery took."""
        return [recovery[f"{phase}_ms"] for recovery in self.recoveries]

    def as_json(self) -> dict[str, Any]:
        """Everything, in types of JSON."""
        return {
            "rounds": self.rounds,
            "last_step": self.last_step,
            "total_steps": self.total_steps,
            "repeated_rounds": self.repeated,
            "rounds_per_s": self.rounds_per_s,
            "seconds": self.seconds,
            "round_ms_median": median(self.round_ms) if self.round_ms else None,
            "grace_waited_ms_median": median(self.waited_ms) if self.waited_ms else None,
            "goodput": self.goodput,
            "answered_share": self.answered,
            "answers": {
                "merged": self.merged,
                "lost": self.lost,
                "rejected": self.refused,
                "asked": self.asked,
            },
            "staleness": {str(lag): self.staleness[lag] for lag in sorted(self.staleness)},
            "rejections": dict(sorted(self.rejections.items())),
            "losses": dict(sorted(self.losses.items())),
            "attempts_discarded": self.retries,
            "rounds_dropped": self.dropped,
            "carried": {"late": self.carried, "merged": self.late, "dropped": self.carries_dropped},
            "late_joins": self.late_joins,
            "rebounds": self.rebounds,
            "learners": {str(learner): _part(part) for learner, part in sorted(self.learners.items())},
            "recoveries": self.recoveries,
            "recovery_ms_median": {
                phase: median(self.phase_ms(phase)) for phase in PHASES if self.recoveries
            },
            "processes": [_process(process) for process in self.processes],
        }

    def lines(self) -> Iterator[str]:
        """The same for people."""
        yield from _table("run", self._run_rows())
        yield from _table("answers", self._answer_rows())
        yield from self._learner_lines()
        yield from self._recovery_lines()

    def _run_rows(self) -> Iterator[tuple[str, str]]:
        of = "" if self.total_steps is None else f" of {self.total_steps}"
        again = f", {self.repeated} of them again after a restart" if self.repeated else ""
        yield "rounds", f"{self.rounds}, up to step {self.last_step}{of}{again}"
        if self.rounds_per_s is not None:
            yield "rounds/s", f"{self.rounds_per_s:.3g} over {self.seconds:.1f} s"
        if self.round_ms:
            yield (
                "launch to commit",
                f"{median(self.round_ms):g} ms (median), {max(self.round_ms)} ms (longest)",
            )
        if self.waited_ms:
            yield "grace", f"waited in {len(self.waited_ms)} rounds, {median(self.waited_ms):g} ms (median)"
        for number, process in enumerate(self.processes, 1):
            yield f"process {number}", _told(process)

    def _answer_rows(self) -> Iterator[tuple[str, str]]:
        if self.goodput is not None:
            yield (
                "goodput",
                (
                    f"{self.goodput:.1%}: {self.merged} merged, {self.refused} rejected, "
                    f"{self.lost} lost with their attempt"
                ),
            )
        if self.answered is not None:
            yield "asked", f"{self.asked} times, {self.answered:.1%} answered in time"
        total = sum(self.staleness.values())
        for lag in sorted(self.staleness):
            yield f"staleness {lag}", f"{self.staleness[lag]} ({self.staleness[lag] / total:.1%})"
        for reason, count in sorted(self.rejections.items()):
            yield f"rejected {reason}", str(count)
        for what, count in (
            ("attempts discarded", self.retries),
            ("rounds dropped", self.dropped),
            ("carried, too late", self.carried),
            ("carried, merged", self.late),
            ("carried, dropped", self.carries_dropped),
            ("late joins", self.late_joins),
            ("slots rebound", self.rebounds),
        ):
            if count:
                yield what, str(count)

    def _learner_lines(self) -> Iterator[str]:
        if not self.learners:
            return
        yield "learners"
        yield (
            "  id   asked  answered  missed  rejected   share     steps        tokens  joins  losses"
            "  missed steps"
        )
        for learner, part in sorted(self.learners.items()):
            share = f"{part.share / self.rounds:.1%}" if self.rounds else "-"
            yield (
                f"  {learner:<4}{part.asked:>6}{part.answered:>10}{len(part.missed):>8}{part.rejected:>10}"
                f"{share:>8}{part.steps:>10}{part.tokens:>14}{part.joins:>7}{part.losses:>8}  "
                f"{_steps(part.missed)}"
            ).rstrip()
        for reason, count in sorted(self.losses.items()):
            yield f"  lost by {reason}: {count}"

    def _recovery_lines(self) -> Iterator[str]:
        if not self.recoveries:
            return
        yield "recoveries (ms)"
        yield "  id   answered step    detect   connect  catch-up    answer     total  lost by"
        for recovery in self.recoveries:
            times = [recovery[f"{phase}_ms"] for phase in PHASES]
            shown = _columns((*times, sum(times)))
            yield f"  {recovery['id']:<4}{recovery['step']:>14}{shown}  {recovery['reason']}"
        middle = [median(self.phase_ms(phase)) for phase in PHASES]
        total = median(sum(recovery[f"{phase}_ms"] for phase in PHASES) for recovery in self.recoveries)
        yield f"  {'median':<18}{_columns((*middle, total))}"


def summarize(records: Iterable[Record]) -> Summary:
    """The summary of a whole tape."""
    summary = Summary()
    for record in records:
        summary.add(record)
    return summary


def _part(part: LearnerPart) -> dict[str, Any]:
    return {
        "asked": part.asked,
        "answered": part.answered,
        "missed_steps": part.missed,
        "rejected": part.rejected,
        "c_steps": part.steps,
        "c_tokens": part.tokens,
        "contribution": part.share,
        "joins": part.joins,
        "losses": part.losses,
    }


def _process(process: Process) -> dict[str, Any]:
    return {
        "first_step": process.first_step,
        "resumed": process.resumed,
        "rounds": process.rounds,
        "down_s": process.down_s,
        "first_commit_s": _until_first_commit(process),
        "exit_code": process.code,
        "end": process.end,
    }


def _until_first_commit(process: Process) -> float | None:
    if process.started_at is None or process.first_commit is None:
        return None
    return round(process.first_commit - process.started_at, 3)


def _told(process: Process) -> str:
    parts = []
    if process.first_step is not None:
        parts.append(f"{'resumed' if process.resumed else 'started'} at step {process.first_step}")
    if process.down_s is not None:
        parts.append(f"{process.down_s:.1f} s after the last record before it")
    parts.append(f"{process.rounds} rounds")
    first = _until_first_commit(process)
    if first is not None:
        parts.append(f"the first after {first:.1f} s")
    parts.append("no end on the tape" if process.end is None else f"exit {process.code}: {process.end}")
    return ", ".join(parts)


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    known = list(rows)
    if known:
        yield title
        width = max(len(name) for name, _ in known)
        yield from (f"  {name:<{width}}  {value}" for name, value in known)


def _columns(times: Iterable[float]) -> str:
    return "".join(f"{time:>10g}" for time in times)


def _steps(steps: list[int]) -> str:
    """Ascending steps as ranges: 3, 7-9, 12; at most ten of them."""
    ranges: list[tuple[int, int]] = []
    for step in sorted(set(steps)):
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], step)
        else:
            ranges.append((step, step))
    told = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:10]]
    return ", ".join([*told, "..."] if len(ranges) > 10 else told)
