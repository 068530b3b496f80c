"""Specifications that are wrong beyond one mapping, the generator's command line, and coverage."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.__main__ import main
from codegen.coverage import cover, table
from codegen.parts import load
from codegen.spec import load_spec

ROOT = Path(__file__).parents[2]


@pytest.fixture
def spec(tmp_path):
    """A copy of the specification, to be edited."""
    shutil.copytree(ROOT / "spec", tmp_path / "spec")
    return tmp_path / "spec"


def edit(spec: Path, name: str, old: str, new: str) -> None:
    path = spec / name
    text = path.read_text()
    assert old in text, f"{name} has no {old!r}"
    path.write_text(text.replace(old, new, 1))


def line_of(spec: Path, name: str, text: str) -> int:
    lines = (spec / name).read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


HEARTBEAT = "frames/06_heartbeat.yaml"
PUSH = "frames/04_push_fragment.yaml"

FAULTS = [
    # file, old text, new text, text of the line that the fault names, what it says
    (HEARTBEAT, "type: u64", "type: u63", "u63", "there is no type u63"),
    (
        HEARTBEAT,
        "else: WrongLearner",
        "else: WrongLerner",
        "WrongLerner",
        "there is no error class WrongLerner",
    ),
    (HEARTBEAT, ", else: WrongLearner", "", "learner_id, type", "names no error class"),
    (HEARTBEAT, "must: learner_id == link.learner_id, ", "", "learner_id, type", "has no must to belong to"),
    (HEARTBEAT, "name: local_step", "name: learner_id", "Local steps", "this field exists already"),
    (HEARTBEAT, "name: local_step", "name: localStep", "localStep", "is not a name in lower case"),
    (
        HEARTBEAT,
        "frame: HEARTBEAT",
        "frame: Heartbeat",
        "frame: Heartbeat",
        "must be called 06_heartbeat.yaml|in capitals",
    ),
    (HEARTBEAT, "frame: HEARTBEAT", "frame: HARTBEAT", "frame: HARTBEAT", "must be called 06_hartbeat.yaml"),
    (HEARTBEAT, "id: 6", "id: 7", "frame: HEARTBEAT", "must be called 07_heartbeat.yaml"),
    (
        HEARTBEAT,
        "carried-by: control",
        "carried-by: pigeon",
        "pigeon",
        "must be one of first, control, data, any",
    ),
    (
        HEARTBEAT,
        "when: link, ",
        "",
        "learner_id ==",
        "is known from `link` on, and this is judged at `decode`",
    ),
    (HEARTBEAT, "link.learner_id", "link.lerner_id", "lerner_id", "link has no fact lerner_id"),
    (HEARTBEAT, "link.learner_id", "lnk.learner_id", "lnk", "lnk.learner_id is not known here"),
    (HEARTBEAT, "when: link", "when: run", "when: run", "must be one of decode, bulk, link, round"),
    (HEARTBEAT, "when: link", "when: later", "when: later", "must be one of decode, bulk, link, round"),
    (HEARTBEAT, "doc: |", "dock: |", "dock", "is not a key here; known are"),
    (PUSH, "answers: PULL_REQ", "answers: PULL", "answers: PULL", "there is no frame PULL"),
    (
        PUSH,
        "when: round\n    must: base_version",
        "when: link\n    must: base_version",
        "must: base_version",
        "known from `round` on",
    ),
    (
        PUSH,
        "- id: lag",
        "- id: must",
        "- id: must",
        "this rule exists already, in spec/frames/04_push_fragment.yaml",
    ),
    (PUSH, "- id: member", "- id: Member", "Member", "is not a name in lower case"),
    (PUSH, "must: c_steps >= 1", "must: c_tokens >= 1", "must: c_tokens", "c_tokens is not known here"),
    (
        PUSH,
        "push_bytes(session.dtype, fragment.numel)",
        "push_bytes(session.dtype)",
        "length:",
        "push_bytes takes 2 arguments, not 1",
    ),
    (PUSH, "push_bytes(session", "eval(session", "length:", "there is no function eval"),
    (PUSH, "values: push", "values: pull", "values:", "must be one of bulk, push"),
    (PUSH, "  else: BadLength\n", "", "bulk:|name: delta", "names no error class"),
    (
        PUSH,
        "  length: push_bytes(session.dtype, fragment.numel)\n",
        "",
        "else: BadLength",
        "has no length to belong to",
    ),
    ("frames/09_chunk.yaml", "says: no byte", "syas: no byte", "syas", "is not a key here"),
    (
        "frames/09_chunk.yaml",
        "      by: yeto_proto.chunks\n      doc: Fatal also",
        "      doc: Fatal also",
        "- id: overlap",
        "needs `by`",
    ),
    ("frames/09_chunk.yaml", "  limit: preset.chunk_slice\n", "", "name: data", "needs a length, a limit"),
    ("frames/10_error.yaml", "preset.error_max", "preset.eror_max", "limit:", "preset.eror_max is no limit"),
    (
        "frames/11_final_manifest.yaml",
        "count: num_fragments",
        "count: fragments",
        "count: fragments",
        "fragments is not a field before this one",
    ),
    (
        "frames/11_final_manifest.yaml",
        "counts: expected_versions",
        "counts: versions",
        "counts: versions",
        "versions is not a field here",
    ),
    (
        "frames/01_hello.yaml",
        "    count: num_fragments\n",
        "",
        "type: layout",
        "layout repeats and needs a count",
    ),
    (
        "types.yaml",
        "cases: {F32: 4 * numel, BF16: 2 * numel, Q4: 2 * numel}",
        "cases: {F32: 4 * numel, BF16: 2 * numel}",
        "name: bulk_bytes",
        "must be exactly BF16, F32, Q4",
    ),
    (
        "types.yaml",
        "value: 4 * numel",
        "value: 400 - numel",
        "400 - numel",
        "must be positive and grow with numel",
    ),
    (
        "types.yaml",
        "choose: dtype",
        "choose: kind",
        "choose: kind|name: bulk_bytes",
        "kind is not one of the arguments",
    ),
    (
        "types.yaml",
        "name: u16, bytes: 2",
        "name: u24, bytes: 3",
        "u24",
        "is not a scalar that the generator knows",
    ),
    (
        "types.yaml",
        "{name: u8, bytes: 1",
        "{name: u16, bytes: 1",
        "name: u16, bytes: 2",
        "this type exists already",
    ),
    (
        "limits.yaml",
        "value: 65536\n    tiny: 16",
        "value: MAX_RANGES + 1\n    tiny: 16",
        "name: MAX_RANGES",
        "depends on itself",
    ),
    (
        "limits.yaml",
        "value: size.DATA_HELLO",
        "value: size.DATA_HELO",
        "size.DATA_HELO",
        "size.DATA_HELO is not known here",
    ),
    (
        "limits.yaml",
        "value: 4 * 1024 * 1024\n    tiny: 64",
        "text: many\n    tiny: 64",
        "name: CHUNK_SLICE",
        "only an integer can have a tiny value",
    ),
    (
        "limits.yaml",
        "    value: 256\n",
        "",
        "name: MAX_STREAMS",
        "needs exactly one of value, values, text and bytes",
    ),
    ("limits.yaml", "limit.PUSH_FRAGMENT", "limit.PUSH", "syncer:", "limit.PUSH is not known here"),
    ("limits.yaml", "name: MAX_RANGES", "name: MaxRanges", "MaxRanges", "a constant is named in capitals"),
    ("numerics.yaml", "name: Q4_BLOCK\n", "name: MAGIC\n", "name: MAGIC", "this constant exists already"),
    (
        "errors.yaml",
        "name: BadDtype\n",
        "name: BadMagic  # again\n",
        "# again",
        "this error class exists already",
    ),
    (
        "contexts.yaml",
        "name: link\n    known: link",
        "name: link\n    known: never",
        "known: never",
        "must be one of decode",
    ),
    ("types.yaml", "name: Dtype", "name: Stype", "name: bulk_bytes", "there is no type Dtype to choose by"),
    ("types.yaml", "type: u8", "type: u9", "name: Dtype", "there is no integer type u9"),
    ("types.yaml", "type: u8", "type: digest", "name: Dtype", "there is no integer type digest"),
    ("yeto.yaml", "byte-order: little", "byte-order: big", "byte-order: big", "must be one of little"),
    (
        "behaviour/rounds.yaml",
        "id: syncer.quorum.frozen",
        "id: quorum",
        "id: quorum",
        "is not made of names and dots",
    ),
    (
        "behaviour/rounds.yaml",
        "id: syncer.quorum.frozen",
        "id: push_fragment.first",
        "id: push_fragment.first",
        "this rule exists already",
    ),
    ("behaviour/rounds.yaml", "decision: D1\n", "decision: first\n", "decision: first", "is not like D12"),
    (
        "cases/codec/03_pull_req.yaml",
        "rule: pull_req.payload.end",
        "rule: pull_req.payload.and",
        "pull_req.payload.and",
        "there is no rule",
    ),
    (
        "cases/codec/03_pull_req.yaml",
        "session: f32",
        "session: f64",
        "session: f64",
        "this file has no session f64",
    ),
    (
        "cases/codec/03_pull_req.yaml",
        "frame: PULL_REQ",
        "frame: PULL",
        "frame: PULL|rame",
        "there is no frame PULL",
    ),
    (
        "cases/codec/03_pull_req.yaml",
        "wire: '0",
        "wire: '0x",
        "wire: '0x",
        "must be pairs of hexadecimal digits",
    ),
    (
        "cases/codec/00_header.yaml",
        "    side: syncer\n",
        "",
        "- id: header-first-data-hello",
        "a stream has a receiver",
    ),
    # What Python itself would stumble over, had nobody looked before.
    ("limits.yaml", "value: 65536\n", "value: 65536 // 0\n", "65536 // 0", "a division by zero"),
    ("limits.yaml", "value: 65536\n", "value: 65536 // (2 - 2)\n", "(2 - 2)", "a division by zero"),
    (
        "limits.yaml",
        "value: 65536\n",
        "value: 65536 // (MAX_STREAMS - 256)\n",
        "(MAX_STREAMS - 256)",
        "has no value: integer division",
    ),
    ("limits.yaml", "value: 65536\n", "value: 1 + len(5)\n", "len(5)", "1 + len(5) has no value"),
    ("types.yaml", "cases: {F32: 4 * numel,", "cases: {F32: 4 * numel // (numel - 1),", "- 1)", "no value"),
    (HEARTBEAT, "== link.learner_id", "== 5 // 0", "5 // 0", "a division by zero"),
    (
        "frames/01_hello.yaml",
        "protocol_version == PROTOCOL_VERSION",
        "protocol_version == 70000",
        "protocol_version == 70000",
        "70000 is 70000, and protocol_version holds 0..65535",
    ),
    (
        "types.yaml",
        "name: F32, value: 1,",
        "name: F32, value: 300,",
        "name: F32",
        "300 does not fit u8, 0..255",
    ),
    ("types.yaml", "name: F32, value: 1,", "name: F32, value: -1,", "name: F32", "-1 does not fit u8"),
    ("types.yaml", "name: F32, value: 1,", "name: F32, value: 3,", "name: Q4", "this value exists already"),
    (
        "types.yaml",
        "name: F32, value: 1,",
        "name: f32, value: 1,",
        "name: f32",
        "a value is named in capitals",
    ),
    ("types.yaml", "name: u64, bytes: 8", "name: u64, bytes: 7", "name: u64", "has 8 bytes, not 7"),
    ("types.yaml", "bytes: HASH_BYTES", "bytes: 0", "name: digest", "has 1 bytes, not 0"),
    (HEARTBEAT, "name: local_step", "name: class", "name: class", "class is a word of Python"),
    ("types.yaml", "name: num_tensors", "name: lambda", "name: lambda", "lambda is a word of Python"),
    (PUSH, "  name: delta", "  name: pass", "name: pass", "pass is a word of Python"),
    # What would be taken, and mean nothing.
    (
        HEARTBEAT,
        "name: local_step, type: u64,",
        "name: local_step, type: u64, must: local_step + 1, else: WrongLearner,",
        "local_step + 1",
        "local_step + 1 is no condition",
    ),
    (HEARTBEAT, "learner_id == link.learner_id", "link.learner_id", "link.learner_id", "is no condition"),
    (HEARTBEAT, "learner_id == link.learner_id", "not learner_id", "not learner_id", "is no condition"),
    (
        "frames/11_final_manifest.yaml",
        "count: num_fragments",
        "count: revision",
        "counts: expected_versions",
        "expected_versions does not say `count: num_fragments`",
    ),
    ("limits.yaml", "value: 256\n", "value: -1\n", "name: MAX_STREAMS", "-1 does not fit u64"),
    ("limits.yaml", "tiny: 16\n", "tiny: -16\n", "name: MAX_RANGES", "-16 does not fit u64"),
]


@pytest.mark.parametrize(("name", "old", "new", "line", "what"), FAULTS)
def test_a_wrong_specification_stops_with_file_line_and_key(spec, capsys, name, old, new, line, what):
    edit(spec, name, old, new)
    assert main(["--spec", str(spec), "--out", str(spec.parent)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: spec/")
    assert err.count("\n") == 1
    assert any(each in err for each in what.split("|")), err
    place = err.removeprefix("error: ").split(": ")[0]
    file, number = place.split(":")
    assert file == f"spec/{name}"
    assert int(number) in {line_of(spec, name, each) for each in line.split("|")}
    assert not (spec.parent / "yeto_proto").exists()


def test_a_missing_file_and_an_empty_folder_are_faults(spec, capsys):
    (spec / "types.yaml").unlink()
    assert main(["--spec", str(spec)]) == 1
    assert "spec/types.yaml:0: cannot be read" in capsys.readouterr().err
    shutil.copy(ROOT / "spec" / "types.yaml", spec / "types.yaml")
    for path in (spec / "frames").iterdir():
        path.unlink()
    assert main(["--spec", str(spec)]) == 1
    assert "spec/frames:0: holds no frame" in capsys.readouterr().err
    (spec / "frames").rmdir()
    assert main(["--spec", str(spec)]) == 1
    assert "reading-order: there is no frames" in capsys.readouterr().err


def test_a_frame_number_may_not_be_skipped(spec, capsys):
    (spec / "frames" / "06_heartbeat.yaml").unlink()
    assert main(["--spec", str(spec)]) == 1
    assert (
        "spec/frames/07_shutdown.yaml:2: id: ids count from 1 without gaps; expected 6"
        in capsys.readouterr().err
    )


def test_no_traceback_reaches_the_terminal(spec):
    (spec / "frames" / "06_heartbeat.yaml").write_text("frame: [HEARTBEAT\n")
    command = [sys.executable, "-m", "codegen", "--spec", str(spec)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert done.stderr.startswith("error: spec/frames/06_heartbeat.yaml:2: is not YAML")
    assert done.stderr.count("\n") == 1


# -- what is generated ---------------------------------------------------------------------------------------


def test_the_generated_files_of_this_project_are_up_to_date(capsys):
    assert main(["--check"]) == 0, capsys.readouterr()


def test_writing_says_what_it_wrote_and_a_second_run_changes_nothing(spec, tmp_path, capsys):
    assert main(["--spec", str(spec), "--out", str(tmp_path)]) == 0
    first = capsys.readouterr().out
    assert "wrote yeto_proto/_generated/rules.py (" in first
    assert main(["--spec", str(spec), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("0 of ")
    for path in (ROOT / "yeto_proto" / "_generated").glob("*.py"):
        assert (tmp_path / "yeto_proto" / "_generated" / path.name).read_text() == path.read_text()


def test_check_shows_what_differs_and_writes_nothing(spec, tmp_path, capsys):
    assert main(["--spec", str(spec), "--out", str(tmp_path)]) == 0
    stale = tmp_path / "yeto_proto" / "_generated" / "constants.py"
    stale.write_text(stale.read_text().replace("MAX_STREAMS: Final = 256", "MAX_STREAMS: Final = 257"))
    edited = stale.read_text()
    capsys.readouterr()
    assert main(["--spec", str(spec), "--out", str(tmp_path), "--check"]) == 1
    out, err = capsys.readouterr()
    assert "-MAX_STREAMS: Final = 257" in out
    assert "+MAX_STREAMS: Final = 256" in out
    assert "1 of " in err
    assert stale.read_text() == edited


def test_every_generated_file_says_so_in_its_first_line():
    for folder in ("yeto_proto/_generated",):
        for path in (ROOT / folder).glob("*.py"):
            head = path.read_text().splitlines()[0]
            assert head.startswith("# Generated by codegen from spec/")
            assert head.endswith("; do not edit")


# -- rules ---------------------------------------------------------------------------------------------------


def test_every_decision_is_named_by_a_rule_or_a_field():
    spec = load(ROOT / "spec")
    texts = [f"{rule.says} {rule.doc}" for rule in spec.rules()]
    texts += [each.text.doc for frame in spec.frames for each in frame.fields]
    texts += [frame.text.doc for frame in spec.frames]
    texts += [extension.doc for frame in spec.frames for extension in frame.text.extensions]
    texts += [each.doc for each in spec.constants.values()]
    texts += [f"{rule.says} {rule.decision}" for file in spec.parts["behaviour"] for rule in file.rules]
    named = set(re.findall(r"\bD[0-9]+\b", " ".join(texts)))
    assert {f"D{number}" for number in range(1, 42)} - named == set()


def test_every_rule_says_what_it_demands():
    for rule in load(ROOT / "spec").rules():
        assert rule.sentence
        assert "\n" not in rule.sentence
        assert not rule.sentence.endswith(".")


def test_coverage_counts_cases_and_tests(spec, tmp_path):
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_some.py").write_text(
        "@pytest.mark.rule('pull_req.payload.end')\n"
        "@pytest.mark.parametrize('x', [1])\n"
        "def test_a(x): ...\n"
        "@pytest.mark.rule('no.such.rule')\n"
        "def test_b(): ...\n"
    )
    edit(
        spec,
        "cases/codec/03_pull_req.yaml",
        "expect: refuse\n    session: f32\n    wire: '02",
        "expect: accept\n    session: f32\n    wire: '02",
    )
    for area in ("questions", "server", "client"):  # they have cases of that rule as well
        shutil.rmtree(spec / "cases" / area)
    found = cover(load(spec), tests)
    proof = {each.id: each for each in found.proofs}
    assert "tests/test_some.py::test_a" in proof["pull_req.payload.end"].tests
    assert proof["pull_req.fragment_id.must"].missing == ["refuse"]
    assert proof["pull_req.round_attempt.must"].missing == []
    assert [str(each) for each in found.unknown] == [
        "tests/test_some.py:4: rule: there is no rule no.such.rule"
    ]
    faults = found.faults()
    assert any("pull_req.fragment_id.must: has no case with `expect: refuse`" in each for each in faults)
    lines = table(found).splitlines()
    assert any(
        line.startswith("pull_req.fragment_id.must") and line.endswith("lacks refuse") for line in lines
    )


def test_check_fails_when_a_decode_rule_lacks_a_case(spec, tmp_path, capsys):
    assert main(["--spec", str(spec), "--out", str(tmp_path)]) == 0
    assert main(["--spec", str(spec), "--out", str(tmp_path), "--check"]) == 0
    (spec / "cases" / "codec" / "14_budget_done.yaml").unlink()
    capsys.readouterr()
    assert main(["--spec", str(spec), "--out", str(tmp_path), "--check"]) == 1
    err = capsys.readouterr().err
    assert (
        "spec/frames/14_budget_done.yaml:1: budget_done.payload.end: has no case with `expect: accept`" in err
    )
    assert "has no case with `expect: refuse`" in err


def test_coverage_of_this_project_is_complete(capsys):
    assert main(["--coverage"]) == 0
    out = capsys.readouterr().out
    count = sum(rule.when == "decode" for rule in load_spec(ROOT / "spec").rules())
    assert f"{count} of {count} decode rules have an accepting and a refusing case" in out
    assert "error:" not in out
