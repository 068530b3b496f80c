"""Puts the files of `spec/` together: reads them, resolves names and numbers, and derives frames and rules.

What is wrong beyond one mapping is found here: unknown types and error classes, repeated names, a rule that names something not
known at its time, a constant that depends on itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codegen.bind import bind
from codegen.expr import BUILTIN_FUNCTIONS, Expr
from codegen.faults import NOWHERE, SpecFault, Where
from codegen.load import read
from codegen.model import (
    About,
    BulkText,
    Constant,
    Context,
    ContextsText,
    Enum,
    ErrorsText,
    ErrorText,
    Family,
    FieldText,
    FrameText,
    LimitsText,
    NumericsText,
    RuleText,
    Size,
    TypesText,
    When,
)

FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
# What the codec itself knows while it reads a payload: bytes not read yet, and the receiver's limit for a chunked message.
READING = {
    "left": "the number of payload bytes not read yet",
    "total_limit": "the largest message that this side takes in CHUNKs",
}
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition with an id. `expr` is None when only prose says it; `by` names the hand-written module that judges it."""

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
    """A resolved field. `size` and `format` are those of one element; `offset` is known while all before it is fixed."""

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
    layout_rules: tuple[Rule, ...]
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
        """Every rule of header, frames and layout, in reading order."""
        found: list[Rule] = list(self.header.rules)
        for each in self.frames:
            found += each.rules
            found += each.extra_rules
        return tuple(found)

    def constant(self, name: str) -> Any:
        """The value of a constant: a number, text, bytes or a tuple of integers."""
        return _Numbers(self.constants, self._sized, self._numbers).get(name)

    def _sized(self, name: str) -> int | None:
        if name == "header":
            return self.header.size
        match = [each for each in self.frames if each.name == name]
        return match[0].head_size if match else None


class _Numbers:
    """Evaluates constants, each after the ones that it names."""

    def __init__(
        self, constants: Mapping[str, Constant], sized: Callable[[str], int | None], known: dict[str, Any]
    ) -> None:
        self.constants = constants
        self.sized = sized
        self.known = known
        self.busy: list[str] = []

    def get(self, name: str) -> Any:
        if name not in self.known:
            each = self.constants[name]
            if name in self.busy:
                raise SpecFault(each.where, name, "depends on itself")
            self.busy.append(name)
            self.known[name] = self._value(each)
            self.busy.pop()
        return self.known[name]

    def _value(self, each: Constant) -> Any:
        given = [each.value, each.values, each.text, each.bytes]
        if sum(value is not None for value in given) != 1:
            raise SpecFault(each.where, each.name, "needs exactly one of value, values, text and bytes")
        if each.text is not None:
            return each.text
        if each.bytes is not None:
            return each.bytes.encode("latin-1")
        if each.values is not None:
            return each.values
        if isinstance(each.value, Expr):
            return self.number(each.value)
        return each.value

    def number(self, expr: Expr) -> Any:
        def lookup(name: str) -> Any:
            if name in self.constants:
                return self.get(name)
            size = self.sized(name.removeprefix("size.")) if name.startswith("size.") else None
            if size is None:
                raise expr.fault(f"{name} is not known here")
            return size

        check_functions(expr, {})
        return expr.evaluate(lookup)


def check_functions(expr: Expr, sizes: Mapping[str, Size]) -> None:
    """Raises `SpecFault` for an unknown function or a wrong number of arguments."""
    for name, count in expr.functions():
        expected = BUILTIN_FUNCTIONS.get(name, len(sizes[name].args) if name in sizes else None)
        if expected is None:
            raise expr.fault(f"there is no function {name}")
        if count != expected:
            raise expr.fault(f"{name} takes {expected} arguments, not {count}")


def load_spec(root: Path) -> Spec:
    """Read and check `spec/`. Raises `SpecFault` at the first fault."""
    about = bind(About, read(root / "yeto.yaml", f"{root.name}/yeto.yaml"))
    types = bind(TypesText, read(root / "types.yaml", f"{root.name}/types.yaml"))
    limits = bind(LimitsText, read(root / "limits.yaml", f"{root.name}/limits.yaml"))
    numerics = bind(NumericsText, read(root / "numerics.yaml", f"{root.name}/numerics.yaml"))
    contexts = bind(ContextsText, read(root / "contexts.yaml", f"{root.name}/contexts.yaml"))
    errors = bind(ErrorsText, read(root / "errors.yaml", f"{root.name}/errors.yaml"))
    constants = _unique(
        [*about.constants, *limits.constants, *numerics.constants], lambda each: (each.name, each.where), "constant"
    )
    for name, constant in constants.items():
        if not _CONSTANT.match(name):
            raise SpecFault(constant.where, name, "a constant is named in capitals")
    builder = _Builder(
        types=types,
        constants=constants,
        contexts=_unique(contexts.contexts, lambda each: (each.name, each.where), "context"),
        errors=_errors(errors),
    )
    texts = _frame_texts(root)
    header = builder.frame(
        FrameText(
            frame="HEADER",
            id=0,
            direction="either",
            carried_by="any",
            doc=about.header.doc,
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
        layout_rules=(),
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
    _unique(texts, lambda each: (each.frame, each.where), "frame")
    for want, text in enumerate(texts, start=1):
        if text.id != want:
            raise SpecFault(text.lines["id"], "id", f"ids count from 1 without gaps; expected {want}")
    return texts


def _unique(items: Iterable[Any], key: Callable[[Any], tuple[str, Where]], what: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in items:
        name, where = key(each)
        if name in found:
            raise SpecFault(where, name, f"this {what} exists already")
        found[name] = each
    return found


def _errors(text: ErrorsText) -> dict[str, tuple[Family, ErrorText]]:
    found = _unique(
        [(family, each) for family in text.families for each in family.errors],
        lambda pair: (pair[1].name, pair[1].where),
        "error class",
    )
    for family in text.families:
        if family.name in found:
            raise SpecFault(family.where, family.name, "is a family and cannot be a class in one")
    return found


@dataclass
class _Builder:
    """Resolves the texts of frames against types, constants, contexts and error classes."""

    types: TypesText
    constants: Mapping[str, Constant]
    contexts: Mapping[str, Context]
    errors: Mapping[str, tuple[Family, ErrorText]]
    numbers: _Numbers = field(init=False)
    ids: dict[str, Where] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = _Numbers(self.constants, lambda name: None, {})
        self.scalars = _unique(self.types.scalars, lambda each: (each.name, each.where), "type")
        self.enums = _unique(self.types.enums, lambda each: (each.name, each.where), "type")
        self.structures = _unique(self.types.structures, lambda each: (each.name, each.where), "type")
        self.sizes = _unique(self.types.sizes, lambda each: (each.name, each.where), "size")
        self.enum_values = {value.name: value for enum in self.types.enums for value in enum.values}
        for scalar in self.types.scalars:
            if scalar.name not in FORMATS and scalar.name != "digest":
                raise SpecFault(scalar.where, scalar.name, "is not a scalar that the generator knows")
        for size in self.types.sizes:
            self._check_size(size)

    def _check_size(self, size: Size) -> None:
        if (size.value is None) == (size.choose is None):
            raise SpecFault(size.where, size.name, "needs either a value, or choose and cases")
        if size.choose is not None:
            if size.choose not in size.args:
                raise SpecFault(size.where, "choose", f"{size.choose} is not one of the arguments")
            names = {value.name for value in self.enums["Dtype"].values}
            if set(size.cases) != names:
                raise SpecFault(size.where, "cases", f"must be exactly {', '.join(sorted(names))}")
        for expr in [size.value] if size.value else list(size.cases.values()):
            self._check_names(expr, set(size.args), None)
            # A limit is the size of the largest fragment, so a size may never shrink when numel grows.
            values = [self._size_at(expr, numel) for numel in (1, 2, 255, 256, 257, 4096, 1 << 33)]
            if values != sorted(values) or values[0] < 1:
                raise expr.fault("must be positive and grow with numel")

    def _size_at(self, expr: Expr, numel: int) -> int:
        return int(expr.evaluate(lambda name: numel if name == "numel" else self.numbers.get(name)))

    def frame(self, text: FrameText) -> Frame:
        """Resolve one frame: fields with sizes and offsets, and all rules in the order in which they are judged."""
        if not _CONSTANT.match(text.frame):
            raise SpecFault(text.where, "frame", "a frame is named in capitals")
        slug = text.frame.lower()
        _unique(text.fields, lambda each: (each.name, each.where), "field")
        names = {each.name for each in text.fields} | ({text.bulk.name} if text.bulk else set())
        fields: list[Field] = []
        rules: list[Rule] = []
        extra: list[Rule] = []
        offset: int | None = 0
        seen: set[str] = set()
        for each in text.fields:
            if not _NAME.match(each.name):
                raise SpecFault(each.where, "name", f"{each.name!r} is not a name in lower case")
            resolved = self._field(text, each, offset, seen, names)
            fields.append(resolved)
            rules += resolved.rules
            if each.type in self.structures:
                extra += self._structure_rules(text, each.type)
            offset = offset + resolved.size if offset is not None and resolved.fixed and resolved.size else None
            seen.add(each.name)
        rules += self._bulk_rules(text, text.bulk, names) if text.bulk else []
        for each_rule in text.rules:
            rules.append(self._listed(text, slug, "", each_rule, names, names))
        for extension in text.extensions:
            for each_rule in extension.rules:
                rules.append(self._listed(text, f"{slug}.{extension.name}", extension.name, each_rule, names, names))
        if text.frame != "HEADER":
            extra += self._ends(text)
        size = offset if text.bulk is None else None
        return Frame(text, tuple(fields), size, tuple(rules), tuple(extra))

    def _field(self, frame: FrameText, text: FieldText, offset: int | None, seen: set[str], names: set[str]) -> Field:
        size, form, enum = self._type(text)
        slug = frame.frame.lower()
        for key in ("count", "counts"):
            value = getattr(text, key)
            known = seen if key == "count" else names
            if value is not None and value not in known:
                raise SpecFault(text.lines[key], key, f"{value} is not a field {'before this one' if key == 'count' else 'here'}")
        if text.present is not None:
            self._check_names(text.present, seen | set(READING), "decode")
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
                    f"{text.name} is one of {values}",
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
                    "",
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
            return sum(self._scalar_size(part) for part in parts), "".join(FORMATS[part] for part in parts), None
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
        """Rules of a repeated structure. They are listed under the frame, and judged by its hand-written parser."""
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
                    frame, f"{slug}.length", bulk.name, None, bulk.else_, expr, "", bulk.doc, bulk.where, None, names
                )
            )
        elif bulk.else_ is not None:
            raise SpecFault(bulk.lines["else"], "else", "has no length to belong to")
        if bulk.values is not None:
            checks = [("finite", "NonFinite", f"every value of the {bulk.name} is finite")]
            if bulk.values == "push":
                checks.append(("scale", "BadScale", "in a q4 session, every scale is finite and not negative"))
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
                self._rule(frame, f"{slug}.complete", "payload", None, "Truncated", None, says, "", frame.where, by, set())
            )
        if frame.bulk is None:
            says = "the payload ends with its last field" if frame.fields else "the payload is empty"
            rules.append(
                self._rule(frame, f"{slug}.end", "payload", None, "TrailingBytes", None, says, "", frame.where, by, set())
            )
        return rules

    def _listed(
        self, frame: FrameText, prefix: str, owner: str, text: RuleText, known: set[str], later: set[str]
    ) -> Rule:
        if not _NAME.match(text.id):
            raise SpecFault(text.lines["id"], "id", f"{text.id!r} is not a name in lower case")
        if (text.must is None) == (text.says is None):
            raise SpecFault(text.where, text.id, "needs either must or says")
        if text.says is not None and text.by is None:
            raise SpecFault(text.where, text.id, "needs `by`, since no check can be made from prose")
        says = " ".join((text.says or "").split())
        return self._rule(
            frame,
            f"{prefix}.{text.id}",
            owner,
            text.when,
            text.else_,
            text.must,
            says,
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
            needs = self._check_names(expr, fields | (set(READING) if when == "decode" else set()), when)
            before = "left" in expr.names() and owner not in expr.names()
            if by is not None and not says:
                says = expr.sentence()
        doc = " ".join(doc.split())
        return Rule(id, frame.frame, owner, when, error, expr, says, doc, where, by, needs, before, enum)

    def _check_names(self, expr: Expr, known: set[str], when: When | None) -> tuple[str, ...]:
        """Check every name of an expression; return the contexts that it needs."""
        check_functions(expr, self.sizes)
        needs: dict[str, None] = {}
        for name in expr.names():
            root = name.partition(".")[0]
            if name in known or name in self.constants or name in self.enum_values or root in ("size", "preset"):
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
    return ("decode", "bulk", "link", "round").index(when)


def _check_whole(spec: Spec, builder: _Builder) -> None:
    """What can only be checked when everything is read."""
    for name in spec.constants:
        spec.constant(name)
    by_name = {each.name: each for each in spec.frames}
    for frame in spec.frames:
        answers = frame.text.answers
        if answers is not None and answers not in by_name:
            raise SpecFault(frame.text.lines["answers"], "answers", f"there is no frame {answers}")
        if frame.size is None and frame.text.limit is None:
            bulk = frame.text.bulk
            if bulk is not None and bulk.length is None and bulk.limit is None:
                raise SpecFault(bulk.where, bulk.name, "needs a length, a limit, or a limit of the frame")
        if frame.text.limit is not None:
            builder._check_names(frame.text.limit, set(), "decode")
        if frame.text.bulk is not None and frame.text.bulk.limit is not None:
            builder._check_names(frame.text.bulk.limit, set(), "decode")
    for side in ("syncer", "learner"):
        expr: Expr = getattr(spec.limits.chunk_total, side)
        check_functions(expr, {})
        for name in expr.names():
            known = name in spec.constants or (name.startswith("limit.") and name[6:] in by_name)
            if not known:
                raise expr.fault(f"{name} is not known here")
    presets = [each for each in spec.limits.constants if each.tiny is not None]
    for each in presets:
        if not isinstance(spec.constant(each.name), int):
            raise SpecFault(each.where or NOWHERE, "tiny", "only an integer can have a tiny value")
    used = {name for rule in spec.rules() if rule.expr for name in rule.expr.names()}
    for name in used:
        if name.startswith("preset.") and name[7:].upper() not in {each.name for each in spec.limits.constants}:
            raise SpecFault(NOWHERE, name, "is not a preset limit")
