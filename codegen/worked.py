"""Sizes of frames in numbers: what a limit is for sessions that somebody could have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codegen.expr import Expr
from codegen.model import FieldText
from codegen.spec import Frame, Spec

NUMELS = (1_000_000, 100_000_000)
COUNTS = (1, 24, 1_000)
LAYOUTS = ((1, 1), (24, 300), (32, 41_643))
"""Fragments and tensors."""


@dataclass(frozen=True, slots=True)
class Worked:
    """A payload of so many bytes, for the example that `what` names."""

    what: str
    payload: int
    frame: int
    chunks: int | None


def worked(spec: Spec, frame: Frame) -> list[Worked]:
    """Examples of a frame whose length varies with the session; none for one of fixed length."""
    header, slice_ = spec.header.size or 0, int(spec.constant("CHUNK_SLICE"))

    def row(what: str, payload: int) -> Worked:
        whole = header + payload
        chunks = -(-whole // slice_) if frame.text.carried_by == "data" else None
        return Worked(what, payload, whole, chunks)

    bulk = frame.text.bulk
    if bulk is not None and bulk.length is not None:
        forms = [each.name for each in spec.enums["Dtype"].values]
        if "session.dtype" not in bulk.length.names():
            forms = [""]
        return [
            row(
                f"{numel:,} values{f', {form.lower()}' if form else ''}",
                frame.head_size + value(spec, bulk.length, {"fragment.numel": numel, "session.dtype": form}),
            )
            for form in forms
            for numel in NUMELS
        ]
    structures = {each.name: each for each in spec.types.structures}
    for each in frame.fields:
        if each.text.type in structures:
            fields = structures[each.text.type].fields
            return [
                row(
                    f"{_counted(fragments, 'fragment')} of {_counted(tensors, 'tensor')} in all",
                    _fixed(frame) + _structure(spec, fields, fragments, tensors),
                )
                for fragments, tensors in LAYOUTS
            ]
        if each.text.count is not None:
            return [
                row(_counted(count, "fragment"), frame.head_size + (each.size or 0) * count)
                for count in COUNTS
            ]
    return []


def value(spec: Spec, expr: Expr, known: Mapping[str, Any]) -> int:
    """What an expression is for these values; constants and sizes are those of the specification."""

    def lookup(name: str) -> Any:
        if name in known:
            return known[name]
        return spec.constant(name[7:].upper() if name.startswith("preset.") else name)

    def size(name: str) -> Any:
        text = spec.sizes[name]

        def apply(*arguments: Any) -> int:
            given = dict(zip(text.args, arguments, strict=True))
            chosen = text.value if text.choose is None else text.cases[given[text.choose]]
            assert chosen is not None
            return value(spec, chosen, given)

        return apply

    return int(expr.evaluate(lookup, {name: size(name) for name in spec.sizes}))


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _fixed(frame: Frame) -> int:
    """Bytes of the fields that are always there, without what repeats."""
    return sum(each.size or 0 for each in frame.fields if each.fixed)


def _structure(spec: Spec, fields: tuple[FieldText, ...], fragments: int, tensors: int) -> int:
    """Bytes of a layout without iso fragments."""
    widths = {each.name: int(each.bytes.evaluate(spec.constant)) for each in spec.types.scalars}
    widths |= {name: widths[enum.type] for name, enum in spec.enums.items()}
    total = 0
    for each in fields:
        if each.present is None:
            total += widths[each.type] * (tensors if each.count is not None else fragments)
    return total
