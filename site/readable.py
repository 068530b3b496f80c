"""Docstrings of the reference as lists: what reads `name, other (what): text` becomes an item.

In a docstring the arguments stand one under the other, which Markdown would join into one paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

_ONE = r"`?[a-z_]\w*`?(?: \([^()]*\))?"
_HEAD = rf"{_ONE}(?:, {_ONE})*: "
_ITEM = re.compile(rf"(?P<head>{_HEAD})(?P<rest>.*)")
_NEXT = re.compile(rf"(?<=[.;])\s+(?={_HEAD})")
_NAME = re.compile(r"(?<![\w\"`])[a-z_]\w*(?![\w\"`])(?![^(]*\))")


def listed(text: str) -> str:
    """The text of a docstring with its arguments as Markdown lists. Examples, which are indented behind an
    empty line, stay as they are."""
    return "\n\n".join("\n".join(_paragraph(each.splitlines())) for each in re.split(r"\n\s*\n", text))


def _paragraph(lines: list[str]) -> Iterator[str]:
    """One paragraph: all of it when it begins with an argument, or what is indented under its first line."""
    if lines and _ITEM.match(lines[0]):
        items = list(_items(lines))
        yield from lines if len(items) == 1 else items
    elif len(lines) > 1 and lines[0].endswith(":") and _ITEM.match(lines[1].strip()):
        yield from (lines[0], "", *_items(lines[1:]))
    else:
        yield from lines


def _items(lines: list[str]) -> Iterator[str]:
    whole: list[str] = []
    for line in lines:
        if _ITEM.match(line.strip()) or not whole:
            whole.append(line.strip())
        else:
            whole[-1] += f" {line.strip()}"
    for each in (part for line in whole for part in _NEXT.split(line)):
        item = _ITEM.match(each)
        text = each if item is None else f"{_NAME.sub(_as_code, item['head'])}{item['rest']}"
        yield f"- {text.removesuffix(';')}"


def _as_code(name: re.Match[str]) -> str:
    return f"`{name[0]}`"


class Readable(griffe.Extension):
    """Applies `listed` to everything that has a docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
