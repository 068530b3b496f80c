"""Puts the files of `spec/` together and checks what goes beyond one file.

A part with files of its own reads them in a loader (`codegen.parts`) and hangs the result on `Spec.parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codegen.bind import bind
from codegen.checks import is_constant, most
from codegen.expr import Expr
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.model import (
    About,
    Constant,
    Context,
    ContextsText,
    Enum,
    ErrorsText,
    ErrorText,
    Family,
    FrameText,
    LimitsText,
    NumericsText,
    Size,
    TypesText,
)
from codegen.numbers import Numbers, check_functions, unique
from codegen.resolve import FORMATS, READING, Builder
from codegen.resolved import Field, Frame, Rule

__all__ = ["FORMATS", "READING", "Field", "Frame", "Rule", "Spec", "load_spec"]


@dataclass
class Spec:
    """The whole specification. Parts with files of their own hang theirs on `parts`."""

    root: Path
    about: About
    types: TypesText
    limits: LimitsText
    numerics: NumericsText
    contexts: Mapping[str, Context]
    errors: Mapping[str, tuple[Family, ErrorText]]
    families: tuple[Family, ...]
    header: Frame
    frames: tuple[Frame, ...]
    constants: Mapping[str, Constant]
    parts: dict[str, Any] = field(default_factory=dict)
    _numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> Mapping[str, Size]:
        return {each.name: each for each in self.types.sizes}

    @property
    def enums(self) -> Mapping[str, Enum]:
        return {each.name: each for each in self.types.enums}

    def frame(self, name: str) -> Frame:
        """The frame of that name, in capitals; the header is "header"."""
        return self.header if name == "header" else next(each for each in self.frames if each.name == name)

    def rules(self) -> tuple[Rule, ...]:
        """Every rule of the header and the frames, in reading order."""
        found: list[Rule] = list(self.header.rules)
        for each in self.frames:
            found += each.rules
            found += each.extra_rules
        return tuple(found)

    def constant(self, name: str) -> Any:
        """The value of a constant: a number, text, bytes or a tuple of integers."""
        return Numbers(self.constants, self._sized, self._numbers).get(name)

    def _sized(self, name: str) -> int | None:
        if name == "header":
            return self.header.size
        match = [each for each in self.frames if each.name == name]
        return match[0].head_size if match else None


def load_spec(root: Path) -> Spec:
    """Read and check `spec/`. Raises `SpecFault` at the first fault."""
    about = bind(About, read(root / "yeto.yaml", f"{root.name}/yeto.yaml"))
    types = bind(TypesText, read(root / "types.yaml", f"{root.name}/types.yaml"))
    limits = bind(LimitsText, read(root / "limits.yaml", f"{root.name}/limits.yaml"))
    numerics = bind(NumericsText, read(root / "numerics.yaml", f"{root.name}/numerics.yaml"))
    contexts = bind(ContextsText, read(root / "contexts.yaml", f"{root.name}/contexts.yaml"))
    errors = bind(ErrorsText, read(root / "errors.yaml", f"{root.name}/errors.yaml"))
    constants = unique(
        [*about.constants, *limits.constants, *numerics.constants],
        lambda each: (each.name, each.where),
        "constant",
    )
    for name, constant in constants.items():
        if not is_constant(name):
            raise SpecFault(constant.where, name, "a constant is named in capitals")
    builder = Builder(
        types=types,
        constants=constants,
        contexts=unique(contexts.contexts, lambda each: (each.name, each.where), "context"),
        errors=_errors(errors),
    )
    for name in about.reading_order:
        if not (root / name).exists():
            raise SpecFault(about.lines["reading-order"], "reading-order", f"there is no {name}")
    texts = _frame_texts(root)
    header = builder.frame(
        FrameText(
            frame="HEADER",
            id=0,
            direction="either",
            carried_by="any",
            doc=about.header.doc,
            sent="Before every payload.",
            where=about.header.where,
            lines={},
            fields=about.header.fields,
        )
    )
    frames = tuple(builder.frame(each) for each in texts)
    spec = Spec(
        root=root,
        about=about,
        types=types,
        limits=limits,
        numerics=numerics,
        contexts=builder.contexts,
        errors=builder.errors,
        families=errors.families,
        header=header,
        frames=frames,
        constants=constants,
        _numbers=builder.numbers.known,
    )
    builder.numbers.sized = spec._sized
    _check_whole(spec, builder)
    return spec


def _frame_texts(root: Path) -> list[FrameText]:
    folder = root / "frames"
    texts: list[FrameText] = []
    for path in sorted(folder.glob("*.yaml")):
        text = bind(FrameText, read(path, f"{root.name}/frames/{path.name}"))
        expected = f"{text.id:02d}_{text.frame.lower()}.yaml"
        if path.name != expected:
            raise SpecFault(text.where, "frame", f"the file of this frame must be called {expected}")
        texts.append(text)
    if not texts:
        raise SpecFault(Where(f"{root.name}/frames", 0), "", "holds no frame")
    unique(texts, lambda each: (each.frame, each.where), "frame")
    for want, text in enumerate(texts, start=1):
        if text.id != want:
            raise SpecFault(text.lines["id"], "id", f"ids count from 1 without gaps; expected {want}")
    return texts


def _errors(text: ErrorsText) -> dict[str, tuple[Family, ErrorText]]:
    found = unique(
        [(family, each) for family in text.families for each in family.errors],
        lambda pair: (pair[1].name, pair[1].where),
        "error class",
    )
    for family in text.families:
        if family.name in found:
            raise SpecFault(family.where, family.name, "is a family and cannot be a class in one")
    for _, each in found.values():
        for key, sentence in (("symptom", each.symptom), ("cause", each.cause), ("remedy", each.remedy)):
            if not sentence.strip().endswith((".", ":")):
                raise SpecFault(each.lines[key], key, f"{each.name} needs whole sentences here")
    return found


def _check_whole(spec: Spec, builder: Builder) -> None:
    """What can only be checked when everything is read."""
    _check_constants(spec)
    _check_equal(spec)
    _check_answers(spec)
    _check_limits(spec, builder)
    _check_chunk_total(spec)
    _check_presets(spec)


def _check_constants(spec: Spec) -> None:
    """Every integer is one that a field could hold."""
    for name, each in spec.constants.items():
        value = spec.constant(name)
        for number in (*(value if isinstance(value, tuple) else (value,)), each.tiny):
            if isinstance(number, int) and not 0 <= number <= most(8):
                raise SpecFault(each.where, name, f"{number} does not fit u64, 0..{most(8)}")


def _check_equal(spec: Spec) -> None:
    """What a field has to be equal to fits its type."""
    for frame in (spec.header, *spec.frames):
        for each in frame.fields:
            if each.text.type not in FORMATS or each.size is None:
                continue
            high = most(each.size)
            for expr in (rule.expr for rule in each.rules if rule.expr is not None):
                for one in expr.comparisons():
                    if one.op != "==" or one.left.text != each.name:
                        continue
                    if not set(one.right.names()) <= set(spec.constants) or one.right.functions():
                        continue
                    value = one.right.evaluate(spec.constant)
                    if not isinstance(value, int) or not 0 <= value <= high:
                        raise expr.fault(f"{one.right.text} is {value!r}, and {each.name} holds 0..{high}")


def _check_answers(spec: Spec) -> None:
    names = {each.name for each in spec.frames}
    for frame in spec.frames:
        answers = frame.text.answers
        if answers is not None and answers not in names:
            raise SpecFault(frame.text.lines["answers"], "answers", f"there is no frame {answers}")


def _check_limits(spec: Spec, builder: Builder) -> None:
    """A frame without a fixed size has a limit."""
    for frame in spec.frames:
        bulk = frame.text.bulk
        own = frame.text.limit
        if own is None and bulk is not None and bulk.length is None and bulk.limit is None:
            raise SpecFault(bulk.where, bulk.name, "needs a length, a limit, or a limit of the frame")
        for limit in (own, bulk.limit if bulk is not None else None):
            if limit is not None:
                builder.check_names(limit, set(), "decode")


def _check_chunk_total(spec: Spec) -> None:
    names = {each.name for each in spec.frames}
    for side in ("syncer", "learner"):
        expr: Expr = getattr(spec.limits.chunk_total, side)
        check_functions(expr, {})
        for name in expr.names():
            known = name in spec.constants or (name.startswith("limit.") and name[6:] in names)
            if not known:
                raise expr.fault(f"{name} is not known here")


def _check_presets(spec: Spec) -> None:
    """Only an integer has a tiny value, and `preset.name` is one that has."""
    presets = [each for each in spec.limits.constants if each.tiny is not None]
    for each in presets:
        if not isinstance(spec.constant(each.name), int):
            raise SpecFault(each.where, "tiny", "only an integer can have a tiny value")
    exprs = [rule.expr for rule in spec.rules() if rule.expr is not None]
    exprs += [frame.text.limit for frame in spec.frames if frame.text.limit is not None]
    exprs += [frame.text.bulk.limit for frame in spec.frames if frame.text.bulk and frame.text.bulk.limit]
    named = {f"preset.{each.name.lower()}" for each in presets}
    for expr in exprs:
        for name in expr.names():
            if name.startswith("preset.") and name not in named:
                raise expr.fault(f"{name} is no limit with a tiny value")
