"""Refusals of files: the rule's id is enough, its class and field are those of the specification."""

from __future__ import annotations

from yeto_proto._generated.files import RULES
from yeto_proto.errors_base import YetoError


def broken(
    rule_id: str,
    *,
    field: str | None = None,
    offset: int | None = None,
    limit: object = None,
    seen: object = None,
    detail: str = "",
) -> YetoError:
    """The error of this rule.  `field` stands in for the rule's own where a whole file is judged."""
    rule = RULES[rule_id]
    return rule.error(
        rule=rule.id,
        frame=rule.file,
        field=field or rule.field,
        offset=offset,
        limit=limit,
        seen=seen,
        detail=detail,
    )
