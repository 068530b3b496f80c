"""Whether a tape shows the consolidation of a learner-budget benchmark.

After the cutoff at step C exactly F rounds, one for each fragment, every one of them answered by every
configured learner with its whole budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from yeto_syncer.tape_file import COMMIT, Record, kind_of

__all__ = ["Consolidation", "check"]


@dataclass(frozen=True, slots=True)
class Consolidation:
    """What was found: the outer steps that must be there, and everything that is wrong with them."""

    steps: range
    faults: tuple[str, ...]


def check(
    records: Iterable[Record], *, learners: int, budget: int, start: int, fragments: int | None = None
) -> Consolidation:
    """Judge the rounds after step `start` (C), the global step of the cutoff's checkpoint.

    `learners` is M and `budget` the local steps of each. F comes from the tape unless `fragments` gives it:
    from its last `run_started`, or else from the fragments that its rounds name. A process that was started
    again from a checkpoint takes back the rounds behind it.
    """
    kept: list[Record] = []
    started: Record | None = None
    begun = False
    known: set[int] = set()
    for record in records:
        kind = kind_of(record)
        if kind == "run_started":
            started = record
            begun = record["step"] == start or (begun and record["step"] > start)
            kept = [each for each in kept if kind_of(each) == COMMIT and each["step"] <= record["step"]]
        elif kind == COMMIT:
            known.add(record["fragment"])
            if record["step"] > start:
                kept.append(record)
        elif kind == "run_ended":
            kept.append(record)
    count = fragments or (started["fragments"] if started is not None else len(known))
    steps = range(start + 1, start + count + 1)
    faults = list(_order_faults(kept, steps))
    if started is not None and not begun:
        faults.insert(
            0,
            f"no process on the tape consolidates from step {start}: the last one started at "
            f"step {started['step']}",
        )
    tokens: dict[int, int] = {}
    seen: set[int] = set()
    for record in kept:
        if kind_of(record) != COMMIT or record["step"] not in steps:
            continue
        where = f"step {record['step']}"
        if record["fragment"] in seen:
            faults.append(f"{where}: fragment {record['fragment']} is merged a second time")
        seen.add(record["fragment"])
        faults += [f"{where}: {fault}" for fault in _round_faults(record, learners, budget, tokens)]
    return Consolidation(steps, tuple(faults))


def _order_faults(kept: list[Record], steps: range) -> Iterator[str]:
    if not steps:
        yield "the tape tells of no fragment at all"
    told = [record["step"] for record in kept if kind_of(record) == COMMIT]
    for step in steps:
        if step not in told:
            yield f"step {step}: there is no such round"
    for step in told:
        if step not in steps:
            yield f"step {step}: a round after the last one of the consolidation, {steps.stop - 1}"
    if told != sorted(set(told)):
        yield f"the rounds are told in the order {', '.join(map(str, told))}, not in that of their steps"
    for record in kept:
        if kind_of(record) == "run_ended" and record["code"] != 0:
            yield f"the process ended with exit code {record['code']}: {record['message']}"


def _round_faults(record: Record, learners: int, budget: int, tokens: dict[int, int]) -> Iterator[str]:
    everyone = list(range(learners))
    expected = [member["id"] for member in record["expected_members"]]
    if sorted(expected) != everyone:
        yield f"learners {_ids(expected)} were asked, not all of 0..{learners - 1}"
    if record.get("quorum", learners) != learners:
        yield f"the quorum was {record['quorum']}, not {learners}"
    answers = record["responders"]
    answered = [answer["id"] for answer in answers]
    if sorted(answered) != everyone:
        missing = sorted(set(everyone) - set(answered))
        yield f"no answer of learner {_ids(missing)}" if missing else f"answers of learners {_ids(answered)}"
    for answer in answers:
        who = f"learner {answer['id']}"
        if answer["c_steps"] != budget:
            yield f"{who} answered with {answer['c_steps']} local steps, not with the budget of {budget}"
        if answer["staleness"] != 0 or answer["base_version"] != record["launch_base_version"]:
            yield (
                f"{who} answered from version {answer['base_version']}, "
                f"not from the resumed {record['launch_base_version']}"
            )
        first = tokens.setdefault(answer["id"], answer["c_tokens"])
        if answer["c_tokens"] != first:
            yield f"{who} tells {answer['c_tokens']} tokens, and {first} in an earlier round"


def _ids(learners: Iterable[int]) -> str:
    return ", ".join(map(str, learners)) or "none"
