"""`site/failures.yaml`: what the programs say when something is wrong, beside the errors of the protocol.

It is no part of the specification: other implementations say other things. `says` is the text of the program,
with `...` for what varies, so that a test can hold the two together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from codegen.bind import bind
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.numbers import unique
from codegen.pages import FOLDER, page_environment, polished


@dataclass(frozen=True, slots=True)
class Failure:
    """One text. `see` gives titles and pages that have more."""

    says: str
    cause: str
    remedy: str
    where: Where
    lines: Mapping[str, Where]
    see: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Texts that are shown in one way: `shows` has the place of the text as {says}.

    They are all texts of the exceptions `classes`, some of the exceptions `some`, all of Python's own in the
    packages of `builtin`, and all warnings and errors that the packages of `logs` write. `calls` are classes
    that are no exceptions, and whose second argument is a text.
    """

    group: str
    title: str
    shows: str
    doc: str
    classes: tuple[str, ...]
    failures: tuple[Failure, ...]
    where: Where
    some: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    builtin: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    logs: tuple[str, ...] = ()

    def anchor(self, each: Failure) -> str:
        """Where the entry of a text is: the group and its first words."""
        words = re.findall(r"[a-z0-9]+", each.says.lower().replace("'", ""))
        return "-".join([self.group, *words[:9]])


@dataclass(frozen=True, slots=True)
class Inside:
    """An exception that nobody sees, and what becomes of it."""

    class_: str
    becomes: str
    where: Where


@dataclass(frozen=True, slots=True)
class Exit:
    """An exit code."""

    code: int
    when: str
    remedy: str
    where: Where


@dataclass(frozen=True, slots=True)
class Failures:
    """The file."""

    groups: tuple[Group, ...]
    inside: tuple[Inside, ...]
    exits: tuple[Exit, ...]
    where: Where

    def classes(self) -> frozenset[str]:
        """Every exception that is accounted for."""
        named = {name for group in self.groups for name in (*group.classes, *group.some)}
        return frozenset(named | {each.class_ for each in self.inside})


def load(path: Path) -> Failures:
    """The file, checked. Raises `SpecFault`."""
    text = bind(Failures, read(path, f"{path.parent.name}/{path.name}"))
    named = [(name, group.where) for group in text.groups for name in (*group.classes, *group.some)]
    unique([*named, *((each.class_, each.where) for each in text.inside)], lambda each: each, "class")
    for group in text.groups:
        if "{says}" not in group.shows:
            raise SpecFault(group.where, "shows", "has no place for {says}")
        for each in group.failures:
            for key, sentence in (("cause", each.cause), ("remedy", each.remedy)):
                if not sentence.strip().endswith("."):
                    raise SpecFault(each.lines[key], key, "needs whole sentences")
    entries = [(group.anchor(each), each.where) for group in text.groups for each in group.failures]
    unique(entries, lambda each: each, "text")
    return text


def page(failures: Failures) -> str:
    """The page `errors.md` of the documentation."""
    text = page_environment().get_template("pages/failures.md.j2").render(failures=failures)
    return polished(text, f"{FOLDER}/")
