"""Resolves the texts of frames against types, constants, contexts and error classes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from codegen.checks import check_counts, check_name, check_values, is_constant, is_name
from codegen.expr import Expr
from codegen.faults import SpecFault, Where
from codegen.model import (
    WHENS,
    BulkText,
    Constant,
    Context,
    Enum,
    ErrorText,
    Family,
    FieldText,
    FrameText,
    RuleText,
    Size,
    TypesText,
    When,
)
from codegen.numbers import Numbers, check_functions, unique
from codegen.resolved import Field, Frame, Rule

FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
# What the codec knows while it reads: bytes not read yet, and the receiver's limit for a chunked message.
READING = {
    "left": "the number of payload bytes not read yet",
    "total_limit": "the largest message that this side takes in CHUNKs",
}


@dataclass
class Builder:
    """Resolves the texts of frames against types, constants, contexts and error classes."""

    types: TypesText
    constants: Mapping[str, Constant]
    contexts: Mapping[str, Context]
    errors: Mapping[str, tuple[Family, ErrorText]]
    numbers: Numbers = field(init=False)
    ids: dict[str, Where] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = Numbers(self.constants, lambda name: None, {})
        self.scalars = unique(self.types.scalars, lambda each: (each.name, each.where), "type")
        self.enums = unique(self.types.enums, lambda each: (each.name, each.where), "type")
        self.structures = unique(self.types.structures, lambda each: (each.name, each.where), "type")
        self.sizes = unique(self.types.sizes, lambda each: (each.name, each.where), "size")
        self.enum_values = {value.name: value for enum in self.types.enums for value in enum.values}
        for scalar in self.types.scalars:
            if scalar.name not in FORMATS and scalar.name != "digest":
                raise SpecFault(scalar.where, scalar.name, "is not a scalar that the generator knows")
            width = self._scalar_size(scalar.name)
            right = struct.calcsize(f"<{FORMATS[scalar.name]}") if scalar.name in FORMATS else max(width, 1)
            if width != right:
                raise SpecFault(scalar.where, scalar.name, f"has {right} bytes, not {width}")
        for enum in self.types.enums:
            if enum.type not in self.scalars or enum.type not in FORMATS:
                raise SpecFault(enum.where, enum.name, f"there is no integer type {enum.type}")
            check_values(enum, self._scalar_size(enum.type))
        for size in self.types.sizes:
            self._check_size(size)
        for structure in self.types.structures:
            check_counts(structure.fields)

    def _check_size(self, size: Size) -> None:
        if (size.value is None) == (size.choose is None):
            raise SpecFault(size.where, size.name, "needs either a value, or choose and cases")
        if size.choose is not None:
            if size.choose not in size.args:
                raise SpecFault(size.where, "choose", f"{size.choose} is not one of the arguments")
            if "Dtype" not in self.enums:
                raise SpecFault(size.where, "cases", "there is no type Dtype to choose by")
            names = {value.name for value in self.enums["Dtype"].values}
            if set(size.cases) != names:
                raise SpecFault(size.where, "cases", f"must be exactly {', '.join(sorted(names))}")
        for expr in [size.value] if size.value else list(size.cases.values()):
            self.check_names(expr, set(size.args), None)
            # A limit is the size of the largest fragment, so a size may never shrink when numel grows.
            values = [self._size_at(expr, numel) for numel in (1, 2, 255, 256, 257, 4096, 1 << 33)]
            if values != sorted(values) or values[0] < 1:
                raise expr.fault("must be positive and grow with numel")

    def _size_at(self, expr: Expr, numel: int) -> int:
        return int(expr.evaluate(lambda name: numel if name == "numel" else self.numbers.get(name)))

    def frame(self, text: FrameText) -> Frame:
        """Resolve one frame: fields with sizes and offsets, and all rules in the order of judgement."""
        if not is_constant(text.frame):
            raise SpecFault(text.where, "frame", "a frame is named in capitals")
        slug = text.frame.lower()
        unique(text.fields, lambda each: (each.name, each.where), "field")
        if text.bulk:
            check_name(text.bulk.name, text.bulk.where)
        names = {each.name for each in text.fields} | ({text.bulk.name} if text.bulk else set())
        fields: list[Field] = []
        rules: list[Rule] = []
        extra: list[Rule] = []
        offset: int | None = 0
        seen: set[str] = set()
        for each in text.fields:
            resolved = self._field(text, each, offset, seen, names)
            fields.append(resolved)
            rules += resolved.rules
            if each.type in self.structures:
                extra += self._structure_rules(text, each.type)
            offset = (
                offset + resolved.size if offset is not None and resolved.fixed and resolved.size else None
            )
            seen.add(each.name)
        check_counts(text.fields)
        rules += self._bulk_rules(text, text.bulk, names) if text.bulk else []
        for each_rule in text.rules:
            rules.append(self._listed(text, slug, "", each_rule, names, names))
        for extension in text.extensions:
            for each_rule in extension.rules:
                rules.append(
                    self._listed(text, f"{slug}.{extension.name}", extension.name, each_rule, names, names)
                )
        if text.frame != "HEADER":
            extra += self._ends(text)
        size = offset if text.bulk is None else None
        return Frame(text, tuple(fields), size, tuple(rules), tuple(extra))

    def _field(
        self, frame: FrameText, text: FieldText, offset: int | None, seen: set[str], names: set[str]
    ) -> Field:
        check_name(text.name, text.where)
        size, form, enum = self._type(text)
        slug = frame.frame.lower()
        for key in ("count", "counts"):
            value = getattr(text, key)
            known = seen if key == "count" else names
            if value is not None and value not in known:
                raise SpecFault(
                    text.lines[key],
                    key,
                    f"{value} is not a field {'before this one' if key == 'count' else 'here'}",
                )
        if text.present is not None:
            self.check_names(text.present, seen | set(READING), "decode")
            self._check_condition(text.present)
        rules: list[Rule] = []
        prefix = f"{slug}.{text.name}"
        if enum is not None and text.must is None:
            values = ", ".join(f"{value.value} ({value.name})" for value in enum.values)
            rules.append(
                self._rule(
                    frame,
                    f"{prefix}.must",
                    text.name,
                    text.when,
                    text.else_,
                    None,
                    text.says or f"{text.name} is one of {values}",
                    text.doc,
                    text.where,
                    text.by,
                    seen | {text.name},
                    enum=enum,
                )
            )
        elif text.must is not None:
            rules.append(
                self._rule(
                    frame,
                    f"{prefix}.must",
                    text.name,
                    text.when,
                    text.else_,
                    text.must,
                    text.says or "",
                    text.doc,
                    text.where,
                    text.by,
                    seen | {text.name} | set((text.each or "").split()),
                    later=names,
                )
            )
        elif text.else_ is not None:
            raise SpecFault(text.lines["else"], "else", "has no must to belong to")
        for each in text.rules:
            rules.append(self._listed(frame, prefix, text.name, each, seen | {text.name}, names))
        return Field(text, size, form, enum, offset, tuple(rules))

    def _type(self, text: FieldText) -> tuple[int | None, str, Enum | None]:
        where = text.lines.get("type", text.where)
        parts = text.type.split()
        if len(parts) > 1 and all(part in FORMATS for part in parts):
            return (
                sum(self._scalar_size(part) for part in parts),
                "".join(FORMATS[part] for part in parts),
                None,
            )
        if text.type in self.enums:
            enum = self.enums[text.type]
            return self._scalar_size(enum.type), FORMATS[enum.type], enum
        if text.type in self.scalars:
            size = self._scalar_size(text.type)
            return size, FORMATS.get(text.type, f"{size}s"), None
        if text.type in self.structures:
            if text.count is None:
                raise SpecFault(where, "type", f"{text.type} repeats and needs a count")
            return None, "", None
        raise SpecFault(where, "type", f"there is no type {text.type}")

    def _scalar_size(self, name: str) -> int:
        return int(self.numbers.number(self.scalars[name].bytes))

    def _structure_rules(self, frame: FrameText, name: str) -> list[Rule]:
        """Rules of a repeated structure. They are listed under the frame, and judged by its hand-written
        parser.
        """
        rules: list[Rule] = []
        structure = self.structures[name]
        seen: set[str] = set()
        for each in structure.fields:
            if each.by is None and (each.must is not None or each.type in self.enums):
                raise SpecFault(each.where, each.name, "a rule inside a structure needs `by`")
            seen |= {each.name, *(each.each or "").split()}
            resolved = self._field(frame, each, None, seen, {other.name for other in structure.fields})
            rules += resolved.rules
        return rules

    def _bulk_rules(self, frame: FrameText, bulk: BulkText, names: set[str]) -> list[Rule]:
        slug = f"{frame.frame.lower()}.{bulk.name}"
        rules: list[Rule] = []
        if bulk.length is not None:
            expr = Expr.parse(f"len({bulk.name}) == {bulk.length.text}", bulk.length.where, "length")
            rules.append(
                self._rule(
                    frame,
                    f"{slug}.length",
                    bulk.name,
                    None,
                    bulk.else_,
                    expr,
                    "",
                    bulk.doc,
                    bulk.where,
                    None,
                    names,
                )
            )
        elif bulk.else_ is not None:
            raise SpecFault(bulk.lines["else"], "else", "has no length to belong to")
        if bulk.values is not None:
            checks = [("finite", "NonFinite", f"every value of the {bulk.name} is finite")]
            if bulk.values == "push":
                checks.append(
                    ("scale", "BadScale", "in a q4 session, every scale is finite and not negative")
                )
            for name, error, says in checks:
                rules.append(
                    self._rule(
                        frame,
                        f"{slug}.{name}",
                        bulk.name,
                        "bulk",
                        error,
                        None,
                        says,
                        "The learner is refused and nothing of it is merged (D11).",
                        bulk.lines["values"],
                        "yeto_proto.dtypes",
                        names,
                    )
                )
        for each in bulk.rules:
            rules.append(self._listed(frame, slug, bulk.name, each, names, names))
        return rules

    def _ends(self, frame: FrameText) -> list[Rule]:
        """Two rules that every frame has: its fields are there, and nothing is after them."""
        slug = f"{frame.frame.lower()}.payload"
        by = "yeto_proto.codec"
        says = "no field is cut off by the end of the payload"
        rules = []
        if frame.fields:
            rules.append(
                self._rule(
                    frame,
                    f"{slug}.complete",
                    "payload",
                    None,
                    "Truncated",
                    None,
                    says,
                    "",
                    frame.where,
                    by,
                    set(),
                )
            )
        told_by_length = any(
            each.present is not None and "left" in each.present.names() for each in frame.fields
        )
        if frame.bulk is None and not told_by_length:
            says = "the payload ends with its last field" if frame.fields else "the payload is empty"
            rules.append(
                self._rule(
                    frame,
                    f"{slug}.end",
                    "payload",
                    None,
                    "TrailingBytes",
                    None,
                    says,
                    "",
                    frame.where,
                    by,
                    set(),
                )
            )
        return rules

    def _listed(
        self, frame: FrameText, prefix: str, owner: str, text: RuleText, known: set[str], later: set[str]
    ) -> Rule:
        if not is_name(text.id):
            raise SpecFault(text.lines["id"], "id", f"{text.id!r} is not a name in lower case")
        if text.must is None and text.says is None:
            raise SpecFault(text.where, text.id, "needs must, or says and by")
        if text.must is None and text.by is None:
            raise SpecFault(text.where, text.id, "needs `by`, since no check can be made from prose")
        return self._rule(
            frame,
            f"{prefix}.{text.id}",
            owner,
            text.when,
            text.else_,
            text.must,
            text.says or "",
            text.doc,
            text.where,
            text.by,
            known,
            later=later,
        )

    def _rule(
        self,
        frame: FrameText,
        id: str,
        owner: str,
        when: When | None,
        error: str | None,
        expr: Expr | None,
        says: str,
        doc: str,
        where: Where,
        by: str | None,
        known: set[str],
        later: set[str] | None = None,
        enum: Enum | None = None,
    ) -> Rule:
        when = when or "decode"
        if error is None:
            raise SpecFault(where, "else", f"is missing: {id} names no error class")
        if error not in self.errors:
            raise SpecFault(where, "else", f"there is no error class {error}")
        if id in self.ids:
            raise SpecFault(where, id, f"this rule exists already, in {self.ids[id]}")
        self.ids[id] = where
        needs: tuple[str, ...] = ()
        before = False
        if expr is not None:
            fields = known | (later or set()) if when != "decode" else known
            needs = self.check_names(expr, fields | (set(READING) if when == "decode" else set()), when)
            self._check_condition(expr)
            before = "left" in expr.names() and owner not in expr.names()
        doc, says = " ".join(doc.split()), " ".join(says.split())
        return Rule(id, frame.frame, owner, when, error, expr, says, doc, where, by, needs, before, enum)

    def _check_condition(self, expr: Expr) -> None:
        if not expr.is_condition(self._is_bool):
            raise expr.fault(f"{expr.text} is no condition; it needs a comparison")

    def _is_bool(self, name: str) -> bool:
        root, _, fact = name.partition(".")
        facts = self.contexts[root].facts if root in self.contexts else ()
        return any(each.name == fact and each.type == "bool" for each in facts)

    def check_names(self, expr: Expr, known: set[str], when: When | None) -> tuple[str, ...]:
        """Check every name of an expression; return the contexts that it needs."""
        check_functions(expr, self.sizes)
        needs: dict[str, None] = {}
        for name in expr.names():
            root = name.partition(".")[0]
            if (
                name in known
                or name in self.constants
                or name in self.enum_values
                or root in ("size", "preset")
            ):
                if name in READING:
                    needs[name] = None
                continue
            if root in known and "." in name:
                continue
            if root not in self.contexts or when is None:
                raise expr.fault(f"{name} is not known here")
            context = self.contexts[root]
            if "." in name and name.partition(".")[2] not in {fact.name for fact in context.facts}:
                raise expr.fault(f"{root} has no fact {name.partition('.')[2]}")
            if _order(context.known) > _order(when):
                raise expr.fault(f"{name} is known from `{context.known}` on, and this is judged at `{when}`")
            needs[context.of or root] = None
        return tuple(needs)


def _order(when: When) -> int:
    return WHENS.index(when)
