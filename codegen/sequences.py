"""`spec/sequences/`: who sends what to whom, step by step, for the exchanges that take more than one frame.

They explain; the rules stand with the frames and in `behaviour/`. Each frame must exist and may be sent in
that direction, so that a picture cannot show what the protocol does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from codegen.bind import bind
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.numbers import unique
from codegen.spec import Spec


@dataclass(frozen=True, slots=True)
class Actor:
    """Who takes part; `side` says which frames it may send."""

    name: str
    side: Literal["syncer", "learner"]
    where: Where


@dataclass(frozen=True, slots=True)
class Step:
    """A frame from one actor `to` another, or what happens at `from`. `lost` frames never arrive."""

    from_: str
    where: Where
    lines: Mapping[str, Where]
    to: str | None = None
    frame: str | None = None
    says: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """A file of `sequences/`."""

    sequence: str
    order: int
    title: str
    doc: str
    where: Where
    lines: Mapping[str, Where]
    actors: tuple[Actor, ...]
    steps: tuple[Step, ...]


def load(root: Path, spec: Spec) -> tuple[Sequence, ...]:
    """Every sequence, in reading order."""
    found = [
        bind(Sequence, read(path, f"{root.name}/sequences/{path.name}"))
        for path in sorted((root / "sequences").glob("*.yaml"))
    ]
    unique(found, lambda each: (str(each.order), each.where), "order")
    for each in found:
        _check(each, spec)
    return tuple(sorted(found, key=lambda each: each.order))


def _check(sequence: Sequence, spec: Spec) -> None:
    expected = f"{sequence.sequence}.yaml"
    if sequence.where.file.rpartition("/")[2] != expected:
        raise SpecFault(sequence.where, "sequence", f"the file of this sequence must be called {expected}")
    actors = unique(sequence.actors, lambda each: (each.name, each.where), "actor")
    frames = {frame.name: frame for frame in spec.frames}
    for step in sequence.steps:
        for key, name in (("from", step.from_), ("to", step.to)):
            if name is not None and name not in actors:
                raise SpecFault(step.lines[key], key, f"there is no actor {name}")
        if (step.to is None) != (step.frame is None):
            raise SpecFault(step.where, "step", "`to` and `frame` come together")
        if step.frame is None or step.to is None:
            if not step.says:
                raise SpecFault(step.where, "step", "a step without a frame says something")
            continue
        if step.frame not in frames:
            raise SpecFault(step.lines["frame"], "frame", f"there is no frame {step.frame}")
        _check_direction(step, actors, frames[step.frame].text.direction)


def _check_direction(step: Step, actors: Mapping[str, Actor], direction: str) -> None:
    assert step.to is not None
    way = f"{actors[step.from_].side} -> {actors[step.to].side}"
    if direction not in ("either", way):
        raise SpecFault(step.lines["frame"], "frame", f"{step.frame} goes {direction}, not {way}")
