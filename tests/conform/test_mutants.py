"""The judge is judged: each mutant fails at the rule that it breaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conform.runs import TRACES
from yeto_proto.conform import cli, mutants, runner, sut

PATH = Path(__file__).parent / "mutants" / "mutants.yaml"
DATA, MUTANTS = mutants.read(PATH, TRACES)
QUICK = {
    "pull-attempt-0", "chunk-overlap", "bf16-down", "weight-tokens", "delta-negated", "manifest-first",
    "push-without-anchor",
}  # fmt: skip


def hunted(mutant):
    """The case that found the mutant, and the verdicts of all."""
    (found,) = mutants.hunt(
        [mutant],
        DATA,
        PATH,
        TRACES,
        sut.read(sut.OURS),
        # A mutant of the codec answers at once; many of the others are found by an answer that never comes.
        runner.Options(timeout=300.0 if mutant.role == "codec" else 15.0, jobs=4),
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


def test_the_command_tells_of_each(capsys):
    arguments = ["mutants", "bf16-down", "--mutants", str(PATH), "--timeout", "300"]
    assert cli.main([*arguments, "--json"]) == 0
    told, clean = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (clean["name"], clean["clean"], clean["found"]) == ("yeto", True, False)
    assert set(clean["verdicts"].values()) == {"pass"} and set(clean["verdicts"]) == set(told["verdicts"])
    assert (told["name"], told["role"], told["found"]) == ("bf16-down", "codec", True)
    assert told["verdicts"][told["by"]] == "fail"
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("found   bf16-down") and lines[0].endswith(f"by {told['by']}")
    count = len(clean["verdicts"])
    assert lines[1].split() == f"clean yeto passes {count} of {count} cases of these rules".split()
    assert lines[2:] == [
        f"1 mutants, {int(told['well_formed'])} of them with well-formed bytes only",
        "2 passed, 0 failed, 0 skipped",
    ]


def test_a_clean_implementation_that_fails_is_an_alarm(capsys, tmp_path):
    """What is called clean here refuses everything."""
    answer = "print(json.dumps({'id': json.loads(line)['id'], 'ok': False}))"
    script = f"import sys, json\nfor line in sys.stdin:\n    {answer}"
    path = tmp_path / "sut.yaml"
    command = json.dumps([sys.executable, "-u", "-c", script])
    path.write_text(f"name: refuser\ncodec: {{command: {command}}}\n")
    arguments = ["mutants", "bf16-down", "--mutants", str(PATH), "--timeout", "300", "--sut", str(path)]
    assert cli.main(arguments) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("ALARM   refuser is clean, and bf16-")]
    assert lines[-1].endswith(", 1 failed, 0 skipped")


def test_a_list_that_names_nothing_is_refused(tmp_path):
    path = tmp_path / "mutants.yaml"
    with pytest.raises(sut.BadSutError, match="cannot be read"):
        mutants.read(path, TRACES)
    path.write_text(
        "command: [a]\nmutants: [{name: a, role: codec, rule: no.such.rule, well-formed: true, says: x}]\n"
    )
    with pytest.raises(sut.BadSutError, match="no codec case is about"):
        mutants.read(path, TRACES)
