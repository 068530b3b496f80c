"""The judge is judged: each mutant fails at the rule that it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from yeto_proto.conform import mutants, runner, sut, trace

PATH = Path(__file__).parent / "mutants" / "mutants.yaml"
TRACES = trace.load_corpus()
DATA, MUTANTS = mutants.read(PATH, TRACES)
QUICK = {"pull-attempt-0", "chunk-overlap", "bf16-down", "weight-tokens", "delta-negated"}


def hunted(mutant):
    """The case that found the mutant, and the verdicts of all."""
    (found,) = mutants.hunt(
        [mutant],
        DATA,
        PATH,
        TRACES,
        sut.read(sut.OURS),
        runner.Options(timeout=15.0, jobs=4),
        lambda found: None,
    )
    return found


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 40
    assert sum(each.well_formed for each in MUTANTS) >= 20
    assert len({each.name for each in MUTANTS}) == len(MUTANTS)
    assert {each.role for each in MUTANTS} == {"codec", "server", "client"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=[] if each.name in QUICK else pytest.mark.full)
        for each in MUTANTS
    ],
)
def test_it_is_found_at_its_rule(mutant):
    found = hunted(mutant)
    assert found.caught is not None, [(each.trace.id, each.worst) for each in found.results]
    assert mutant.rule in found.caught.trace.rules


def test_a_list_that_names_nothing_is_refused(tmp_path):
    path = tmp_path / "mutants.yaml"
    with pytest.raises(sut.BadSutError, match="cannot be read"):
        mutants.read(path, TRACES)
    path.write_text(
        "command: [a]\nmutants: [{name: a, role: codec, rule: no.such.rule, well-formed: true, says: x}]\n"
    )
    with pytest.raises(sut.BadSutError, match="no codec case is about"):
        mutants.read(path, TRACES)
