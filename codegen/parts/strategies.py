"""Generated Hypothesis strategies: for each frame valid messages, and payloads that break one rule."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from codegen.expr import EDGES
from codegen.parts.frames import FramesView
from codegen.parts.naming import Naming
from codegen.render import WIDTH, Output, render
from codegen.solve import Bound, solve
from codegen.spec import Field, Frame, Rule, Spec

TARGET = "yeto_proto/testing/strategies.py"
_MAXIMA = {"B": "U8", "H": "U16", "I": "U32", "Q": "U64"}
# Rules of time `decode` that need a stream, so that they do not come out of `codec.decode`.
_STREAM = ("yeto_proto.reader", "yeto_proto.chunks")


def outputs(spec: Spec) -> list[Output]:
    """The module of strategies."""
    sources = ["spec/types.yaml", "spec/limits.yaml", "spec/frames/*.yaml"]
    return [render("strategies.py.j2", TARGET, sources, {"spec": spec, "view": StrategiesView(spec)})]


@dataclass(frozen=True, slots=True)
class StrategiesView(Naming):
    """What the template asks for."""

    # -- valid messages -------------------------------------------------------------------------------------

    def steps(self, frame: Frame) -> list[str]:
        """Assignments that draw every field; bulk of a free length first, since its length bounds others."""
        lines: list[str] = []
        drawn: set[str] = set()
        bulk = frame.text.bulk
        if bulk is not None and bulk.length is None:
            lines.append(self._free_bulk(frame, drawn))
            drawn.add(f"len({bulk.name})")
        for each in frame.fields:
            line = self._field(frame, each, drawn)
            if line is not None:
                lines.append(line)
            drawn.add(each.name)
        if bulk is not None and bulk.length is not None:
            lines.append(f"{bulk.name} = draw(blobs({bulk.length.python(self._bind_local)}))")
        return lines

    def arguments(self, frame: Frame) -> list[str]:
        """Keyword arguments of the message, without the constants that it sets itself."""
        view = FramesView(self.spec)
        items = [item for item in view.message_fields(frame) if item["default"] is None]
        return [f"{item['name']}={item['name']}" for item in items]

    def construction(self, frame: Frame) -> str:
        """The statement that returns the message, on one line if it fits."""
        arguments = self.arguments(frame)
        opening, closing = ("return kept(", "), session)") if self._unsolved(frame) else ("return ", ")")
        line = f"{opening}{frame.class_name}({', '.join(arguments)}{closing}"
        if 4 + len(line) <= WIDTH:
            return line
        if closing == ")":
            inner = "".join(f"        {each},\n" for each in arguments)
            return f"return {frame.class_name}(\n{inner}    )"
        inner = "".join(f"            {each},\n" for each in arguments)
        return f"return kept(\n        {frame.class_name}(\n{inner}        ),\n        session,\n    )"

    def needs_limit(self, frame: Frame) -> bool:
        """Whether a rule asks for the receiver's limit of a message in CHUNKs."""
        return any("total_limit" in rule.needs for rule in frame.rules if rule.when == "decode")

    def _field(self, frame: Frame, each: Field, drawn: set[str]) -> str | None:
        fact = self._session_fact(each)
        if fact is not None:
            return f"{each.name} = {fact}"
        counted = each.text.counts
        if counted is not None and self._session_fact(self._named(frame, counted)) is not None:
            return None
        if FramesView(self.spec).default(each) is not None:
            return None
        if each.enum is not None:
            return f"{each.name} = draw(st.sampled_from({each.enum.name}))"
        if each.text.type == "digest":
            return f"{each.name} = draw(digests())"
        low, high, exact = self._bounds(frame, each.name, drawn, _MAXIMA[each.format])
        if each.text.count is not None:
            element = f"integers(0, {_MAXIMA[each.format]})"
            return f"{each.name} = tuple(draw(several({element}, {each.text.count})))"
        if exact is not None:
            return f"{each.name} = {exact}"
        return f"{each.name} = draw(integers({low}, {high}))"

    def _free_bulk(self, frame: Frame, drawn: set[str]) -> str:
        bulk = frame.text.bulk
        assert bulk is not None
        if bulk.type == "text":
            return f"{bulk.name} = draw(texts())"
        low, high, _ = self._bounds(frame, f"len({bulk.name})", drawn, "SHORT")
        return f"{bulk.name} = draw(blobs(draw(integers({low}, {high}))))"

    def _named(self, frame: Frame, name: str) -> Field:
        return next(each for each in frame.fields if each.name == name)

    def _session_fact(self, each: Field) -> str | None:
        """The fact of the session that the field must equal once there is a session."""
        for rule in each.rules:
            comparison = rule.expr.sole_comparison() if rule.expr is not None else None
            if rule.when == "link" and comparison is not None and comparison.op == "==":
                right = comparison.right.text
                if comparison.left.text == each.name and right.startswith("session."):
                    return right
        return None

    def _bounds(self, frame: Frame, variable: str, drawn: set[str], most: str) -> tuple[str, str, str | None]:
        """Lowest and highest value that the rules allow for a variable, or the one value."""
        lows: list[str] = []
        highs: list[str] = [most]
        own = {each.name for each in frame.fields}
        if frame.text.bulk is not None:
            own.add(f"len({frame.text.bulk.name})")
        for _, bound in self._solved(frame, variable):
            unknown = (bound.names() & own) - drawn
            if unknown and not bound.relaxed(unknown):
                continue
            nearest = min(EDGES[bound.op].accepted, key=abs)
            source = bound.python(self._bind_local, nearest, unknown)
            if bound.op == "==" and not unknown:
                return "", "", source
            if bound.op in (">", ">="):
                lows.append(source)
            elif bound.op in ("<", "<="):
                highs.append(source)
            elif bound.op == "!=" and bound.python(self._bind_local) == "0":
                lows.append("1")
        return _extreme("max", lows or ["0"]), _extreme("min", highs), None

    def _solved(self, frame: Frame, variable: str) -> list[tuple[Rule, Bound]]:
        found = []
        for rule in frame.rules:
            if rule.when != "decode" or rule.by is not None or rule.expr is None or "left" in rule.needs:
                continue
            comparison = rule.expr.sole_comparison()
            if comparison is None:
                continue
            bound = solve(comparison, variable)
            if bound is not None:
                found.append((rule, bound))
        return found

    def _unsolved(self, frame: Frame) -> bool:
        """Whether a rule is left that drawing does not keep by itself."""
        for rule in frame.rules:
            if rule.when != "decode" or rule.by is not None or rule.expr is None or "left" in rule.needs:
                continue
            comparison = rule.expr.sole_comparison()
            names = [each.name for each in frame.fields]
            if frame.text.bulk is not None:
                names.append(f"len({frame.text.bulk.name})")
            if comparison is None or all(solve(comparison, name) is None for name in names):
                return True
        return False

    # -- names ----------------------------------------------------------------------------------------------

    def _bind_local(self, name: str) -> str:
        """A name inside a strategy that draws the fields into variables."""
        text = self.bind_rule(name)
        return text.replace("message.", "")

    # -- broken payloads ------------------------------------------------------------------------------------

    def breakers(self, frame: Frame) -> list[str]:
        """Items of a table: each rule that `decode` judges, with the source of what breaks it."""
        return [
            self._item(frame, rule)
            for rule in (*frame.rules, *frame.extra_rules)
            if rule.when == "decode" and rule.by not in _STREAM
        ]

    def _item(self, frame: Frame, rule: Rule) -> str:
        function, arguments = self._breaker(frame, rule)
        if not function:
            return f'"{rule.id}": {arguments[0]},'
        line = f'"{rule.id}": {function}({", ".join(arguments)}),'
        if 12 + len(line) <= WIDTH:
            return line
        inner = ", ".join(arguments)
        if 16 + len(inner) > WIDTH:
            inner = ",\n                ".join(map(_broken_lambda, arguments)) + ","
        return f'"{rule.id}": {function}(\n                {inner}\n            ),'

    def _breaker(self, frame: Frame, rule: Rule) -> tuple[str, list[str]]:
        """The function and its arguments; without a function, the one argument stands alone."""
        if rule.id.endswith(".payload.complete"):
            return "cut", [self.head_constant(frame.name)]
        if rule.id.endswith(".payload.end"):
            return "extended", []
        if rule.enum is not None and rule.by is None and rule.expr is None:
            values = ", ".join(str(value.value) for value in rule.enum.values)
            return "number", [f'"{rule.field}"', f"lambda message, left: none_of(({values}), U8)"]
        if rule.before:
            return "tail", [f'"{rule.field}"']
        if rule.by is None and rule.expr is not None:
            found = self._number(frame, rule) or self._length(frame, rule)
            if found is not None:
                return found
        return "", [f'SPECIAL["{rule.id}"]']

    def _number(self, frame: Frame, rule: Rule) -> tuple[str, list[str]] | None:
        comparison = rule.expr.sole_comparison() if rule.expr is not None else None
        for each in reversed(frame.fields) if comparison is not None else ():
            usable = each.format in _MAXIMA and each.text.count is None
            bound = solve(comparison, each.name) if usable and comparison is not None else None
            if bound is not None:
                refused = self._refused(bound, _MAXIMA[each.format])
                return "number", [f'"{each.name}"', f"lambda message, left: {refused}"]
        return None

    def _length(self, frame: Frame, rule: Rule) -> tuple[str, list[str]] | None:
        bulk = frame.text.bulk
        comparison = rule.expr.sole_comparison() if rule.expr is not None else None
        if bulk is None or comparison is None:
            return None
        bound = solve(comparison, f"len({bulk.name})")
        return None if bound is None else ("length", [f"lambda message, left: {self._refused(bound, '')}"])

    def _refused(self, bound: Bound, most: str) -> str:
        """The values that a bound refuses, as source; without `most`, only a little beyond the bound."""

        def at(add: int) -> str:
            return bound.python(self.bind_rule, add)

        refused = EDGES[bound.op].refused
        upper = f", {most}" if most else ""
        if bound.op == "==":
            return f"apart_from({at(0)}{upper})"
        if bound.op == "!=":
            return f"exactly({at(0)})"
        if bound.op in ("<", "<="):
            return f"at_least({at(min(refused))}{upper})"
        return f"at_most({at(max(refused))})"

    def used(self, text: str, module: str) -> str:
        """An import of the names that a rendered text uses, from a module of the package."""
        constants = set(self.spec.constants)
        frames = [frame.name for frame in self.spec.frames]
        names = {
            "constants": constants,
            "sizes": {*self.spec.sizes, *map(self.head_constant, frames)} - constants,
            "types": {*self.spec.enums, "FrameType", "Role"},
            "messages": {"Message", *(frame.class_name for frame in self.spec.frames)},
            "limits": {"chunk_total_limit"},
        }[module]
        found = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} & names
        return self.imports(f"yeto_proto._generated.{module}", sorted(found)) + "\n" if found else ""

    def used_support(self, text: str) -> str:
        """An import of the helpers that a rendered text uses."""
        helpers = """
            SHORT U8 U16 U32 U64 Broken apart_from at_least at_most blobs broken cut digests exactly extended
            integers kept length none_of number several tail texts
        """
        found = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} & set(
            helpers.split()
        )
        return self.imports(".support", sorted(found))


def _broken_lambda(text: str) -> str:
    """An argument on a line of its own; a call inside a lambda is opened up when that is too long too."""
    if 16 + len(text) + 1 <= WIDTH:
        return text
    head, call, rest = text.partition("(")
    return f"{head}{call}\n                    {rest.removesuffix(')')}\n                )"


def _extreme(function: str, values: list[str]) -> str:
    unique = list(dict.fromkeys(values))
    return unique[0] if len(unique) == 1 else f"{function}({', '.join(unique)})"
