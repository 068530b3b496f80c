"""A byte ruler: the bytes of a frame in rows of eight, each field a box as wide as its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from codegen.diagrams.svg import Drawing, text_width

ROW: Final = 8
CELL: Final = 84.0
BOX: Final = 34.0
TOP: Final = 18.0
MARGIN: Final = 44.0
GAP: Final = 10.0
TIGHT: Final = 11 / 12
"""Letters of a name that is almost too long for its box."""


@dataclass(frozen=True, slots=True)
class Part:
    """A field: its bytes, or None for a length that varies. `style` is the class of its box."""

    name: str
    size: int | None
    style: str = "field"


def ruler(title: str, *groups: Sequence[Part]) -> str:
    """Draw the parts of each group one after the other. A group begins a row, and offsets count from it.

    A part of varying length takes a row of its own.
    """
    drawing = Drawing(title)
    for column in range(ROW):
        drawing.text(MARGIN + (column + 0.5) * CELL, TOP - 6, f"+{column}", "middle", "faint")
    y = TOP
    for parts in groups:
        y = _group(drawing, parts, y) + GAP
    return drawing.render(MARGIN + ROW * CELL + 1, y)


def _group(drawing: Drawing, parts: Sequence[Part], y: float) -> float:
    """Draw one group from height y on; returns where it ends."""
    place = 0
    known = True  # whether the offset of the next part is
    for part in parts:
        if part.size is None:
            y += BOX if place % ROW else 0
            _box(drawing, y, 0, ROW, Part(part.name, None, "varying"), place if known else None)
            y, place, known = y + BOX, 0, False
            continue
        pieces = _pieces(place, part.size)
        widest = max(range(len(pieces)), key=lambda number: pieces[number][1])
        for number, (column, width) in enumerate(pieces):
            _box(drawing, y, column, width, part, place if known else None, again=number != widest)
            place += width
            y += 0 if place % ROW else BOX
    return y + (BOX if place % ROW else 0)


def _pieces(place: int, size: int) -> list[tuple[int, int]]:
    """Column and width of each row's share of a field."""
    found = []
    while size:
        width = min(size, ROW - place % ROW)
        found.append((place % ROW, width))
        place, size = place + width, size - width
    return found


def _box(
    drawing: Drawing,
    y: float,
    column: int,
    width: int,
    part: Part,
    offset: int | None,
    *,
    again: bool = False,
) -> None:
    """Draw a field's share of a row; `again` when the name stands in another share of it already."""
    x = MARGIN + column * CELL
    drawing.box(x, y, width * CELL, BOX, part.style, 0)
    if column == 0 and offset is not None:
        drawing.text(MARGIN - 6, y + BOX / 2 + 4, str(offset), "end", "faint")
    room = width * CELL - 6
    name, style = part.name, "label"
    if text_width(name) > room:
        style = "label tight"
        most = int(room / (text_width("n") * TIGHT))
        name = name if len(name) <= most else name[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    drawing.text(x + width * CELL / 2, y + BOX / 2 + 4, name, "middle", "faint" if again else style)
