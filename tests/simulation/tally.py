"""What happened often enough: transitions of the machines, reasons of refusals, kinds of faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isclass
from typing import Any
from unittest.mock import patch

from tests.simulation.budget_cluster import TRIALS
from tests.simulation.plan import LATE_STOP, STRANGERS, WEIGHTS
from yeto_proto import machine as machine_module
from yeto_proto._generated import errors, machines
from yeto_proto.machine import Machine

ENOUGH = 50
COLUMNS = 3  # of the table

#: Modules that walk the machines of the specification. `link` and `budget` are walked by the audit.
WALKERS = (
    "yeto_syncer.core.registry",
    "yeto_syncer.core.rounds",
    "yeto_syncer.core.finalize",
    "yeto_learner.core.boundary",
)

MACHINES = (
    machines.LINK,
    machines.LEARNER_GROUP,
    machines.ROUND,
    machines.FINALIZATION,
    machines.BUDGET,
    machines.ANCHOR,
)

REJECTED = (
    errors.OutOfRound,
    errors.UnexpectedMember,
    errors.FutureBase,
    errors.StaleBase,
    errors.Duplicate,
    errors.NonFiniteMerge,
)
"""Pushes and ACKs that are dropped without an answer."""

NOT_HERE = {
    "refused AuthenticationFailed": "the MAC seals the bytes of a HELLO, and no bytes are made here",
    "anchor: fresh + replay": "a learner's link drops a replay before its boundary sees it",
    "anchor: spent + replay": "as above",
}
"""What no world can have, and why."""


@contextmanager
def transitions_counted(tally: Counter[str]) -> Iterator[None]:
    """Count every transition that a core makes."""
    real = machine_module.advance

    def advance(machine: Machine[Any, Any], state: Any, happened: Any) -> Any:
        target = real(machine, state, happened)
        tally[f"{machine.name}: {state.value} + {happened.value}"] += 1
        return target

    patches = [patch(f"{walker}.advance", advance) for walker in WALKERS]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def expected() -> list[str]:
    """Everything that has to happen, under the names of the tally of a world."""
    peer_errors = [
        each.__name__
        for each in vars(errors).values()
        if isclass(each) and issubclass(each, errors.PeerError) and each is not errors.PeerError
    ]
    return [
        *(f"fault {kind}" for kind in (*WEIGHTS, LATE_STOP, *STRANGERS, *TRIALS)),
        *_reasons(peer_errors),
        *(each for each in _transitions() if each not in NOT_HERE),
    ]


def _transitions() -> Iterator[str]:
    for machine in MACHINES:
        for state, happened in machine.transitions:
            yield f"{machine.name}: {state.value} + {happened.value}"


def _reasons(peer_errors: list[str]) -> Iterator[str]:
    rejected = {each.__name__ for each in REJECTED}
    for name in peer_errors:
        if name in rejected:
            yield f"rejected {name}"
        elif f"refused {name}" not in NOT_HERE:
            yield f"refused {name}"
    yield from ("left disconnected", "left lease expired", "left NonFinite", "left BadScale")


def summed(tally: Counter[str]) -> Counter[str]:
    """The tally with reasons added up over the counters in which they appear."""
    total = Counter(tally)
    for name, count in tally.items():
        kind, _, reason = name.partition(" ")
        if kind in ("connections_refused", "data_streams_closed", "learners_left"):
            total[f"refused {reason}"] += count
            total[f"left {reason}"] += count
        elif name.startswith("learner failed: "):
            total[f"refused {name.removeprefix('learner failed: ')}"] += count
    return total


def table(tally: Counter[str]) -> str:
    """What happened how often, for people, in columns; the rarest comes first."""
    total = summed(tally)
    rows = sorted((total[name], name) for name in expected())
    cells = [f"{count:>7} {name}" for count, name in rows]
    height = -(-len(cells) // COLUMNS)
    columns = [cells[start : start + height] for start in range(0, len(cells), height)]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(
            column[row].ljust(width)
            for column, width in zip(columns, widths, strict=True)
            if row < len(column)
        )
        for row in range(height)
    ]
    return "\n".join(
        [*(line.rstrip() for line in lines), *(f"  never {name}: {why}" for name, why in NOT_HERE.items())]
    )


def missing(tally: Counter[str]) -> list[str]:
    """What happened less than `ENOUGH` times."""
    total = summed(tally)
    return [f"{name} ({total[name]})" for name in expected() if total[name] < ENOUGH]
