"""Faults in a specification, each with the place where a person has to look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a specification file. `line` counts from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class SpecFault(Exception):  # noqa: N818  # a fault in a text, told to a person
    """The specification is wrong. Its text is one line, `file:line: key: what`, and the generator exits with
    1.
    """

    def __init__(self, where: Where, key: str, what: str) -> None:
        self.where = where
        self.key = key
        self.what = what
        super().__init__(f"{where}: {key}: {what}" if key else f"{where}: {what}")
