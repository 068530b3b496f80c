"""A trace as text for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from yeto_proto.console import output

from .trace import Step, Trace

__all__ = ["printable", "show"]

_LONGEST = 100
_LINKS = ("label", "after", "within")


def printable(text: str) -> str:
    """The text with every control character escaped but its line feeds: it may come from a peer, and goes to
    a terminal.
    """
    return "\n".join(map(output.printable, text.split("\n")))


def show(trace: Trace, texts: Mapping[str, str]) -> str:
    """Head and steps, one or two lines for each."""
    return "\n".join([*_head(trace, texts), "", *(line for step in trace.steps for line in _step(step))])


def _head(trace: Trace, texts: Mapping[str, str]) -> Iterator[str]:
    yield f"{trace.id}: {trace.role}, {trace.area}, expects to {trace.head.get('expect', 'accept')}"
    if trace.doc:
        yield trace.doc
    for rule in trace.rules:
        yield f"  rule {rule}: {texts.get(rule, '')}"
    session = trace.head.get("session")
    if session:
        layout = ", ".join(f"{each['merge_mode']} {'+'.join(each['numels'])}" for each in session["layout"])
        yield f"  session {session['dtype']}: {layout}"
    if trace.head.get("settings"):
        yield "  settings " + ", ".join(f"{key}={value}" for key, value in trace.head["settings"].items())
    if trace.head.get("case"):
        case = trace.head["case"]
        yield "  learner " + ", ".join(f"{key}={value}" for key, value in case.items() if key != "fragments")


def _step(step: Step) -> Iterator[str]:
    kind = step["do"]
    if kind == "frame":
        time = f"{step['t']:9.3f} " if "t" in step else ""
        line = f"{time}{step['on']:8} {step['from']:8} {step['frame']} {_fields(step['fields'])}"
        yield f"{line.rstrip()}{_links(step)}"
        if "wire" in step:
            yield f"{' ' * len(time)}{'':18}{_short(_wire(step['wire']))}"
    elif kind == "ask":
        yield f"ask    {_short(json.dumps(step['request']))}"
        yield f"answer {_short(json.dumps(step['answer']))}"
    else:
        rest = {key: value for key, value in step.items() if key not in ("do", "on", *_LINKS)}
        yield f"{step.get('on', ''):8} {kind:8} {_fields(rest)}".rstrip() + _links(step)


def _links(step: Step) -> str:
    """What the step says about order and time."""
    texts = [f"label {step['label']!r}"] if "label" in step else []
    texts += [f"after {', '.join(map(repr, step['after']))}"] if "after" in step else []
    texts += [f"within {step['within']:g} s"] if "within" in step else []
    return f" ({'; '.join(texts)})" if texts else ""


def _fields(fields: Mapping[str, Any]) -> str:
    return " ".join(
        f"{key}={_short(_plain(value), 40)}" for key, value in fields.items() if value is not None
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _wire(wire: Any) -> str:
    if isinstance(wire, list):
        return " ".join(_wire(each) for each in wire)
    if isinstance(wire, Mapping):
        kind = wire.get("gen", "blob")
        return f"<{kind}: {wire.get('len')} bytes>"
    return str(wire)


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
