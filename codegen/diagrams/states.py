"""A state machine: its states in a column in the order of the specification, its edges beside it.

Edges to the next state go straight down. All others with the same end and the same inputs share a lane: to
the right of the states when they lead down, to the left when they lead up or back to the same state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from codegen.diagrams.svg import Anchor, Drawing, text_width
from codegen.machines import Machine

BOX_HEIGHT: Final = 34.0
STEP: Final = 92.0
LINE: Final = 15.0
GAP: Final = 26.0
STUB: Final = 6.0


@dataclass(frozen=True, slots=True)
class Lane:
    """Edges that share a line: from several states to one, by the same inputs."""

    sources: tuple[int, ...]
    target: int
    inputs: tuple[str, ...]

    @property
    def span(self) -> tuple[int, int]:
        places = (*self.sources, self.target)
        return min(places), max(places)

    @property
    def width(self) -> float:
        return max(map(text_width, self.inputs)) + GAP


def diagram(machine: Machine) -> str:
    """Draw a machine."""
    places = {state.name: place for place, state in enumerate(machine.states)}
    straight, right, left = _sort(machine, places)
    box_width = max(text_width(state.name) for state in machine.states) + 32
    rights, right_width = _lay(right, _overhang(straight, box_width))
    lefts, left_width = _lay(left, 0)
    x0 = left_width + 8
    x1 = x0 + box_width
    drawing = Drawing(f"State machine {machine.title}")
    for state in machine.states:
        y = _top(places[state.name])
        style = "final" if state.final else "initial" if state.name == machine.initial else "state"
        drawing.box(x0, y, box_width, BOX_HEIGHT, style, 14)
        drawing.text((x0 + x1) / 2, y + BOX_HEIGHT / 2 + 4, state.name, "middle")
    middle = (x0 + x1) / 2
    labels = Drawing("")  # above all lines
    for lane in straight:
        top, bottom = _top(lane.sources[0]) + BOX_HEIGHT, _top(lane.target)
        drawing.path([(middle, top), (middle, bottom)], arrow=True)
        _label(labels, middle + 8, (top + bottom) / 2, lane.inputs, "start")
    ports = _Ports()
    for lane, offset in rights:
        y = _draw(drawing, lane, x1, x1 + offset, ports, 1)
        _label(labels, x1 + offset + 6, y, lane.inputs, "start")
    for lane, offset in lefts:
        y = _draw(drawing, lane, x0, x0 - offset, ports, -1)
        _label(labels, x0 - offset - 6, y, lane.inputs, "end")
    drawing.shapes += labels.shapes
    height = _top(len(machine.states) - 1) + BOX_HEIGHT + 8
    return drawing.render(x1 + right_width + 8, height)


def _sort(machine: Machine, places: dict[str, int]) -> tuple[list[Lane], list[Lane], list[Lane]]:
    """Edges as lanes: straight down, to the right (downwards), to the left (upwards and loops)."""
    inputs: dict[tuple[int, int], list[str]] = {}
    for each in machine.transitions:
        inputs.setdefault((places[each.from_], places[each.to]), []).append(each.input)
    straight = [
        Lane((source,), target, tuple(names))
        for (source, target), names in inputs.items()
        if target == source + 1
    ]
    shared: dict[tuple[int, tuple[str, ...], bool], list[int]] = {}
    for (source, target), names in inputs.items():
        if target != source + 1:
            shared.setdefault((target, tuple(names), target > source), []).append(source)
    lanes = [
        (Lane(tuple(sorted(sources)), target, names), down)
        for (target, names, down), sources in shared.items()
    ]
    return straight, [lane for lane, down in lanes if down], [lane for lane, down in lanes if not down]


def _lay(lanes: list[Lane], least: float) -> tuple[list[tuple[Lane, float]], float]:
    """Give each lane its distance from the states, at least `least`, short ones inside; lanes that do not
    meet share a column. Returns also the width of all."""
    columns: list[list[Lane]] = []
    for lane in sorted(lanes, key=lambda each: (each.span[1] - each.span[0], each.span)):
        for column in columns:
            if all(lane.span[0] > other.span[1] or lane.span[1] < other.span[0] for other in column):
                column.append(lane)
                break
        else:
            columns.append([lane])
    laid: list[tuple[Lane, float]] = []
    offset = max(GAP, least)
    for column in columns:
        laid += [(lane, offset) for lane in column]
        offset += max(lane.width for lane in column)
    return laid, offset if columns else least


class _Ports:
    """Where lines meet the sides of the states: each line a few pixels from the others."""

    def __init__(self) -> None:
        self._used: dict[tuple[int, int], int] = {}

    def take(self, place: int, side: int) -> float:
        """The height at which the next line of this state begins or ends."""
        count = self._used[place, side] = self._used.get((place, side), 0) + 1
        return _top(place) + min(STUB * count, BOX_HEIGHT - 4)


def _draw(drawing: Drawing, lane: Lane, edge: float, x: float, ports: _Ports, side: int) -> float:
    """Draw a lane; returns the height of its label."""
    starts = [ports.take(source, side) for source in lane.sources]
    end = ports.take(lane.target, side)
    far = min(starts) if side > 0 else max(starts)
    drawing.path([(edge, far), (x, far), (x, end), (edge, end)], arrow=True)
    for start in starts:
        if start != far:
            drawing.path([(edge, start), (x, start)])
    return (far + end) / 2 + 3


def _label(drawing: Drawing, x: float, y: float, lines: tuple[str, ...], anchor: Anchor) -> None:
    first = y + 4 - LINE * (len(lines) - 1) / 2
    for number, line in enumerate(lines):
        drawing.text(x, first + LINE * number, line, anchor, "edge")


def _overhang(straight: list[Lane], box_width: float) -> float:
    """How far the labels of the straight edges reach beyond the boxes."""
    return max((lane.width - box_width / 2 for lane in straight), default=0.0)


def _top(place: int) -> float:
    return 4 + STEP * place
