"""Cores that keep a state of `spec/machines/` change it by the table alone, in each (state, input) pair.

The other modules of this folder drive the cores through their events; here every pair is tried, those as well
that no event leads to.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.syncer_core.runs import config
from yeto_learner.core.boundary import FragmentState
from yeto_proto._generated.errors import WrongState
from yeto_proto._generated.machines import ANCHOR, BUDGET, FINALIZATION, LEARNER_GROUP, ROUND
from yeto_proto.machine import Machine
from yeto_syncer.core.budget import Cutoff
from yeto_syncer.core.finalize import Finalization
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.registry import Group
from yeto_syncer.core.rounds import Round

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]
CORES = ("yeto_syncer/core", "yeto_learner/core")
KEPT_IN = ("state", "anchor")  # the attributes that hold a state


def cutoff() -> Cutoff:
    return Cutoff(
        config(checkpoint_path="a", learner_budget_steps=5), Outbox(taping=False), 0.0, initialized=True
    )


HOLDERS: list[tuple[Machine[Any, Any], Callable[[], Any], str, str]] = [
    (LEARNER_GROUP, lambda: Group(Link(0, 1), 1, 0), "state", "take"),
    (ROUND, lambda: Round(1, 0, 0, fixed_roster=False), "state", "take"),
    (FINALIZATION, lambda: Finalization.__new__(Finalization), "state", "_take"),
    (BUDGET, cutoff, "state", "take"),
    (ANCHOR, FragmentState, "anchor", "take"),
]
"""`link` has none: where the coordinator keeps a socket is its state, and `test_connections` follows it."""


@pytest.mark.parametrize(
    ("machine", "make", "attribute", "method"), HOLDERS, ids=lambda each: getattr(each, "name", "")
)
def test_every_pair_follows_the_table(
    machine: Machine[Any, Any], make: Callable[[], Any], attribute: str, method: str
) -> None:
    for state in machine.states:
        for happened in machine.inputs:
            holder = make()
            setattr(holder, attribute, state)
            target = machine.transitions.get((state, happened))
            if target is None and (not machine.stays or state in machine.final):
                with pytest.raises(WrongState, match=f"a {machine.name} that is {state.value} does not take"):
                    getattr(holder, method)(happened)
            else:
                getattr(holder, method)(happened)
            assert getattr(holder, attribute) is (state if target is None else target)


def test_a_new_holder_stands_at_the_beginning() -> None:
    for machine, make, attribute, _ in HOLDERS:
        if machine is not FINALIZATION:  # it begins with the delivery of the cut: see test_finalization
            assert getattr(make(), attribute) is machine.initial


def changes() -> list[tuple[str, str]]:
    """(place, value) of every assignment to a state in the cores."""
    found = []
    for folder in CORES:
        for path in sorted((ROOT / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assign):
                    targets = [each.attr for each in node.targets if isinstance(each, ast.Attribute)]
                elif (
                    isinstance(node, ast.AnnAssign) and node.value is not None
                ):  # a field of a dataclass, too
                    targets = [getattr(node.target, "attr", None) or getattr(node.target, "id", "")]
                else:
                    continue
                if set(KEPT_IN).intersection(targets):
                    assert node.value is not None
                    found.append((path.name, ast.unparse(node.value)))
    return found


def test_no_state_is_changed_past_the_table() -> None:
    """Every assignment is the beginning of a machine, or its `advance`."""
    machines = {machine.name.upper(): machine for machine, *_ in HOLDERS}
    begun, advanced = set(), set()
    for place, value in changes():
        head, _, rest = value.partition("(")
        if head == "advance":
            advanced.add(rest.partition(",")[0])
        else:
            assert value.endswith(".initial"), f"{place} changes a state to {value}"
            begun.add(value.removesuffix(".initial"))
    assert begun == advanced == set(machines)
