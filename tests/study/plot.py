"""The plot of the study: one SVG file without a script, a font or a picture from anywhere else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from tests.study.failures import mean_between_failures
from tests.study.grid import rates
from tests.study.setting import AT_CHIPS, AT_RESTART_S, AT_YEARS, CHECKPOINT_S, LEARNERS

WIDTH, HEIGHT = 760, 700
LEFT, RIGHT, PANEL, GAP, TOP = 56, 190, 270, 66, 30
COLOURS: Final = {"job": "#c0392b", 1: "#8e8e8e", 2: "#d68910", 4: "#1e8449", 8: "#2471a3", 16: "#7d3c98"}
STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #808080 }
.title { font-size: 14px; font-weight: 600 }
.grid { stroke: #8884; stroke-width: 1 }
.mark { stroke: #888; stroke-dasharray: 2 4 }
polyline { fill: none; stroke-width: 2 }
.job { stroke-dasharray: 6 4 }
"""


def plot(study: dict[str, Any]) -> str:
    """Goodput over the mean time between two failures of the whole job, at the published restart time."""
    rows = rates(study["grid"], AT_RESTART_S)
    means = [row["job_mean_s"] for row in rows]
    parts = [f"<style>{STYLE}</style>"]
    for index, (title, job, value) in enumerate(
        (
            ("Completed steps", "synchronous", "steps"),
            (f"Kept work (synchronous: a checkpoint every {CHECKPOINT_S:g} s)", "synchronous_kept", "kept"),
        )
    ):
        top = TOP + index * (PANEL + GAP)
        lines: list[tuple[Any, str, list[float]]] = [("job", "synchronous job", [row[job] for row in rows])]
        for learners in LEARNERS:
            name = f"{learners} learner{'s' if learners > 1 else ''}"
            lines.append((learners, name, [row["decoupled"][str(learners)][value] for row in rows]))
        parts += _panel(top, title, means, lines)
    body = "\n".join(parts)
    about = (
        "Goodput of a synchronous job and of decoupled learners over the mean time between failures of all "
        f"chips, with a restart of {AT_RESTART_S:g} s"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{about}</title>\n{body}\n</svg>\n"
    )


def _panel(
    top: float, title: str, means: Sequence[float], lines: Sequence[tuple[Any, str, list[float]]]
) -> Iterable[str]:
    low, high = math.log10(min(means)), math.log10(max(means))
    right, bottom = WIDTH - RIGHT, top + PANEL

    def x(mean: float) -> float:
        return LEFT + (math.log10(mean) - low) / (high - low) * (right - LEFT)

    def y(share: float) -> float:
        return bottom - share * PANEL

    yield f'<text class="title" x="{LEFT}" y="{top - 10}">{escape(title)}</text>'
    for tenth in range(0, 11, 2):
        height = y(tenth / 10)
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{height:.1f}" y2="{height:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{tenth * 10} %</text>'
    for mean, name in ((10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h")):
        yield f'<line class="grid" x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{top}" y2="{bottom}"/>'
        yield f'<text x="{x(mean):.1f}" y="{bottom + 16}" text-anchor="middle">{name}</text>'
    at = x(mean_between_failures(AT_CHIPS, AT_YEARS))
    yield f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>'
    label = f"{AT_CHIPS / 1e6:g} M chips, one year"
    yield f'<text x="{at + 5:.1f}" y="{bottom - 6}">{label}</text>'
    middle = (LEFT + right) / 2
    yield (
        f'<text x="{middle:.0f}" y="{bottom + 34}" text-anchor="middle">'
        "mean time between two failures among all chips</text>"
    )
    for place, (kind, name, values) in enumerate(lines):
        points = " ".join(f"{x(mean):.1f},{y(share):.1f}" for mean, share in zip(means, values, strict=True))
        colour, style = COLOURS[kind], ' class="job"' if kind == "job" else ""
        yield f'<polyline{style} stroke="{colour}" points="{points}"/>'
        height = top + 12 + 20 * place
        key = f"{right + 16},{height - 4} {right + 44},{height - 4}"
        yield f'<polyline{style} stroke="{colour}" points="{key}"/>'
        yield f'<text x="{right + 52}" y="{height}">{escape(name)}</text>'
