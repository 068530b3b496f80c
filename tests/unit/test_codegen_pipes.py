"""Faults in `spec/pipes/`, and the page and the module that follow from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from codegen.__main__ import main
from codegen.parts import load
from tests.unit.project_pages import project_pages
from yeto_proto._generated.iso_worker import HEADER, MAGIC, REQUEST, VERSION, Header, Status

ROOT = Path(__file__).parents[2]
PIPE = "spec/pipes/iso_worker.yaml"

FAULTS = [
    # old text, new text, what is said
    ("pipe: iso_worker", "pipe: svd_worker", "must be called svd_worker.yaml"),
    ("header-size: 48", "header-size: 52", "the fields have 48 bytes"),
    ("type: u32", "type: u16", "must be one of 8 bytes, u32, u64"),
    ("name: version", "name: magic", "this field exists already"),
    ("name: VERSION", "name: Version", "a constant is named in capitals"),
    ("name: VERSION", "name: MAGIC", "this constant exists already"),
    ("bytes: YETOISO1", "unit: bytes", "needs exactly one of"),
    ("name: MALFORMED, value: 1", "name: OK, value: 1", "this status exists already"),
    ("name: MALFORMED, value: 1", "name: MALFORMED, value: 2", "this status exists already"),
    ("status: MALFORMED", "status: MISSHAPEN", "there is no status MISSHAPEN"),
    ("id: magic.must", "id: Magic", "is not made of names and dots"),
    ("id: version.must", "id: magic.must", "this rule exists already"),
    ("id: probe.must\n    by: syncer", "id: probe.must\n    by: learner", "must be one of worker, syncer"),
    ("id: probe.must\n    by: syncer", "id: probe.must\n    by: syncer\n    ends: true", "only the worker"),
]


@pytest.mark.parametrize(("old", "new", "what"), FAULTS)
def test_a_wrong_pipe_stops_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, what: str
) -> None:
    shutil.copytree(ROOT / "spec", tmp_path / "spec")
    path = tmp_path / PIPE
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert main(["--spec", str(tmp_path / "spec"), "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {PIPE}:") and err.count("\n") == 1
    assert what in err


def test_the_generated_header_is_the_published_one() -> None:
    vectors = json.loads((ROOT / "tests" / "vectors" / "merge.json").read_text())["vectors"]
    request = bytes.fromhex(vectors["iso_request_2x2"]["hex"])
    assert Header._make(HEADER.unpack_from(request)) == Header(MAGIC, VERSION, REQUEST, 2, 2, 2, 16)
    reply = bytes.fromhex(vectors["iso_request_2x2"]["reply_hex"])
    assert Header._make(HEADER.unpack_from(reply)) == Header(MAGIC, VERSION, Status.OK, 2, 2, 2, 16)
    assert HEADER.size == 48
    assert [status.value for status in Status] == list(range(9))


def test_the_page_shows_offsets_constants_statuses_and_every_rule() -> None:
    spec = load(ROOT / "spec")
    page = project_pages()["protocol/pipes/iso_worker.md"]
    assert "| 40 | `payload_bytes` | u64 |" in page
    assert "| `MAX_PAYLOAD` | 2,147,483,648 | bytes |" in page
    assert "| 8 | TOO_LARGE |" in page
    (pipe,) = spec.parts["pipes"]
    for rule in pipe.rules:
        assert f"{{ #{pipe.rule_id(rule)} }}" in page
