"""The Wireshark dissector, in tshark, on captures that are written here and on a real run over loopback."""

from __future__ import annotations

import hmac
import itertools
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.e2e.processes import Processes
from tests.e2e.raw import hello
from tests.foreign.adapter import INTEROP
from tests.foreign.cases import write_case
from tests.foreign.pcap import Capture, Connection
from yeto_proto import dtypes
from yeto_proto._generated.messages import (
    BcastFragment,
    BudgetDone,
    Chunk,
    DataHello,
    Error,
    FinalAck,
    FinalFragment,
    FinalManifest,
    Heartbeat,
    Hello,
    InitParams,
    Message,
    PullReq,
    PushFragment,
    Shutdown,
)
from yeto_proto._generated.types import Dtype, FrameType, MergeMode
from yeto_proto.codec import encode
from yeto_proto.layout import Fragment, Layout, Tensor

pytestmark = pytest.mark.full
DISSECTOR = INTEROP / "yeto.lua"
LAYOUT = Layout(
    (
        Fragment(MergeMode.RDA, (Tensor("a", 2, None), Tensor("b", 1, None))),
        Fragment(MergeMode.ISO, (Tensor("m", 6, (2, 3)),)),
    )
)
SIX = np.arange(6, dtype=np.float32)


def wire(message: Message) -> bytes:
    return b"".join(map(bytes, encode(message)))


def frame(kind: int, payload: bytes, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return b"\xde\xc0\x70\xd1" + bytes([kind]) + size.to_bytes(8, "little") + payload


def tshark(capture: Path, *flags: str) -> str:
    """What tshark prints. It fails the test when the dissector has an error of its own."""
    command = ["tshark", "-n", "-r", str(capture), "-X", f"lua_script:{DISSECTOR}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, done.stderr):
        assert "Lua Error" not in text and "syntax error" not in text, text
    return done.stdout


def shown(capture: Path, *flags: str) -> list[str]:
    """The column Info of every packet that holds frames."""
    lines = tshark(capture, "-Y", "yeto", "-T", "fields", "-e", "_ws.col.Info", *flags).splitlines()
    return [line for line in lines if line]


def fields(capture: Path, *names: str) -> list[list[str]]:
    """These fields of every packet that holds frames; several values are joined by a comma."""
    flags = [flag for name in names for flag in ("-e", f"yeto.{name}")]
    text = tshark(capture, "-Y", "yeto", "-T", "fields", *flags)
    return [line.split("\t") for line in text.splitlines()]


def rules(capture: Path, *flags: str) -> list[str]:
    """The rules that are reported as broken, in order."""
    text = tshark(capture, "-Y", "yeto && _ws.expert.severity == 0x800000", "-T", "json", *flags)
    found: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if key.startswith("yeto.rule."):
                    found.append(key.removeprefix("yeto.rule."))
                walk(value)
        elif isinstance(node, list):
            for each in node:
                walk(each)

    walk(json.loads(text, object_pairs_hook=pairs) if text.strip() else [])
    return found


def pairs(items: list[tuple[str, Any]]) -> Any:
    """An object whose keys may repeat, as a list of objects."""
    return [{key: value} for key, value in items]


def opened(capture: Capture, dtype: Dtype = Dtype.F32, streams: int = 0, **more: Any) -> Connection:
    """A control stream whose HELLO was sent."""
    connection = capture.connect()
    connection.send(True, wire(hello(LAYOUT, 0, dtype=dtype, streams=streams, **more)))
    return connection


MESSAGES: list[tuple[bool, Message, str]] = [
    (True, InitParams(0, SIX[:3].tobytes()), "INIT_PARAMS fragment_id=0"),
    (False, PullReq(1, 2, 3), "PULL_REQ fragment_id=1 global_step=2 round_attempt=3"),
    (
        True,
        PushFragment(0, 1, 2**64 - 1, 3, 0, 10, 4, 256, SIX.tobytes()),
        "PUSH_FRAGMENT learner_id=0 fragment_id=1 global_step=18446744073709551615 round_attempt=3",
    ),
    (False, BcastFragment(1, 7, SIX.tobytes()), "BCAST_FRAGMENT fragment_id=1 version=7"),
    (True, Heartbeat(0, 10), "HEARTBEAT learner_id=0 local_step=10"),
    (False, FinalFragment(1, 8, SIX.tobytes()), "FINAL_FRAGMENT fragment_id=1 version=8"),
    (
        False,
        FinalManifest(8, (7, 8)),
        "FINAL_MANIFEST revision=1 final_global_step=8 num_fragments=2",
    ),
    (True, FinalAck(8), "FINAL_ACK revision=1 final_global_step=8"),
    (True, BudgetDone(4), "BUDGET_DONE exact_local_steps=4"),
    (False, Error("nein, wegen ä"), "ERROR"),
    (False, Shutdown(), "SHUTDOWN"),
]


@pytest.mark.parametrize("segment", [1, 7, 1400])
def test_every_frame_however_it_is_cut(tmp_path: Path, segment: int) -> None:
    capture = Capture()
    control = capture.connect()
    control.send(True, wire(hello(LAYOUT, 0, streams=1)), segment)
    data = capture.connect()
    data.send(True, wire(DataHello(0, 1, 0)), segment)
    for to_server, message, _ in MESSAGES:
        control.send(to_server, wire(message), segment)
    inner = wire(InitParams(1, SIX.tobytes()))
    data.send(True, wire(Chunk(5, len(inner), 0, inner)), segment)
    path = capture.write(tmp_path / "all.pcap")
    found = shown(path)
    assert found[0].startswith("HELLO protocol_version=4 learner_id=0 connection_generation=1")
    assert found[1] == "DATA_HELLO protocol_version=4 learner_id=0 connection_generation=1 stream_idx=0"
    assert found[2:-1] == [text for _, _, text in MESSAGES]
    assert found[-1] == "CHUNK msg_id=5 total_len=41 offset=0 > INIT_PARAMS fragment_id=1"
    types = {each for row in fields(path, "header.type") for each in row[0].split(",")}
    assert types == {str(kind.value) for kind in FrameType}
    assert rules(path) == []


def test_a_layout_is_shown(tmp_path: Path) -> None:
    capture = Capture()
    opened(capture)
    path = capture.write(tmp_path / "hello.pcap")
    names = ["merge_mode", "num_tensors", "numel", "rows", "cols"]
    (row,) = fields(path, "hello.dtype", *(f"layout.{name}" for name in names))
    assert row == ["1", "1,2", "2,1", "2,1,6", "2", "3"]


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
def test_values_are_decoded_in_the_dtype_of_the_session(tmp_path: Path, dtype: Dtype) -> None:
    capture = Capture()
    control = opened(capture, dtype)
    values = np.array([1, -0.5, 0.25, 0, -4, 3], np.float32)
    bulk = Dtype.BF16 if dtype is Dtype.Q4 else dtype
    control.send(False, wire(BcastFragment(1, 0, bytes(dtypes.encode(bulk, values)))))
    delta = bytes(dtypes.encode(dtype, values))
    control.send(True, wire(PushFragment(0, 1, 2, 1, 0, 1, 1, 1, delta)))
    control.send(False, wire(FinalFragment(1, 2, values.tobytes())))
    path = capture.write(tmp_path / "values.pcap")
    decoded = dtypes.decode(dtype, delta, 6)
    expected = ["", *(f"{each.name} x 6: {listed(values)}" for each in (bulk,))]
    expected += [f"{dtype.name} x 6: {listed(decoded)}", f"F32 x 6: {listed(values)}"]
    assert [row[0] for row in fields(path, "values")] == expected


def listed(values: Any) -> str:
    return ", ".join(f"{float(value):.9g}" for value in values)


def chunks(message: Message, cuts: list[int], number: int = 7) -> list[bytes]:
    data = wire(message)
    edges = [0, *cuts, len(data)]
    return [
        wire(Chunk(number, len(data), start, data[start:stop])) for start, stop in itertools.pairwise(edges)
    ]


def test_a_message_is_put_together_over_streams(tmp_path: Path) -> None:
    """Its chunks come out of order on two sockets, and each direction counts its messages alone."""
    capture = Capture()
    opened(capture, streams=2)
    streams = [capture.connect() for _ in range(2)]
    for index, stream in enumerate(streams):
        stream.send(True, wire(DataHello(0, 1, index)))
    up = chunks(InitParams(1, SIX.tobytes()), [9, 20, 21])
    down = chunks(BcastFragment(1, 0, SIX.tobytes()), [30])
    streams[0].send(True, up[3])
    streams[1].send(False, down[1])
    streams[1].send(True, up[1] + up[0], segment=10)
    streams[0].send(False, down[0])
    streams[0].send(True, up[2])
    path = capture.write(tmp_path / "stripes.pcap")
    found = shown(path)
    assert found[-2].endswith("> BCAST_FRAGMENT fragment_id=1 version=0")
    assert found[-1].endswith("> INIT_PARAMS fragment_id=1")
    assert sum(">" in each for each in found) == 2
    assert rules(path) == []
    assert shown(path, "-2") == found


HEARTBEAT = wire(Heartbeat(0, 1))
BREACHES: dict[str, tuple[bool, bytes]] = {
    "header.magic.must": (True, b"\0" * 13),
    "header.type.known": (True, frame(15, b"")),
    "header.type.direction": (True, wire(PullReq(0, 1, 1))),
    "header.len.limit": (True, frame(4, bytes(60), 1 << 63)),
    "pull_req.round_attempt.must": (False, frame(3, bytes(16))),
    "pull_req.fragment_id.must": (False, frame(3, b"\2" + bytes(11) + b"\1\0\0\0")),
    "pull_req.payload.complete": (False, frame(3, bytes(5))),
    "init_params.tensor.length": (True, frame(2, bytes(4) + bytes(8))),
    "push_fragment.c_steps.must": (
        True,
        frame(4, bytes(16) + b"\1\0\0\0" + bytes(28) + bytes(12)),
    ),
    "heartbeat.learner_id.must": (True, wire(Heartbeat(3, 1))),
    "final_ack.revision.must": (True, frame(12, b"\2" + bytes(9))),
    "final_manifest.num_fragments.must": (False, frame(11, b"\1" + bytes(9) + b"\1" + bytes(3) + bytes(8))),
    "chunk.data.some": (True, frame(9, bytes(8) + b"\x14" + bytes(15))),
    "chunk.data.inside": (True, wire(Chunk(0, 20, 18, b"abc"))),
    "chunk.total_len.limit": (True, wire(Chunk(0, 10_000, 0, b"abc"))),
    "chunk.data.overlap": (True, wire(Chunk(0, 40, 0, b"abc")) + wire(Chunk(0, 40, 2, b"c"))),
    "chunk.total_len.same": (True, wire(Chunk(0, 40, 0, b"abc")) + wire(Chunk(0, 41, 5, b"c"))),
    "chunk.data.inner": (True, wire(Chunk(0, 20, 0, bytes(20)))),
}


@pytest.mark.parametrize("rule", BREACHES)
def test_a_breach_is_reported_by_its_rule(tmp_path: Path, rule: str) -> None:
    to_server, data = BREACHES[rule]
    capture = Capture()
    control = opened(capture)
    control.send(to_server, data, segment=11)
    path = capture.write(tmp_path / "broken.pcap")
    found = rules(path)
    assert rule in found
    assert set(found) == {rule}
    assert rules(path, "-2") == found
    (line,) = [each for each in tshark(path, "-q", "-z", "expert").splitlines() if rule in each]
    assert "YETO" in line


def changed_hello(change: str) -> Hello:
    plain = hello(LAYOUT, 1, generation=9)
    other = Layout((Fragment(MergeMode.AVG, (Tensor("a", 2, None),)),))
    if change == "dtype":
        return hello(LAYOUT, 1, generation=9, dtype=Dtype.BF16)
    if change == "contract":
        return hello(LAYOUT, 1, generation=9, contract=bytes(32))
    return hello(other, 1, generation=9) if change == "layout" else plain


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("", set()),
        ("dtype", {"hello.dtype.session"}),
        ("contract", {"hello.session_contract_hash.session"}),
        ("layout", {"hello.layout.session", "hello.layout_fingerprint.session"}),
    ],
)
def test_a_second_hello_is_compared_with_the_first(tmp_path: Path, change: str, expected: set[str]) -> None:
    capture = Capture()
    opened(capture)
    capture.connect().send(True, wire(changed_hello(change)))
    assert set(rules(capture.write(tmp_path / "two.pcap"))) == expected


@pytest.mark.parametrize(
    ("offset", "value", "rule"),
    [
        (13, b"\5", "hello.protocol_version.must"),
        (19, bytes(8), "hello.connection_generation.must"),
        (27, b"\4", "hello.dtype.must"),
        (32, b"\3", "hello.merge_mode.must"),
        (37, bytes(8), "hello.numels.must"),
        (66, b"\4", "hello.shapes.must"),
        (-2, b"\1\1", "hello.num_streams.must"),
    ],
)
def test_a_broken_hello(tmp_path: Path, offset: int, value: bytes, rule: str) -> None:
    data = bytearray(wire(hello(LAYOUT, 0)))
    at = offset % len(data)
    data[at : at + len(value)] = value
    capture = Capture()
    control = capture.connect()
    control.send(True, bytes(data))
    control.send(True, HEARTBEAT)
    assert rules(capture.write(tmp_path / "hello.pcap")) == [rule]


def test_a_hello_with_a_mac(tmp_path: Path) -> None:
    body = wire(hello(LAYOUT, 0))[13:]
    seal = hmac.digest(b"k3y", b"yeto-hello-mac-v1\0" + body, "sha256")
    capture = Capture()
    capture.connect().send(True, frame(1, body + seal))
    path = capture.write(tmp_path / "mac.pcap")
    (row,) = tshark(
        path, "-o", "yeto.extensions:TRUE", "-T", "fields", "-Y", "yeto",
        "-e", "yeto.hello.hello_mac", "-e", "yeto.hello.num_streams",
    ).splitlines()  # fmt: skip
    assert row.split("\t") == [seal.hex(), "0"]
    assert rules(path, "-o", "yeto.extensions:TRUE") == []


def test_a_first_frame_that_opens_nothing(tmp_path: Path) -> None:
    capture = Capture()
    capture.connect().send(True, HEARTBEAT)
    assert rules(capture.write(tmp_path / "first.pcap")) == ["header.type.first"]


def test_a_capture_that_begins_in_mid_stream(tmp_path: Path) -> None:
    capture = Capture()
    control = capture.connect(handshake=False)
    control.send(True, wire(PushFragment(0, 1, 2, 1, 0, 1, 1, 1, SIX.tobytes()))[20:] + HEARTBEAT)
    control.send(False, wire(PullReq(0, 1, 1)))
    path = capture.write(tmp_path / "middle.pcap")
    assert shown(path) == [
        "HEARTBEAT learner_id=0 local_step=1",
        "PULL_REQ fragment_id=0 global_step=1 round_attempt=1",
    ]
    assert rules(path) == []


def test_other_ports(tmp_path: Path) -> None:
    """A HELLO is known on any port; the middle of a stream needs the preference."""
    known = Capture(port=5001)
    opened(known).send(False, wire(PullReq(0, 1, 1)))
    assert len(shown(known.write(tmp_path / "hello.pcap"))) == 2
    middle = Capture(port=5001)
    middle.connect(handshake=False).send(True, HEARTBEAT)
    path = middle.write(tmp_path / "middle.pcap")
    assert shown(path) == []
    assert shown(path, "-o", "yeto.ports:5001") == ["HEARTBEAT learner_id=0 local_step=1"]


def test_a_large_message_is_shown_as_its_chunks(tmp_path: Path) -> None:
    layout = Layout((Fragment(MergeMode.RDA, (Tensor("a", 600_000, None),)),))
    capture = Capture()
    control = capture.connect()
    control.send(True, wire(hello(layout, 0)))
    for each in chunks(InitParams(0, bytes(2_400_000)), [1_000_000, 2_000_000]):
        control.send(True, each, segment=60_000)
    path = capture.write(tmp_path / "large.pcap")
    assert shown(path)[-1].endswith("> INIT_PARAMS fragment_id=0")
    limited = shown(path, "-o", "yeto.message_mib:2")
    assert len(limited) == 4
    assert not any(">" in each for each in limited)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_bytes_confuse_it(tmp_path: Path, seed: int) -> None:
    """Changed frames on four hundred connections: none of them makes the dissector fail."""
    random = Random(seed)
    frames = [wire(message) for _, message, _ in MESSAGES]
    frames += [wire(hello(LAYOUT, 0)), wire(DataHello(0, 1, 0)), *chunks(MESSAGES[0][1], [9, 20])]
    capture = Capture()
    opened(capture)
    for number in range(400):
        connection = capture.connect()
        if random.random() < 0.5:
            connection.send(True, wire(hello(LAYOUT, 0, generation=number + 2)))
        for _ in range(random.randint(1, 3)):
            chosen = random.choice(frames)
            body = bytearray(chosen[13:])
            for _ in range(random.randint(0, 3)):
                at = random.randint(0, len(body))
                if random.random() < 0.4:
                    del body[at:]
                else:
                    body[at : at + 1] = random.choice([b"", b"\0", b"\1\2", b"\xff\xff\xff"])
            connection.send(random.random() < 0.5, frame(chosen[4], bytes(body)))
    text = tshark(capture.write(tmp_path / "any.pcap"), "-V", "-O", "yeto")
    assert text.count("Expert Info") > 100


def test_a_real_run_over_loopback(processes: Processes, tmp_path: Path) -> None:
    """Two learners and a syncer, captured by tshark itself: every frame is known, and no rule is broken."""
    syncer = processes.syncer(
        *("--learners", "2", "--quorum", "2", "--total-steps", "6"),
        *("--grace-ms", "30000", "--sync-interval-steps", "0"),
    )
    path = tmp_path / "run.pcapng"
    capture = processes.run(
        *("tshark", "-i", "lo", "-f", f"tcp port {syncer.port}", "-w", str(path), "-a", "duration:3600"),
        *("-X", f"lua_script:{DISSECTOR}", "-P", "-l"),
    )
    capture.stderr.wait_for("Capture started")
    learners = [
        processes.run(
            sys.executable,
            str(INTEROP / "learner.py"),
            write_case(tmp_path, syncer.port, number, num_streams=2 - 2 * number, dtype="bf16"),
        )
        for number in range(2)
    ]
    syncer.finished(timeout=300)
    assert [learner.wait(300) for learner in learners] == [0, 0]
    capture.stdout.wait_for("SHUTDOWN", 300, count=2)  # what the kernel still holds at the signal is lost
    capture.signal(2)
    capture.wait(300)
    found = "\n".join(shown(path))
    for name in ("HELLO", "DATA_HELLO", "CHUNK", "PULL_REQ", "FINAL_MANIFEST", "FINAL_ACK", "SHUTDOWN"):
        assert name in found
    for name in ("INIT_PARAMS", "PUSH_FRAGMENT", "BCAST_FRAGMENT", "FINAL_FRAGMENT"):
        assert f"> {name}" in found
    assert rules(path) == []
