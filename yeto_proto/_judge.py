"""Rules as objects: what the generated tables hold, and how they are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors_base import YetoError

When = Literal["decode", "bulk", "link", "round"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition of the specification.

    `check(message, *needs)` is None for a rule that the hand-written module `by` judges. `needs` names the
    contexts that `check`, `seen` and `limit` take after the message, in order. `offset` is the first byte of
    the field in the payload, when it is the same in every payload. `before` tells that the rule is judged
    before its field is read.
    """

    id: str
    frame: str
    field: str
    when: When
    error: type[YetoError]
    sentence: str
    offset: int | None = None
    needs: tuple[str, ...] = ()
    check: Callable[..., bool] | None = None
    seen: Callable[..., object] | None = None
    limit: Callable[..., object] | None = None
    by: str | None = None
    before: bool = False

    def broken(self, message: Any, context: Mapping[str, Any], offset: int | None = None) -> YetoError | None:
        """The error if the rule does not hold. `context` has all that the rule needs; `offset` overrides the
        rule's own.
        """
        if self.check is None:
            return None
        facts = [context[name] for name in self.needs]
        if self.check(message, *facts):
            return None
        return self.error(
            rule=self.id,
            frame=self.frame,
            field=self.field,
            offset=self.offset if offset is None else offset,
            limit=self.limit(message, *facts) if self.limit else None,
            seen=self.seen(message, *facts) if self.seen else None,
            detail=self.sentence,
        )

    def error_at(
        self, *, offset: int | None, seen: object = None, limit: object = None, detail: str = ""
    ) -> YetoError:
        """The error of this rule, for code that judges it by hand."""
        return self.error(
            rule=self.id,
            frame=self.frame,
            field=self.field,
            offset=self.offset if offset is None else offset,
            limit=limit,
            seen=seen,
            detail=detail or self.sentence,
        )


def first_of(rules: Iterable[Rule], message: Any, context: Mapping[str, Any]) -> YetoError | None:
    """The error of the first rule that does not hold.

    A rule that needs something which the context holds as None is passed over. Something that the context
    does not hold at all is a mistake of the caller, who would otherwise believe that it was judged: KeyError.
    """
    for rule in rules:
        for name in rule.needs:
            if context[name] is None:
                break
        else:
            error = rule.broken(message, context)
            if error is not None:
                return error
    return None
