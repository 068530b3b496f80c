"""Plots as inline SVG, made by hand: no plotting library, one self-contained page, light and dark.

Colours and fonts come from the page's style sheet: series number n has the class `s<n>`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 72, 14, 12, 44


@dataclass(frozen=True)
class Series:
    """One line or cloud of points. The line is interrupted before the points whose numbers are in `breaks`.

    `style` is the number of a colour; `dashed` and `points` say how it is drawn.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: int
    dashed: bool = False
    points: bool = False
    breaks: Sequence[int] = ()


@dataclass(frozen=True)
class Scale:
    """A linear axis from `low` to `high`, laid on pixels `first` to `last`; `whole` for integers."""

    low: float
    high: float
    first: float
    last: float
    whole: bool = False

    def __call__(self, value: float) -> float:
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self) -> list[float]:
        """Round values inside the axis: three to eight of them, fewer where only integers will do."""
        step = _round_step((self.high - self.low) / 6)
        if self.whole:
            step = max(1.0, step)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


@dataclass(frozen=True)
class Cell:
    """One square of a grid: `kind` is a class of the style sheet, `title` is shown under the pointer."""

    kind: str
    title: str


def line_chart(
    series: Sequence[Series], x_label: str, y_label: str, *, from_zero: bool = False, whole: bool = False
) -> str:
    """Lines over a common x axis. `from_zero` and `whole` (integers only) are about the y axis.

    Series without points are left out; without any, a sentence stands instead.
    """
    drawn = [one for one in series if len(one.x)]
    if not drawn:
        return "<p>No values were recorded.</p>"
    x_scale = _scale([value for one in drawn for value in one.x], LEFT, WIDTH - RIGHT, from_zero=True)
    heights = [value for one in drawn for value in one.y]
    y_scale = replace(_scale(heights, HEIGHT - BOTTOM, TOP, from_zero=from_zero), whole=whole)
    parts = [*_axes(x_scale, y_scale, x_label, y_label)]
    for one in drawn:
        places = [(f"{x_scale(x):.1f}", f"{y_scale(y):.1f}") for x, y in zip(one.x, one.y, strict=True)]
        if one.points:
            parts += [f'<circle class="s{one.style}" cx="{x}" cy="{y}" r="2.4"/>' for x, y in places]
            continue
        kind = f"s{one.style}{' dashed' if one.dashed else ''}"
        for start, end in pairwise((0, *one.breaks, len(places))):
            path = " ".join(",".join(place) for place in places[start:end])
            parts.append(f'<polyline class="{kind}" points="{path}"/>')
    return _legend(drawn) + _svg(parts, HEIGHT)


def grid_chart(rows: Sequence[tuple[str, Sequence[Cell]]], x_label: str) -> str:
    """A row of squares per name; column n belongs to round n + 1."""
    columns = max(len(cells) for _, cells in rows)
    if not columns:
        return "<p>No values were recorded.</p>"
    height = 26
    bottom = TOP + height * len(rows)
    scale = Scale(0.5, columns + 0.5, LEFT, WIDTH - RIGHT)
    width = (WIDTH - RIGHT - LEFT) / columns
    parts = []
    for index, (name, cells) in enumerate(rows):
        top = TOP + height * index
        parts.append(f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>')
        parts += [
            f'<rect class="{cell.kind}" x="{scale(column + 0.5):.2f}" y="{top}" width="{width * 0.86:.2f}"'
            f' height="{height - 5}"><title>{escape(cell.title)}</title></rect>'
            for column, cell in enumerate(cells)
        ]
    parts += _x_ticks(scale, bottom)
    parts.append(_x_label(x_label, bottom))
    return _svg(parts, bottom + BOTTOM)


def _scale(values: Iterable[float], first: float, last: float, *, from_zero: bool) -> Scale:
    found = list(values)
    low = min(0.0, *found) if from_zero else min(found)
    high = max(found)
    if high <= low:
        high = low + 1.0
    margin = 0.0 if from_zero else 0.04 * (high - low)
    return Scale(low - margin, high + 0.04 * (high - low), first, last)


def _round_step(rough: float) -> float:
    magnitude: float = 10.0 ** math.floor(math.log10(rough))
    return next(step * magnitude for step in (1, 2, 5, 10) if step * magnitude >= rough)


def _axes(x_scale: Scale, y_scale: Scale, x_label: str, y_label: str) -> Iterable[str]:
    for tick in y_scale.ticks():
        y = y_scale(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,.10g}</text>'
    yield from _x_ticks(x_scale, HEIGHT - BOTTOM)
    yield _x_label(x_label, HEIGHT - BOTTOM)
    middle = (HEIGHT - BOTTOM + TOP) / 2
    yield (
        f'<text class="label" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"{escape(y_label)}</text>"
    )


def _x_ticks(scale: Scale, bottom: float) -> Iterable[str]:
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    for tick in scale.ticks():
        yield f'<text x="{scale(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:,.10g}</text>'


def _x_label(text: str, bottom: float) -> str:
    x = (LEFT + WIDTH - RIGHT) / 2
    return f'<text class="label" x="{x}" y="{bottom + 36}" text-anchor="middle">{escape(text)}</text>'


def _legend(series: Sequence[Series]) -> str:
    entries = "".join(
        f'<span><i class="key s{one.style}{" dashed" if one.dashed else ""}"></i>{escape(one.name)}</span>'
        for one in series
    )
    return f'<p class="legend">{entries}</p>'


def _svg(parts: Iterable[str], height: float) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">\n{body}\n</svg>'
