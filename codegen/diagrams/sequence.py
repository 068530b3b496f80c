"""A sequence diagram: a lifeline for each actor, and downwards in time who sends what to whom."""

from __future__ import annotations

from typing import Final

from codegen.diagrams.svg import Drawing, text_width
from codegen.sequences import Sequence, Step

SPACING: Final = 250.0
MARGIN: Final = 125.0
HEAD: Final = 34.0
STEP: Final = 50.0
LINE: Final = 15.0
WRAP: Final = 30  # characters of a note or of a line below an arrow


def diagram(sequence: Sequence) -> str:
    """Draw it."""
    drawing = Drawing(sequence.title)
    lines = {actor.name: MARGIN + SPACING * place for place, actor in enumerate(sequence.actors)}
    bottom = HEAD + 24
    parts = Drawing("")
    for step in sequence.steps:
        bottom = _step(parts, step, lines, bottom)
    for actor in sequence.actors:
        x = lines[actor.name]
        drawing.path([(x, HEAD), (x, bottom)], "lifeline")
        width = text_width(actor.name) + 28
        drawing.box(x - width / 2, 2, width, HEAD - 6, "actor")
        drawing.text(x, 21, actor.name, "middle")
    drawing.shapes += parts.shapes
    return drawing.render(max(lines.values()) + MARGIN, bottom + 8)


def _step(drawing: Drawing, step: Step, lines: dict[str, float], y: float) -> float:
    """Draw one step from height y on; returns where the next one begins."""
    said = wrap(step.says)
    if step.to is None:
        x = lines[step.from_]
        width = max(map(text_width, said)) + 16
        height = LINE * len(said) + 10
        drawing.box(x - width / 2, y - 8, width, height, "note")
        for number, line in enumerate(said):
            drawing.text(x, y + 7 + LINE * number, line, "middle", "small")
        return y + height + 14
    start, end = lines[step.from_], lines[step.to]
    middle = (start + end) / 2
    drawing.text(middle, y, step.frame or "", "middle", "label strong")
    inset = 3 if end > start else -3
    drawing.path(
        [(start + inset, y + 7), (end - inset, y + 7)],
        "line lost" if step.lost else "line",
        arrow=not step.lost,
    )
    if step.lost:
        x = (start + 2 * end) / 3
        drawing.path([(x - 6, y + 1), (x + 6, y + 13)], "cross")
        drawing.path([(x - 6, y + 13), (x + 6, y + 1)], "cross")
    for number, line in enumerate(said):
        drawing.text(middle, y + 22 + LINE * number, line, "middle", "small")
    return y + STEP - LINE + LINE * max(len(said), 1)


def wrap(text: str) -> list[str]:
    """Lines of about WRAP characters; none for an empty text."""
    found: list[str] = []
    for word in text.split():
        if found and len(found[-1]) + 1 + len(word) <= WRAP:
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found
