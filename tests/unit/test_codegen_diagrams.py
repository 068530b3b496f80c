"""Drawings of the documentation: complete, well formed, and readable."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from codegen.diagrams import ruler, sequence, states
from codegen.diagrams.ruler import CELL, MARGIN, Part
from codegen.diagrams.svg import CHARACTER
from codegen.faults import SpecFault
from codegen.machines import Machine
from codegen.pages import PagesView
from codegen.parts import load
from codegen.sequences import Sequence
from codegen.sequences import load as load_sequences
from codegen.spec import load_spec

ROOT = Path(__file__).parents[2]
SPEC = load(ROOT / "spec")
MACHINES: tuple[Machine, ...] = SPEC.parts["machines"]
SEQUENCES: tuple[Sequence, ...] = SPEC.parts["sequences"]
NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(block: str) -> ElementTree.Element:
    """The svg element of a block; an empty line would end it in Markdown."""
    assert "\n\n" not in block
    svg = ElementTree.fromstring(block).find(f"{NAMESPACE}svg")
    assert svg is not None
    return svg


def labels(svg: ElementTree.Element) -> list[tuple[float, float, float, str]]:
    """Left, right and baseline of every label, and its text."""
    found = []
    for each in svg.iter(f"{NAMESPACE}text"):
        text, x, y = each.text or "", float(each.attrib["x"]), float(each.attrib["y"])
        width = len(text) * CHARACTER
        left = {"start": x, "middle": x - width / 2, "end": x - width}[each.attrib["text-anchor"]]
        found.append((left, left + width, y, text))
    return found


def check_readable(svg: ElementTree.Element) -> None:
    """Labels lie inside the drawing and not on each other."""
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    placed = labels(svg)
    for left, right, y, text in placed:
        assert left >= 0, text
        assert right <= width, text
        assert 0 < y <= height, text
    for number, (left, right, y, text) in enumerate(placed):
        for other_left, other_right, other_y, other in placed[:number]:
            apart = right <= other_left or other_right <= left or abs(y - other_y) >= 10
            assert apart, f"{text} lies on {other}"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.machine)
def test_a_machine_is_drawn_whole(machine: Machine) -> None:
    svg = drawn(states.diagram(machine))
    texts = [text for *_, text in labels(svg)]
    assert set(texts) == {each.name for each in machine.states} | {each.name for each in machine.inputs}
    heads = len(list(svg.iter(f"{NAMESPACE}polygon")))
    targets = {(each.to, each.input) for each in machine.transitions}
    assert len({to for to, _ in targets}) <= heads <= len(machine.transitions)
    check_readable(svg)


@pytest.mark.parametrize("each", SEQUENCES, ids=lambda each: each.sequence)
def test_a_sequence_is_drawn_whole(each: Sequence) -> None:
    svg = drawn(sequence.diagram(each))
    texts = [text for *_, text in labels(svg)]
    assert [text for text in texts if text.isupper()] == [step.frame for step in each.steps if step.frame]
    assert all(actor.name in texts for actor in each.actors)
    said = " ".join(texts)
    assert all(step.says in said for step in each.steps if len(step.says) <= sequence.WRAP)
    check_readable(svg)


@pytest.mark.parametrize("frame", SPEC.frames, ids=lambda each: each.name)
def test_a_frame_is_measured_byte_by_byte(frame: object) -> None:
    svg = drawn(PagesView(SPEC).byte_ruler(frame))  # type: ignore[arg-type]
    fields = [each for each in svg.iter(f"{NAMESPACE}rect") if each.attrib["class"] == "field"]
    bytes_drawn = sum(float(each.attrib["width"]) for each in fields) / CELL
    fixed = [
        each
        for each in frame.fields  # type: ignore[attr-defined]
        if each.fixed and each.text.present is None and each.text.count is None
    ]
    assert bytes_drawn == sum(each.size for each in fixed if each.size is not None)
    check_readable(svg)


def test_a_field_goes_on_in_the_next_row() -> None:
    svg = drawn(ruler.ruler("", [Part("a", 6), Part("b", 4), Part("rest", None)]))
    boxes = [(float(each.attrib["x"]), float(each.attrib["width"])) for each in svg.iter(f"{NAMESPACE}rect")]
    assert boxes == [
        (MARGIN, 6 * CELL),
        (MARGIN + 6 * CELL, 2 * CELL),
        (MARGIN, 2 * CELL),
        (MARGIN, 8 * CELL),
    ]


def test_every_frame_is_seen_in_an_exchange_or_travels_with_all() -> None:
    seen = {step.frame for each in SEQUENCES for step in each.steps}
    assert {frame.name for frame in SPEC.frames} - seen == {"CHUNK", "ERROR"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("frame: PULL_REQ", "frame: PULL", "there is no frame PULL"),
        ("to: learner 0, frame: PULL_REQ", "to: learner 9, frame: PULL_REQ", "there is no actor learner 9"),
        ("to: learner 0, frame: PULL_REQ", "to: learner 0, frame: FINAL_ACK", "goes learner -> syncer"),
        ("sequence: round", "sequence: other", "must be called other.yaml"),
        ("order: 1", "order: 0", "exists already"),
        (", frame: PULL_REQ", "", "come together"),
    ],
)
def test_a_wrong_sequence_is_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    spec = tmp_path / "spec"
    shutil.copytree(ROOT / "spec", spec)
    path = spec / "sequences" / "round.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SpecFault, match=told):
        load_sequences(spec, load_spec(spec))
