"""The Kaitai Struct files, compiled to Python and to JavaScript, against our own codec and files."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kaitaistruct import KaitaiStruct, KaitaiStructError

from codegen import codec_cases
from codegen.spec import load_spec
from tests.foreign.adapter import INTEROP
from tests.unit.snapshot_samples import snapshots
from yeto_proto import files
from yeto_proto._generated.messages import Chunk, FinalManifest, Hello, InitParams
from yeto_proto._generated.rules import RULES
from yeto_proto._generated.types import FrameType
from yeto_proto.codec import encode
from yeto_proto.errors_base import YetoError
from yeto_proto.files import Snapshot, SnapshotReader
from yeto_proto.testing import VALID, payload_of, sessions

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[2]
COMPILER = ROOT / "build" / "foreign" / "node_modules" / "kaitai-struct-compiler"
EXAMPLES = settings(max_examples=30, deadline=None)
REFUSED = (KaitaiStructError, EOFError, UnicodeDecodeError)
SPEC = load_spec(ROOT / "spec")
NEEDS = {rule.id: rule.needs for rule in SPEC.rules()}
CASES = [
    (file, case) for file in codec_cases.load(ROOT / "spec", SPEC) for case in file.cases if not case.stream
]
# Rules over the bytes alone that the language cannot say: sums, two lists side by side, sizes of a session.
BEYOND = {"hello.numels.total", "hello.shapes.must", "hello.layout.alloc"}


def compiled(name: str, language: str) -> dict[str, str]:
    """The source files that the compiler makes of one of ours."""
    assert COMPILER.exists(), "run tests/foreign/install.sh build/foreign first"
    text = yaml.safe_load((INTEROP / f"{name}.ksy").read_text())
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("compile_ksy.js")), str(COMPILER), language],
        input=json.dumps(text),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    sources: dict[str, str] = json.loads(done.stdout)
    return sources


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The class that the compiler makes of a file, by the file's name."""
    folder = tmp_path_factory.mktemp("kaitai")
    modules: dict[str, ModuleType] = {}

    def load(name: str) -> type[KaitaiStruct]:
        if name not in modules:
            (source,) = compiled(name, "python").values()
            path = folder / f"{name}.py"
            path.write_text(source)
            found = importlib.util.spec_from_file_location(name, path)
            assert found is not None and found.loader is not None
            modules[name] = importlib.util.module_from_spec(found)
            found.loader.exec_module(modules[name])
        made: type[KaitaiStruct] = getattr(
            modules[name], "".join(each.capitalize() for each in name.split("_"))
        )
        return made

    return load


@pytest.mark.parametrize("name", ["yeto_frames", "yeto_snapshot", "yeto_final_state"])
@pytest.mark.parametrize("language", ["javascript", "cpp_stl", "rust"])
def test_other_languages_compile_too(name: str, language: str) -> None:
    assert any(len(source) > 1000 for source in compiled(name, language).values())


# Frames


def frame(kind: FrameType, payload: bytes) -> bytes:
    return b"\xde\xc0\x70\xd1" + bytes([kind]) + len(payload).to_bytes(8, "little") + payload


def check_same(message: Any, found: Any) -> None:
    """Every field of our message is the one of theirs."""
    for name in message.__slots__:
        ours, theirs = getattr(message, name), getattr(found, name, None)
        if isinstance(message, Hello) and name == "layout":
            assert found.num_fragments == ours.num_fragments
            for number, fragment in enumerate(theirs):
                assert fragment.merge_mode.value == ours.merge_mode(number)
                assert fragment.numels == ours.numels(number).tolist()
                shapes = ours.shapes(number)
                assert (shapes is None) == (not hasattr(fragment, "shapes"))
                if shapes is not None:
                    assert [[each.rows, each.cols] for each in fragment.shapes] == shapes.tolist()
        elif ours is None:
            assert theirs is None
        elif isinstance(ours, (bytes, bytearray, memoryview)):
            assert bytes(ours) == theirs
        elif isinstance(ours, tuple):
            assert list(ours) == theirs
        else:
            assert ours == (theirs if isinstance(ours, str) else int(theirs))
    if isinstance(message, FinalManifest):
        assert found.num_fragments == len(message.expected_versions)


@pytest.mark.parametrize("kind", list(FrameType), ids=lambda each: each.name)
@EXAMPLES
@given(st.data())
def test_valid_frames_mean_the_same(parser: Any, kind: FrameType, data: st.DataObject) -> None:
    session = data.draw(sessions())
    messages = data.draw(st.lists(VALID[kind](session), min_size=1, max_size=3))
    wire = b"".join(frame(kind, payload_of(message)) for message in messages)
    found = parser("yeto_frames").from_bytes(wire).frames
    assert len(found) == len(messages)
    for message, each in zip(messages, found, strict=True):
        assert each.type.value == kind
        check_same(message, each.payload)


def test_recorded_frames(parser: Any) -> None:
    recorded = json.loads((ROOT / "tests" / "vectors" / "frames.json").read_text())["messages"]
    wire = b"".join(bytes.fromhex(each["frame_hex"]) for each in recorded)
    found = parser("yeto_frames").from_bytes(wire).frames
    assert [each.type.value for each in found] == [each["type"] for each in recorded]
    assert {each.type.value for each in found} == {kind.value for kind in FrameType}


def test_a_chunk_that_holds_a_whole_message_shows_it(parser: Any) -> None:
    inner = b"".join(map(bytes, encode(InitParams(3, bytes(8)))))
    wire = frame(FrameType.CHUNK, payload_of(Chunk(7, len(inner), 0, inner)))
    chunk = parser("yeto_frames").from_bytes(wire).frames[0].payload
    assert chunk.message.payload.fragment_id == 3
    part = frame(FrameType.CHUNK, payload_of(Chunk(7, len(inner) + 1, 0, inner)))
    assert parser("yeto_frames").from_bytes(part).frames[0].payload.message is None


@pytest.mark.parametrize(("file", "case"), [pytest.param(*each, id=each[1].id) for each in CASES])
def test_authored_payloads(parser: Any, file: codec_cases.CaseFile, case: codec_cases.CaseText) -> None:
    """Whatever follows from the bytes of one frame is refused; what needs a session or a receiver is not."""
    wire = frame(FrameType[file.frame], case.data)
    if case.expect == "accept":
        parser("yeto_frames").from_bytes(wire)
        return
    rule = RULES[case.rules[0]]
    surroundings = {"session", "fragment", "total_limit"} & set(NEEDS[rule.id])
    if rule.when != "decode" or surroundings or rule.id in BEYOND:
        parser("yeto_frames").from_bytes(wire)
    else:
        with pytest.raises(REFUSED):
            parser("yeto_frames").from_bytes(wire)


@pytest.mark.parametrize(
    "wire", [bytes(13), frame(FrameType.SHUTDOWN, b"")[:12], b"\xde\xc0\x70\xd1\x0f" + bytes(8)]
)
def test_bytes_that_are_no_frame(parser: Any, wire: bytes) -> None:
    with pytest.raises((*REFUSED, ValueError)):
        parser("yeto_frames").from_bytes(wire)


# Files


def written(snapshot: Snapshot) -> bytes:
    stream = io.BytesIO()
    files.write_to(stream, snapshot)
    return stream.getvalue()


@EXAMPLES
@given(snapshots())
def test_snapshots_of_every_version(parser: Any, snapshot: Snapshot) -> None:
    found = parser("yeto_snapshot").from_bytes(written(snapshot))
    version = int(snapshot.version_tag.name[1:])
    assert found.format_version == version
    assert hasattr(found, "iso_backend") == (version >= 2)
    assert hasattr(found, "fingerprint") == (version >= 3)
    if version >= 2:
        assert snapshot.iso_backend is not None
        assert found.iso_backend.value == snapshot.iso_backend
    if version >= 3:
        assert found.fingerprint == snapshot.fingerprint
    assert found.global_step == snapshot.global_step
    for ours, theirs in zip(snapshot.fragments, found.fragments, strict=True):
        assert (theirs.version, theirs.numel) == (ours.version, ours.params.size)
        for name in ("params", "momentum"):
            values = np.array(getattr(theirs, name), np.float32)
            assert np.array_equal(values, getattr(ours, name), equal_nan=True)
    ledger = {each.learner_id: (each.merges, each.steps, each.tokens) for each in found.ledger}
    assert ledger == {
        number: (each.merges, each.steps, each.tokens) for number, each in snapshot.ledger.items()
    }
    trailer = snapshot.trailer
    assert trailer is not None
    form = "".join(part.capitalize() for part in trailer.form.name.split("_"))
    assert type(found.trailer).__name__ == f"Trailer{form}"
    if trailer.contract is not None:
        assert found.trailer.contract == trailer.contract


@EXAMPLES
@given(snapshots(), st.data())
def test_cut_snapshots_are_refused(parser: Any, snapshot: Snapshot, data: st.DataObject) -> None:
    """Unless what is left ends in another form of trailer."""
    cut = written(snapshot)[: -data.draw(st.integers(1, 80))]
    try:
        SnapshotReader(io.BytesIO(cut)).read()
    except YetoError:
        with pytest.raises(REFUSED):
            parser("yeto_snapshot").from_bytes(cut)
    else:
        parser("yeto_snapshot").from_bytes(cut)


@pytest.mark.parametrize(("at", "value"), [(0, 0x7D), (4, 2)], ids=["magic", "backend"])
def test_other_files_are_refused(parser: Any, at: int, value: int) -> None:
    recorded = json.loads((ROOT / "tests" / "vectors" / "merge.json").read_text())["vectors"]
    data = bytearray.fromhex(recorded["checkpoint_v3_tiny_torch"]["hex"])
    parser("yeto_snapshot").from_bytes(bytes(data))
    data[at] = value
    with pytest.raises(REFUSED):
        parser("yeto_snapshot").from_bytes(bytes(data))


def test_a_final_state(parser: Any) -> None:
    recorded = json.loads((ROOT / "tests" / "vectors" / "merge.json").read_text())["vectors"]["final_state"]
    data = bytes.fromhex(recorded["hex"])
    ours = files.read_final_state_from(io.BytesIO(data))
    found = parser("yeto_final_state").from_bytes(data)
    for values, each in zip(ours, found.fragments, strict=True):
        assert np.array_equal(np.array(each.params, np.float32), values)
    for broken in (data[:-1], data + b"\0"):
        with pytest.raises(REFUSED):
            parser("yeto_final_state").from_bytes(broken)
