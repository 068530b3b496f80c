"""A drawing that grows shape by shape. Coordinates are pixels from the upper left corner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal

CHARACTER: Final = 7.2
"""Width of a character of the monospaced labels, at 12 px."""

Anchor = Literal["start", "middle", "end"]


def text_width(text: str) -> float:
    """Pixels that a label takes."""
    return len(text) * CHARACTER


@dataclass
class Drawing:
    """The shapes so far. `title` is what a screen reader says."""

    title: str
    shapes: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, style: str, radius: float = 4) -> None:
        """A rectangle; `style` is its class in the style sheet."""
        self.shapes.append(
            f'<rect class="{style}" x="{x:g}" y="{y:g}" '
            f'width="{width:g}" height="{height:g}" rx="{radius:g}"/>'
        )

    def text(self, x: float, y: float, text: str, anchor: Anchor = "start", style: str = "label") -> None:
        """A label whose baseline is at y."""
        self.shapes.append(
            f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def path(
        self, points: Sequence[tuple[float, float]], style: str = "line", *, arrow: bool = False
    ) -> None:
        """A line through these points, with a head at the last one if `arrow`."""
        self.shapes.append(
            f'<polyline class="{style}" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>'
        )
        if arrow:
            (x0, y0), (x1, y1) = points[-2], points[-1]
            dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
            left = (x1 - 8 * dx - 4 * dy, y1 - 8 * dy - 4 * dx)
            right = (x1 - 8 * dx + 4 * dy, y1 - 8 * dy + 4 * dx)
            corners = " ".join(f"{x:g},{y:g}" for x, y in ((x1, y1), left, right))
            self.shapes.append(f'<polygon class="head" points="{corners}"/>')

    def render(self, width: float, height: float) -> str:
        """The block of HTML to put into a Markdown page: without empty lines, in its own scrolling frame."""
        inside = "\n".join(self.shapes)
        return (
            f'<div class="diagram"><svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" '
            f'height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n{inside}\n</svg></div>"
        )
