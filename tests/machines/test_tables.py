"""The transition tables of the specification: every pair is answered, and a fault stops the generator."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codegen.faults import SpecFault
from codegen.parts import load
from yeto_proto._generated import machines
from yeto_proto._generated.errors import WrongState
from yeto_proto._generated.machines import (
    ANCHOR,
    BUDGET,
    FINALIZATION,
    LEARNER_GROUP,
    LINK,
    ROUND,
    AnchorInput,
    AnchorState,
    LearnerGroupInput,
    LearnerGroupState,
    RoundInput,
    RoundState,
)
from yeto_proto.machine import Machine, advance

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]
MACHINES = [LINK, LEARNER_GROUP, ROUND, FINALIZATION, BUDGET, ANCHOR]


def test_all_machines_are_listed() -> None:
    found = [each for each in vars(machines).values() if isinstance(each, Machine)]
    assert found == MACHINES


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_every_pair_is_answered(machine: Machine) -> None:
    for state in machine.states:
        for event in machine.inputs:
            target = machine.transitions.get((state, event))
            if target is not None:
                assert advance(machine, state, event) is target
            elif machine.stays and state not in machine.final:
                assert advance(machine, state, event) is state
            else:
                with pytest.raises(WrongState, match=state.value):
                    advance(machine, state, event)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_every_state_can_end(machine: Machine) -> None:
    """From each state a final one can be reached, so that no walk is caught in a circle."""
    ending = set(machine.final)
    grew = True
    while grew:
        found = {state for (state, _), target in machine.transitions.items() if target in ending}
        grew = not found <= ending
        ending |= found
    assert ending == set(machine.states)


def test_walks() -> None:
    state = ROUND.initial
    for event in (RoundInput.QUORUM_REACHED, RoundInput.GRACE_OVER, RoundInput.TURN, RoundInput.NOT_FINITE):
        state = advance(ROUND, state, event)
    assert state is RoundState.GATHERING
    assert advance(ANCHOR, AnchorState.SPENT, AnchorInput.RELEASED) is AnchorState.FRESH
    superseded = advance(LEARNER_GROUP, LearnerGroupState.READY, LearnerGroupInput.REPLACED)
    assert advance(LEARNER_GROUP, superseded, LearnerGroupInput.CUT_LEFT) is LearnerGroupState.SUPERSEDED


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("to: merging}", "to: melting}", "machines/round.yaml:[0-9]+: to: melting is not declared"),
        ("initial: gathering", "initial: nowhere", "initial: there is no state nowhere"),
        ("{name: committed, final: true,", "{name: committed,", "committed: nothing leads out of it"),
        ("machine: round", "machine: square", "must be called square.yaml"),
        ("elsewhere: refuse", "elsewhere: guess", "elsewhere: must be one of refuse, stay"),
        (
            "from: grace, input: grace_over",
            "from: grace, input: all_answered",
            "already says what grace does",
        ),
        ("from: complete, input: turn", "from: committed, input: turn", "committed is final"),
        ("input: durable, to: committed", "input: durable, to: dropped", "committed: cannot be reached"),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, old: str, new: str, fault: str) -> None:
    shutil.copytree(ROOT / "spec", tmp_path / "spec")
    path = tmp_path / "spec" / "machines" / "round.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SpecFault, match=fault):
        load(tmp_path / "spec")
