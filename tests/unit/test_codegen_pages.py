"""The reference pages: every error can be looked up, every example is what the codec reads and writes."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from codegen.annotate import frame_example
from codegen.faults import SpecFault
from codegen.files import FileText, Object
from codegen.pages import pages
from codegen.parts import load
from codegen.spec import Frame
from codegen.worked import worked
from tests.unit.project_pages import project_pages
from yeto_learner import case as client_case
from yeto_proto import codec, files
from yeto_proto._generated.types import Dtype, FrameType, MergeMode, Role
from yeto_proto.files import SnapshotReader
from yeto_proto.files.final_state import read_final_state_from, write_final_state_to
from yeto_proto.files.marker import format_marker, parse_marker
from yeto_proto.session import Session, WireLayout
from yeto_proto.writer import frame as frame_buffers

ROOT = Path(__file__).parents[2]
SPEC = load(ROOT / "spec")
FILES: tuple[FileText, ...] = SPEC.parts["files"]
ROW = re.compile(r"^\| (\d+) \| `([^`]+)` \| `?([^`|]+)`? \| (.*) \|$")


def page_text(path: str) -> str:
    """The text of a page of the protocol."""
    return project_pages()[f"protocol/{path}"]


def section(page: str, heading: str) -> str:
    """The text of a page from a heading to the next one of its level."""
    level = heading.partition(" ")[0]
    _, found, rest = page.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(rf"\n{level} ", rest)[0]


def rows(text: str) -> Iterator[tuple[int, bytes, str, str]]:
    """Offset, bytes, field and value of each row of a table of bytes."""
    for line in text.splitlines():
        match = ROW.match(line)
        if match:
            byte, times, count = match[2].partition(" x ")
            data = bytes.fromhex(byte) * (int(count) if times else 1)
            yield int(match[1]), data, match[3].strip(), match[4]


def whole(text: str) -> bytes:
    """The bytes of a table, which must stand one behind the other."""
    data = b""
    for offset, piece, name, _ in rows(text):
        assert offset == len(data), name
        data += piece
    return data


def session_of(frame: Frame) -> tuple[Session | None, Role | None]:
    """What the example of a frame is judged under."""
    for file in SPEC.parts["codec_cases"]:
        for case in file.cases:
            if file.frame == frame.name and case.example:
                side = Role(case.side) if case.side else None
                if case.session is None:
                    return None, side
                text = file.sessions[case.session]
                layout = WireLayout.build(
                    [(MergeMode[each.merge_mode], each.numels, None) for each in text.fragments]
                )
                return Session(Dtype[text.dtype], layout, bytes(32), bytes(32), None), side
    raise AssertionError(frame.name)


@pytest.mark.parametrize("frame", SPEC.frames, ids=lambda each: each.name)
def test_the_bytes_on_the_page_of_a_frame_are_what_the_codec_reads_and_writes(frame: Frame) -> None:
    text = section(page_text(f"frames/{frame.slug}.md"), "## Example")
    data = whole(text)
    session, side = session_of(frame)
    message = codec.decode(FrameType(data[4]), data[13:], session, side)
    assert b"".join(frame_buffers(message)) == data
    assert int.from_bytes(data[5:13], "little") == len(data) - 13
    shown = {name: value for _, _, name, value in rows(text)}
    plain = [each for each in frame.fields if each.fixed and each.text.type in ("u8", "u16", "u32", "u64")]
    for each in plain:
        assert shown[each.name] == str(getattr(message, each.name)), each.name


def test_values_and_names_stand_beside_the_bytes_of_an_example() -> None:
    shown = {name: value for _, _, name, value in rows(page_text("frames/hello.md"))}
    assert shown["dtype"] == "F32 (1)"
    assert shown["layout[0].merge_mode"] == "RDA (1)"
    assert shown["layout[0].numels[0]"] == "4"
    assert "“session mismatch”" in page_text("frames/error.md")
    assert "| 25 | `0000803f 000000c0` | `tensor` | 1, -2 |" in page_text("frames/bcast_fragment.md")


def test_an_example_that_does_not_fit_its_frame_is_a_fault() -> None:
    frame = SPEC.frame("HEARTBEAT")
    case = next(
        case
        for file in SPEC.parts["codec_cases"]
        for case in file.cases
        if case.id in ("heartbeat-cut", "heartbeat-trailing")
    )
    with pytest.raises(SpecFault, match="the example has"):
        frame_example(SPEC, frame, case, None)


@pytest.mark.parametrize("frame", SPEC.frames, ids=lambda each: each.name)
def test_the_page_of_a_frame_has_every_part(frame: Frame) -> None:
    page = page_text(f"frames/{frame.slug}.md")
    for part in ("\n**Sent** ", "\n## Bytes\n", "<svg", "\n## Size\n", "\n## Example\n", "\n## Errors\n"):
        assert part in page, part
    for rule in (*frame.rules, *frame.extra_rules):
        assert f"{{ #{rule.id} }}" in page
        assert f"](../errors.md#{rule.error})" in page
        assert f"frames/{frame.slug}.md#{rule.id})" in page_text("errors.md")
        assert f"frames/{frame.slug}.md#{rule.id})" in page_text("coverage.md")


def test_worked_sizes_are_those_of_real_frames() -> None:
    frame = SPEC.frame("PUSH_FRAGMENT")
    (found,) = (each for each in worked(SPEC, frame) if each.what == "1,000,000 values, q4")
    layout = WireLayout.build([(MergeMode.AVG, [1_000_000], None)])
    session = Session(Dtype.Q4, layout, bytes(32), bytes(32), None)
    head = (0).to_bytes(4, "little") * 2 + bytes(8) + b"\1\0\0\0" + bytes(16) + b"\1\0\0\0" + bytes(8)
    payload = head + bytes(found.payload - len(head))
    assert codec.decode(FrameType.PUSH_FRAGMENT, payload, session, Role.SYNCER)
    assert found.frame == found.payload + 13
    hello = worked(SPEC, SPEC.frame("HELLO"))[0]
    plain = next(
        case for file in SPEC.parts["codec_cases"] for case in file.cases if case.id == "hello-plain"
    )
    assert hello.payload == len(plain.data)


# -- files ---------------------------------------------------------------------------------------------------


def test_the_bytes_of_the_checkpoint_are_a_recorded_vector() -> None:
    data = whole(section(page_text("files/snapshot.md"), "## Example"))
    snapshot = SnapshotReader(io.BytesIO(data)).read()
    written = io.BytesIO()
    files.write_to(written, snapshot)
    assert written.getvalue() == data
    vectors = json.loads((ROOT / "tests/vectors/checkpoint.json").read_text())["files"]
    digests = {each["name"]: each["sha256"] for each in vectors}
    assert hashlib.sha256(data).hexdigest() == digests["v3_contract_trailer"]


def test_the_bytes_of_marker_and_final_state_read_and_write_back() -> None:
    data = whole(section(page_text("files/final_marker.md"), "## Example"))
    assert format_marker(parse_marker(data)) == data
    data = whole(section(page_text("files/final_state.md"), "## Example"))
    written = io.BytesIO()
    write_final_state_to(written, read_final_state_from(io.BytesIO(data)))
    assert written.getvalue() == data


def objects(text: FileText) -> dict[str, Object]:
    return {each.name: each for each in text.objects}


def check(known: Mapping[str, Object], kind: str, value: Any, where: str) -> None:
    """A JSON value against the type that a file gives it."""
    if kind.startswith("list of "):
        assert isinstance(value, list), where
        for each in value:
            check(known, kind.removeprefix("list of "), each, where)
    elif kind in known:
        fields = {each.name: each for each in known[kind].fields}
        assert set(value) <= set(fields), where
        for each in fields.values():
            assert each.optional or each.name in value, f"{where}.{each.name}"
            if each.name in value:
                check(known, each.type, value[each.name], f"{where}.{each.name}")
    else:
        python = {"integer": int, "number": (int, float), "text": str, "hex32": str, "true or false": bool}
        assert value is None if " or null" in kind and value is None else True
        if value is not None:
            assert isinstance(value, python[kind.removesuffix(" or null")]), where
        assert kind != "hex32" or re.fullmatch("[0-9a-f]{64}", value), where


def example_of(name: str) -> tuple[FileText, str]:
    (text,) = (each for each in FILES if each.file == name)
    block = section(page_text(f"files/{name}.md"), "## Example")
    return text, block.partition("```json\n")[2].partition("```")[0]


def test_the_records_of_the_tape_have_the_keys_and_types_of_their_tables() -> None:
    text, block = example_of("event_tape")
    seen = []
    for line in block.splitlines():
        record = json.loads(line)
        name = record.pop("event", "commit")
        assert isinstance(record.pop("time"), float)
        check(objects(text), name, record, name)
        seen.append(name)
    assert seen[0] == "run_started"
    assert {"commit", "rejected", "run_ended"} <= set(seen)


def test_the_case_file_is_one_that_a_learner_takes() -> None:
    text, block = example_of("client_case")
    found = json.loads(block)
    check(objects(text), "case", found, "case")
    parameters = {
        each["name"]: client_case.ramp(each["initial"], each["initial"]["seed"], tuple(each["shape"]))
        for each in client_case.tensors(found)
    }
    learner = client_case.learner_of(found, parameters)
    assert client_case.fits(found, learner.layout)


# -- errors and decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SPEC.errors))
def test_every_error_says_what_is_seen_why_and_what_to_do(name: str) -> None:
    entry = section(page_text("errors.md"), f"### {name} {{ #{name} }}")
    for part in ("**You see.** ", "**Cause.** ", "**What to do.** "):
        assert len(entry.partition(part)[2].partition("\n")[0]) > 20, part
    assert f"\n`{SPEC.errors[name][1].says}`\n" in entry


@pytest.mark.parametrize("key", ["symptom", "cause", "remedy"])
def test_an_error_without_a_remedy_stops_the_generator(tmp_path: Path, key: str) -> None:
    spec = tmp_path / "spec"
    shutil.copytree(ROOT / "spec", spec)
    path = spec / "errors.yaml"
    text = path.read_text(encoding="utf-8")
    without = re.sub(rf"( +- name: EmptyChunk\n(?: .*\n)*?) +{key}: .*\n", r"\1", text, count=1)
    assert without != text
    path.write_text(without, encoding="utf-8")
    with pytest.raises(SpecFault, match=f"spec/errors.yaml:[0-9]+: {key}: is missing"):
        load(spec)
    path.write_text(text.replace("symptom: The connection ends with this text.\n", 'symptom: ""\n', 1))
    with pytest.raises(SpecFault, match="needs whole sentences here"):
        load(spec)


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("errors.yaml", "rules: [round.merge.finite]", "rules: [round.merge.fine]", "there is no rule"),
        ("decisions.yaml", "number: 12", "number: 99", "has no reason here"),
        (
            "decisions.yaml",
            "decisions:\n",
            "decisions:\n  - {number: 99, question: Q, reason: R}\n",
            "names it",
        ),
        ("cases/codec/12_final_ack.yaml", "    example: true\n", "", "exactly one case"),
        (
            "cases/codec/12_final_ack.yaml",
            "expect: accept",
            "expect: refuse",
            "breaks exactly|that is accepted",
        ),
        ("frames/12_final_ack.yaml", "sent: |", "said: |", "said: is not a key here"),
        (
            "files/final_state.yaml",
            "  0100000000000000 00008040",
            "  0100000000000000 000080",
            "3 bytes here",
        ),
        ("files/final_marker.yaml", "3d33 0a", "3d33 0a0a", "1 bytes are left"),
    ],
)
def test_a_page_that_would_be_wrong_is_not_made(
    tmp_path: Path, file: str, old: str, new: str, told: str
) -> None:
    spec = tmp_path / "spec"
    shutil.copytree(ROOT / "spec", spec)
    path = spec / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SpecFault, match=told):
        pages(load(spec))


def test_every_decision_has_its_question_its_reason_and_what_follows() -> None:
    numbers = [each.number for each in SPEC.parts["decisions"]]
    assert numbers == list(range(1, 42))
    for number in numbers:
        entry = re.split(r"\n## ", page_text("decisions.md").partition(f"\n## D{number}: ")[2])[0]
        assert "**Why.** " in entry
        assert "\n- [`" in entry


def test_a_mark_of_a_decision_is_a_link_to_it() -> None:
    assert "([D12](../decisions.md#D12))" in page_text("frames/push_fragment.md")
    assert not [path for path, text in project_pages().items() if re.search(r"\(D[0-9]+\)", text)]


def test_a_name_in_angle_brackets_is_no_html() -> None:
    assert "yeto:learner:&lt;id&gt;" in page_text("behaviour/connections.md")
    assert "lock on &lt;path&gt;.lock" in page_text("behaviour/process.md")


def test_flags_are_code_but_not_twice() -> None:
    assert "`--handshake-timeout-s` is closed" in page_text("behaviour/connections.md")
    assert not [path for path, text in project_pages().items() if "``" in text.replace("```", "")]
