"""The schema of `spec/`: one dataclass per kind of mapping, filled by `codegen.bind`.

A field is a key; what stands here is all that a specification file may say. `codegen.spec` puts the files
together and checks what goes beyond one mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from codegen.expr import Expr
from codegen.faults import Where

When = Literal["decode", "bulk", "link", "round"]
WHENS: tuple[When, ...] = ("decode", "bulk", "link", "round")
Direction = Literal["learner -> syncer", "syncer -> learner", "either"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, text or byte string with a name. Exactly one of value, values, text and bytes is given."""

    name: str
    doc: str
    where: Where
    value: float | Expr | None = None
    values: tuple[int, ...] | None = None
    text: str | None = None
    bytes: str | None = None
    tiny: int | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule as written in a list `rules:`.

    `must` is its check, and `says` replaces the sentence that follows from it. With `says` alone, the module
    `by` judges it by hand; `by` beside `must` tells that it does so although there is an expression.
    """

    id: str
    else_: str
    where: Where
    lines: Mapping[str, Where]
    must: Expr | None = None
    says: str | None = None
    when: When | None = None
    by: str | None = None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class FieldText:
    """A field of a frame, header, structure or file. `must` / `else` / `when` / `by` are its first rule, in
    short form.
    """

    name: str
    type: str
    where: Where
    lines: Mapping[str, Where]
    doc: str = ""
    must: Expr | None = None
    says: str | None = None
    else_: str | None = None
    when: When | None = None
    by: str | None = None
    count: str | None = None
    counts: str | None = None
    each: str | None = None
    present: Expr | None = None
    rules: tuple[RuleText, ...] = ()


@dataclass(frozen=True, slots=True)
class BulkText:
    """The bytes after the last field: `length` is exact, `limit` an upper bound for the header."""

    name: str
    where: Where
    lines: Mapping[str, Where]
    type: Literal["bytes", "text"] = "bytes"
    length: Expr | None = None
    limit: Expr | None = None
    else_: str | None = None
    values: Literal["bulk", "push"] | None = None
    doc: str = ""
    rules: tuple[RuleText, ...] = ()


@dataclass(frozen=True, slots=True)
class Extension:
    """Something that is not a part of the protocol's text and may follow a frame's last field."""

    name: str
    doc: str
    where: Where
    trailer: Expr
    rules: tuple[RuleText, ...] = ()


@dataclass(frozen=True, slots=True)
class FrameText:
    """A file of `frames/`. `sent` says by whom and when."""

    frame: str
    id: int
    direction: Direction
    carried_by: Literal["first", "control", "data", "any"]
    doc: str
    sent: str
    where: Where
    lines: Mapping[str, Where]
    answers: str | None = None
    limit: Expr | None = None
    fields: tuple[FieldText, ...] = ()
    bulk: BulkText | None = None
    rules: tuple[RuleText, ...] = ()
    extensions: tuple[Extension, ...] = ()


@dataclass(frozen=True, slots=True)
class HeaderText:
    """The part before every payload."""

    doc: str
    where: Where
    fields: tuple[FieldText, ...]


@dataclass(frozen=True, slots=True)
class About:
    """`yeto.yaml`."""

    name: str
    title: str
    byte_order: Literal["little"]
    reading_order: tuple[str, ...]
    doc: str
    where: Where
    lines: Mapping[str, Where]
    constants: tuple[Constant, ...]
    header: HeaderText


@dataclass(frozen=True, slots=True)
class Scalar:
    """A fixed number of bytes."""

    name: str
    bytes: Expr
    doc: str
    where: Where


@dataclass(frozen=True, slots=True)
class EnumValue:
    """One value of an enumeration."""

    name: str
    value: int
    doc: str
    where: Where


@dataclass(frozen=True, slots=True)
class Enum:
    """A byte with names. A field of this type refuses every other value."""

    name: str
    type: str
    doc: str
    where: Where
    values: tuple[EnumValue, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A function from numel, and perhaps dtype, to bytes: a `value`, or `cases` by the argument `choose`."""

    name: str
    args: tuple[str, ...]
    doc: str
    where: Where
    choose: str | None = None
    cases: Mapping[str, Expr] = field(default_factory=dict)
    value: Expr | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """A named group of fields that repeats, such as the layout of HELLO."""

    name: str
    doc: str
    where: Where
    repeats: str
    fields: tuple[FieldText, ...]


@dataclass(frozen=True, slots=True)
class TypesText:
    """`types.yaml`."""

    where: Where
    scalars: tuple[Scalar, ...]
    enums: tuple[Enum, ...]
    sizes: tuple[Size, ...]
    structures: tuple[Structure, ...]


@dataclass(frozen=True, slots=True)
class ChunkTotal:
    """Largest message inside CHUNKs, by the receiving side."""

    where: Where
    syncer: Expr
    learner: Expr


@dataclass(frozen=True, slots=True)
class LimitsText:
    """`limits.yaml`."""

    where: Where
    constants: tuple[Constant, ...]
    chunk_total: ChunkTotal


@dataclass(frozen=True, slots=True)
class NumericsText:
    """`numerics.yaml`."""

    where: Where
    constants: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a rule may name as `context.fact`."""

    name: str
    type: str
    doc: str
    where: Where


@dataclass(frozen=True, slots=True)
class Context:
    """Facts that are known from one time on."""

    name: str
    known: When
    doc: str
    where: Where
    facts: tuple[Fact, ...]
    of: str | None = None
    selected_by: str | None = None


@dataclass(frozen=True, slots=True)
class ContextsText:
    """`contexts.yaml`."""

    where: Where
    contexts: tuple[Context, ...]


@dataclass(frozen=True, slots=True)
class ErrorText:
    """One error class. What it leaves out is as in its family.

    `symptom`, `cause` and `remedy` are for the person who meets it. `see` gives titles and pages that have
    more, and `rules` the promises of `behaviour/` that it belongs to.
    """

    name: str
    says: str
    doc: str
    symptom: str
    cause: str
    remedy: str
    where: Where
    lines: Mapping[str, Where]
    see: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    fatal: bool | None = None
    sends: bool | None = None
    prefixed: bool | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """A family of error classes."""

    name: Literal["WireError", "PeerError", "UseError"]
    fatal: bool
    sends: bool
    prefixed: bool
    doc: str
    where: Where
    errors: tuple[ErrorText, ...]


@dataclass(frozen=True, slots=True)
class ErrorsText:
    """`errors.yaml`."""

    where: Where
    families: tuple[Family, ...]
