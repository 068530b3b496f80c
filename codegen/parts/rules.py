"""The generated module of rules."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from codegen.parts.naming import TARGET, Naming, wrapped
from codegen.render import WIDTH, Output, literal, render
from codegen.spec import READING, Frame, Rule, Spec


def outputs(spec: Spec) -> list[Output]:
    """The table of rules with their checks."""
    sources = ["spec/yeto.yaml", "spec/types.yaml", "spec/frames/*.yaml"]
    return [render("rules.py.j2", f"{TARGET}/rules.py", sources, {"spec": spec, "view": RulesView(spec)})]


@dataclass(frozen=True, slots=True)
class RulesView(Naming):
    """What the template asks for."""

    def rule_imports(self) -> dict[str, list[str]]:
        """What the generated checks need."""
        constants: set[str] = set()
        heads: set[str] = set()
        functions: set[str] = set()
        enums: set[str] = {"FrameType"}
        contexts: set[str] = set()
        for rule in self.generated_rules():
            contexts.update(rule.needs)
            if rule.expr is None:
                continue
            for name in rule.expr.names():
                enum = self.enum_of(name)
                if name in self.spec.constants:
                    constants.add(name)
                elif name.startswith("size."):
                    heads.add(self.head_constant(name[5:]))
                elif enum is not None and name not in {
                    each.name for each in self.spec.frame(rule.frame).fields
                }:
                    enums.add(enum)
            functions |= {name for name, _ in rule.expr.functions() if name in self.spec.sizes}
        messages = {self.spec.frame(rule.frame).class_name for rule in self.generated_rules()}
        return {
            "constants": sorted(constants),
            "sizes": sorted(heads | functions),
            "types": sorted(enums),
            "facts": sorted(f"{name.capitalize()}Facts" for name in contexts if name not in READING),
            "messages": sorted(messages),
        }

    def generated_rules(self) -> list[Rule]:
        """Rules with a generated check, in order."""
        return [each for frame in self.spec.frames for each in frame.rules if each.generated]

    def signature(self, rule: Rule) -> str:
        """The arguments of a check."""
        message = self.spec.frame(rule.frame).class_name
        name = "message" if "message." in self.check_source(rule)[1] else "_message"
        parts = [f"{name}: {message}"]
        for need in rule.needs:
            parts.append(f"{need}: int" if need in READING else f"{need}: {need.capitalize()}Facts")
        return ", ".join(parts)

    def check_source(self, rule: Rule) -> tuple[str, str]:
        """The joining word of a check's operands, and its source."""
        if rule.enum is not None and rule.expr is None:
            values = ", ".join(str(value.value) for value in rule.enum.values)
            return "", f"message.{rule.field} in ({values})"
        assert rule.expr is not None
        tree = rule.expr.tree
        word = ""
        if isinstance(tree, ast.BoolOp):
            word = " and " if isinstance(tree.op, ast.And) else " or "
        return word, rule.expr.python(self.bind_rule)

    def operands(self, rule: Rule) -> tuple[str, ...]:
        """A check for the filter `returning`."""
        word, source = self.check_source(rule)
        return (word, *source.split(word)) if word else ("", source)

    def seen_source(self, rule: Rule) -> str | None:
        """A lambda for what the rule looked at."""
        if rule.expr is None:
            return self._lambda(rule, f"message.{rule.field}")
        comparison = rule.expr.sole_comparison()
        if comparison is not None:
            return self._lambda(rule, comparison.left.python(self.bind_rule))
        if rule.field in rule.expr.names():
            return self._lambda(rule, f"message.{rule.field}")
        return None

    def limit_lambda(self, rule: Rule) -> str | None:
        """A lambda for what the rule compares with."""
        comparison = rule.expr.sole_comparison() if rule.expr is not None else None
        if comparison is None or comparison.op in ("in", "not in", "is", "is not", "!="):
            return None
        return self._lambda(rule, comparison.right.python(self.bind_rule))

    def _lambda(self, rule: Rule, source: str) -> str:
        arguments = ["message" if "message." in source else "_message"]
        arguments += [each if _uses(source, each) else f"_{each}" for each in rule.needs]
        line = f"lambda {', '.join(arguments)}: {source}"
        if len("        limit=,") + len(line) <= WIDTH:
            return line
        return f"lambda {', '.join(arguments)}: (\n            {source}\n        )"

    def offset(self, frame: Frame, rule: Rule) -> int | None:
        """The first byte of a rule's field, where it is always the same."""
        for each in frame.fields:
            if each.name == rule.field:
                return each.offset
        bulk = frame.text.bulk
        if bulk is not None and bulk.name == rule.field:
            return frame.head_size
        return None

    def needs(self, rule: Rule) -> str:
        """The tuple of context names."""
        return literal(tuple(rule.needs))

    def all_rules(self) -> list[tuple[Frame, Rule]]:
        """Every rule with its frame, in reading order."""
        frames = [self.spec.header, *self.spec.frames]
        return [(frame, rule) for frame in frames for rule in (*frame.rules, *frame.extra_rules)]

    def sentence(self, rule: Rule) -> str:
        """The sentence as a literal of the table."""
        return wrapped(rule.sentence, indent=8, before=len("sentence=,"))

    def context_names(self) -> str:
        """The contexts that a caller may give."""
        return ", ".join(each.name for each in self.fact_contexts())


def _uses(source: str, name: str) -> bool:
    tree = ast.parse(source, mode="eval")
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
