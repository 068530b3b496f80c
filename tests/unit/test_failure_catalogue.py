"""The page of error messages: it knows every exception and every text of the programs, and no others."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen import failures
from codegen.failures import Failure, Group
from codegen.faults import SpecFault
from codegen.spec import load_spec
from yeto_syncer.shell.settings import SETTINGS

ROOT = Path(__file__).parents[2]
PACKAGES = ("yeto_proto", "yeto_syncer", "yeto_learner")
CATALOGUE = failures.load(ROOT / "site" / "failures.yaml")
ENTRIES = [(group, each) for group in CATALOGUE.groups for each in group.failures]
FORMAT = re.compile(r"%(\.[0-9]+)?[sdgfr]")
PYTHON = {"Exception", "BaseException", "KeyboardInterrupt", "SystemExit"}


@functools.cache
def modules() -> tuple[tuple[str, str, ast.Module], ...]:
    """Package, path and tree of every module that is shipped and not generated."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "_generated" not in path.parts:
                shown = path.relative_to(ROOT).as_posix()
                found.append((package, shown, ast.parse(path.read_text(encoding="utf-8"))))
    return tuple(found)


def text(node: ast.expr) -> str | None:
    """A text as the catalogue writes it, with `...` for what varies; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return FORMAT.sub("...", node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [str(each.value) if isinstance(each, ast.Constant) else "..." for each in node.values]
        return "".join(parts)
    return None


def called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    for package, path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield package, f"{path}:{node.lineno}", node


def is_listed(said: str, entries: list[Failure]) -> bool:
    """Whether an entry has this text, or the part of it before the first semicolon, or how it begins."""
    what = said.partition("; ")[0]
    return any(each.says in (said, what) or said.startswith(each.says) for each in entries)


def varies_wholly(said: str) -> bool:
    """A text that only passes on what something else has said."""
    return not re.search("[a-z]{2}", said.partition("; ")[0])


def exceptions() -> dict[str, str]:
    """Every exception class that is defined, with its place."""
    found: dict[str, str] = {}
    classes = [
        (node, path)
        for _, path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    names = PYTHON | {name for name in dir(__builtins__) if name.endswith("Error")} | {"OSError"}
    fresh = True
    while fresh:
        fresh = False
        for node, path in classes:
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            known = bases & (names | set(found)) or any(base.endswith("Error") for base in bases)
            if known and node.name not in found:
                found[node.name], fresh = f"{path}:{node.lineno}", True
    return found


def test_every_exception_of_the_packages_has_its_place_in_the_catalogue() -> None:
    found = exceptions()
    spec = load_spec(ROOT / "spec")
    families = {family.name for family in spec.families}
    missing = {
        name: place
        for name, place in found.items()
        if name not in CATALOGUE.classes() | set(spec.errors) | families
    }
    assert not missing, f"site/failures.yaml has no entry for {missing}"
    assert "StartError" in found
    assert "SessionRejectedError" in found
    assert sorted(CATALOGUE.classes() - set(found)) == [], "these classes are gone"


def test_every_text_of_a_listed_exception_has_an_entry() -> None:
    texts = [each for _, each in ENTRIES]
    listed = {name for group in CATALOGUE.groups for name in group.classes}
    builtin = {
        (package, name)
        for group in CATALOGUE.groups
        for package, names in group.builtin.items()
        for name in names
    }
    seen, missing = 0, []
    for package, place, node in calls():
        if called(node) in listed or (package, called(node)) in builtin:
            said = next((found for found in map(text, node.args) if found), None)
            if said is None or varies_wholly(said) or said.startswith("--") or said == "environment":
                continue
            seen += 1
            if not is_listed(said, texts):
                missing.append(f"{place}: {called(node)}: {said}")
    assert not missing, "site/failures.yaml lacks\n" + "\n".join(missing)
    assert seen > 60


def test_every_refusal_of_a_setting_has_an_entry() -> None:
    texts = [each for _, each in ENTRIES]
    names = {name for group in CATALOGUE.groups for name in group.calls}
    found = [
        (place, said)
        for _, place, node in calls()
        if called(node) in names and len(node.args) > 1 and (said := text(node.args[1]))
    ]
    missing = [f"{place}: {said}" for place, said in found if not is_listed(said, texts)]
    assert not missing, "site/failures.yaml lacks\n" + "\n".join(missing)
    assert len(found) > 20


def logged(group: Group) -> Iterator[tuple[str, str]]:
    """Place and text of every warning and error that the packages of a group log."""
    for package, place, node in calls():
        if package not in group.logs:
            continue
        texts = [text(each) for each in node.args[:2]] + [None, None]
        by_level = called(node) in ("log", "write") and texts[0] in ("warning", "error")
        by_name = ast.unparse(node.func).startswith(("log.warning", "log.error", "self._warn"))
        if not by_level and not by_name:
            continue
        said = texts[1] if by_level else texts[0]
        if said is not None and not varies_wholly(said):
            yield place, said


@pytest.mark.parametrize("name", ["syncer-log", "learner-log"])
def test_every_warning_has_an_entry(name: str) -> None:
    (group,) = (each for each in CATALOGUE.groups if each.group == name)
    found = list(logged(group))
    missing = [f"{place}: {said}" for place, said in found if not is_listed(said, list(group.failures))]
    assert not missing, "site/failures.yaml lacks\n" + "\n".join(missing)
    assert len(found) >= 10


@functools.cache
def said_somewhere() -> frozenset[str]:
    return frozenset(
        found
        for _, _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and (found := text(node)) is not None
    )


@pytest.mark.parametrize("entry", [each for _, each in ENTRIES], ids=lambda each: each.says[:40])
def test_the_programs_still_say_what_an_entry_has(entry: Failure) -> None:
    assert any(said.startswith(entry.says) for said in said_somewhere())


def test_the_exit_codes_are_those_of_the_commands() -> None:
    told = set()
    for _, _, tree in modules():
        for node in ast.walk(tree):
            said = text(node) if isinstance(node, ast.expr) else None
            for part in re.findall(r"exit codes:(.*?)(?:\n\n|\Z)", said or "", re.DOTALL):
                told |= {int(number) for number in re.findall(r"(?<![\w.])[0-9]{1,3}(?![\w.])", part)}
    assert {each.code for each in CATALOGUE.exits} == told


def test_every_flag_that_a_remedy_names_exists() -> None:
    known = {each.flag for each in SETTINGS}
    for _, _, node in calls():
        if called(node) in ("add_argument", "add", "Flag"):
            known |= {said for each in node.args if (said := text(each)) and said.startswith("--")}
    spec = load_spec(ROOT / "spec")
    prose = [(each.says, f"{each.cause} {each.remedy}") for _, each in ENTRIES]
    prose += [(name, f"{each.symptom} {each.cause} {each.remedy}") for name, (_, each) in spec.errors.items()]
    prose += [(f"exit code {each.code}", each.remedy) for each in CATALOGUE.exits]
    wrong = [
        f"{name}: {flag}"
        for name, sentence in prose
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", sentence)
        if flag not in known
    ]
    assert not wrong
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ].keys() >= {extra for _, sentence in prose for extra in re.findall(r"`yeto\[([a-z]+)\]`", sentence)}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("remedy: Wait for the other one, or give another --output.", "", "remedy: is missing"),
        ("{class: ShortInput,", "{class: StartError,", "this class exists already"),
        ("with `{says}`. The run goes on", "The run goes on", "has no place for"),
        ("cause: Two demos with one --output.", "cause: Two demos", "needs whole sentences"),
        ('says: "background checkpoint failed"', 'says: "round dropped"', "this text exists already"),
    ],
)
def test_an_incomplete_catalogue_stops_the_build(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = tmp_path / "failures.yaml"
    whole = (ROOT / "site" / "failures.yaml").read_text(encoding="utf-8")
    assert old in whole
    path.write_text(whole.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SpecFault, match=told):
        failures.load(path)
