"""One edit of the specification reaches the codec, the limits, the strategies and the reference pages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.__main__ import main
from codegen.pages import pages
from codegen.parts import load
from tests.unit.project_pages import project_pages

ROOT = Path(__file__).parents[2]

# Runs on the generated copy, in a process of its own.
PROBE = """
import json, warnings
warnings.simplefilter("ignore")
from hypothesis import HealthCheck, given, settings, strategies as st
import yeto_proto
from yeto_proto import codec
from yeto_proto._generated import constants, errors, messages
from yeto_proto._generated.limits import payload_limit
from yeto_proto._generated.rules import RULES
from yeto_proto._generated.types import Dtype, FrameType, MergeMode, Role
from yeto_proto.session import Session, WireLayout
from yeto_proto.testing import BROKEN, VALID, payload_of

layout = WireLayout.build([(MergeMode.RDA, [4], None)])
session = Session(Dtype.F32, layout, bytes(32), bytes(32), None)
found = {"package": yeto_proto.__file__, "streams": constants.MAX_STREAMS}
found["limit"] = payload_limit(FrameType.HEARTBEAT, Role.SYNCER, session)
found["decoded"] = codec.decode(6, bytes(12) + bytes([100])).battery
found["encoded"] = len(b"".join(codec.encode(messages.Heartbeat(1, 2, 3)))) - 13

def refusal(frame_type, payload):
    try:
        codec.decode(frame_type, payload, session)
    except errors.YetoError as error:
        return [type(error).__name__, error.rule, error.limit]

found["battery"] = refusal(6, bytes(12) + bytes([101]))
found["short"] = refusal(6, bytes(12))
hello = messages.Hello(0, 1, Dtype.F32, layout, bytes(32), bytes(32), None, 9)
found["hello"] = refusal(1, payload_of(hello))
found["attempt"] = refusal(3, bytes(16))
found["renamed"] = [hasattr(errors, "ZeroCounter"), hasattr(errors, "BadCounter")]

seen = {"valid": [], "broken": []}

@settings(max_examples=30, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def draw(data):
    message = data.draw(VALID[FrameType.HEARTBEAT](session))
    assert codec.decode(6, payload_of(message)) == message
    seen["valid"].append(message.battery)
    broken = data.draw(BROKEN[FrameType.HEARTBEAT](session, "heartbeat.battery.must"))
    seen["broken"].append(refusal(6, broken.payload))

draw()
found["valid"] = [min(seen["valid"]), max(seen["valid"])]
found["broken"] = seen["broken"][0]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """The specification with a field, a limit and a name changed, and the package that follows from it."""
    out = tmp_path_factory.mktemp("edited")
    shutil.copytree(ROOT / "spec", out / "spec")
    shutil.copytree(ROOT / "yeto_proto", out / "yeto_proto", ignore=shutil.ignore_patterns("__pycache__"))
    heartbeat = out / "spec" / "frames" / "06_heartbeat.yaml"
    heartbeat.write_text(
        heartbeat.read_text()
        + "  - {name: battery, type: u8, must: battery <= 100, else: BadCounter, doc: Percent.}\n"
    )
    cases = out / "spec" / "cases" / "codec" / "06_heartbeat.yaml"
    cases.write_text(
        cases.read_text().replace("'04030201 1817161514131211'", "'04030201 1817161514131211 64'")
    )
    limits = out / "spec" / "limits.yaml"
    limits.write_text(
        limits.read_text().replace("value: 256\n    unit: streams", "value: 8\n    unit: streams")
    )
    for path in (out / "spec").rglob("*.yaml"):
        path.write_text(path.read_text().replace("BadCounter", "ZeroCounter"))
    assert main(["--spec", str(out / "spec"), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def probe(edited):
    environment = {**os.environ, "PYTHONPATH": str(edited)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=edited,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_probe_runs_on_the_copy(probe, edited):
    assert Path(probe["package"]).is_relative_to(edited)


def test_a_new_field_reaches_codec_and_limits(probe):
    assert probe["decoded"] == 100
    assert probe["encoded"] == 13
    assert probe["limit"] == 13
    assert probe["short"][:2] == ["Truncated", "heartbeat.payload.complete"]
    assert probe["battery"] == ["ZeroCounter", "heartbeat.battery.must", 100]


def test_a_moved_limit_is_what_the_codec_refuses_by(probe):
    assert probe["streams"] == 8
    assert probe["hello"] == ["BadStreamCount", "hello.num_streams.must", 8]


def test_a_renamed_error_is_raised_under_its_new_name(probe):
    assert probe["renamed"] == [True, False]
    assert probe["attempt"][:2] == ["ZeroCounter", "pull_req.round_attempt.must"]


def test_the_strategies_draw_the_new_field_on_both_sides_of_its_bound(probe):
    assert 0 <= probe["valid"][0] <= probe["valid"][1] <= 100
    assert probe["broken"] == ["ZeroCounter", "heartbeat.battery.must", 100]


def test_the_reference_pages_follow(edited):
    before = project_pages()
    after = {each.path: each.text for each in pages(load(edited / "spec"))}
    changed = {path for path in before if before[path] != after.get(path)}
    heartbeat = next(path for path in after if path.endswith("heartbeat.md"))
    assert heartbeat in changed
    assert "battery" in after[heartbeat]
    assert any("ZeroCounter" in after[path] and "BadCounter" in before[path] for path in changed)
    assert any("MAX_STREAMS" in after[path] for path in changed)


def test_the_project_itself_did_not_change():
    assert main(["--check"]) == 0
