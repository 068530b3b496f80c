"""Frames, fields and rules with every name resolved: what parts and templates work on."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.expr import Expr
from codegen.faults import Where
from codegen.model import Enum, FieldText, FrameText, When


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition with an id. `expr` is None when only prose says it; `by` names the hand-written module
    that judges it.
    """

    id: str
    frame: str
    field: str
    when: When
    error: str
    expr: Expr | None
    says: str
    doc: str
    where: Where
    by: str | None = None
    needs: tuple[str, ...] = ()
    before: bool = False
    enum: Enum | None = None

    @property
    def function(self) -> str:
        """Name of the generated check."""
        return "_" + self.id.replace(".", "_")

    @property
    def generated(self) -> bool:
        """Whether a check is generated for it."""
        return self.by is None and (self.expr is not None or self.enum is not None)

    @property
    def sentence(self) -> str:
        """What it demands, without a full stop."""
        return self.says or (self.expr.sentence() if self.expr else "")


@dataclass(frozen=True, slots=True)
class Field:
    """A resolved field. `size` and `format` are those of one element; `offset` is known while all before it
    is fixed.
    """

    text: FieldText
    size: int | None
    format: str
    enum: Enum | None
    offset: int | None
    rules: tuple[Rule, ...]

    @property
    def name(self) -> str:
        return self.text.name

    @property
    def fixed(self) -> bool:
        """Whether it is there always and once."""
        return self.size is not None and self.text.count is None and self.text.present is None


@dataclass(frozen=True, slots=True)
class Frame:
    """A resolved frame."""

    text: FrameText
    fields: tuple[Field, ...]
    size: int | None
    rules: tuple[Rule, ...]
    extra_rules: tuple[Rule, ...] = ()

    @property
    def name(self) -> str:
        return self.text.frame

    @property
    def slug(self) -> str:
        """Lower-case name: file name, rule prefix, function names."""
        return self.name.lower()

    @property
    def class_name(self) -> str:
        """Name of the message class."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def head_size(self) -> int:
        """Bytes of the fixed fields before the first variable one."""
        return sum(each.size or 0 for each in self.fields if each.fixed and each.offset is not None)

    def received_by(self, role: str) -> bool:
        """Whether this side takes it at some time."""
        return self.text.direction == "either" or self.text.direction.endswith(role)
