"""Recording a real run, leaving its tensors out, reading it from a packet capture, and playing it again."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

from tests.conform.runs import SETTINGS, WAIT_S, learn, serving
from yeto_proto._generated.constants import HEADER_BYTES, MAGIC
from yeto_proto._generated.types import FrameType
from yeto_proto.conform import cli, replay, trace
from yeto_proto.conform.pcap import read_pcap
from yeto_proto.conform.proxy import Proxy
from yeto_proto.conform.recorder import Recorder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A whole run of two learners with two data streams each, seen by the proxy."""
    work = tmp_path_factory.mktemp("record")
    recorder = Recorder(work)
    with serving(work) as server:
        proxy = Proxy(recorder, ("127.0.0.1", 0), ("127.0.0.1", server.port))
        host, port = proxy.address
        try:
            learn(f"{host}:{port}", work)
            proxy.wait_idle(0.1)
        finally:
            proxy.close()
        assert server.process.wait(WAIT_S) == 0
    path = work / "run.jsonl"
    trace.save(recorder.trace("run", SETTINGS), path)
    return path


def test_every_stream_is_in_the_trace(recorded):
    head, steps = trace.load(recorded).head, trace.load(recorded).steps
    assert head["spec"] == trace.load_corpus()[0].head["spec"]
    assert (head["preset"], head["side"], head["session"]["dtype"]) == ("wire", "syncer", "F32")
    opened = {step["on"] for step in steps if step["do"] == "open"}
    assert len(opened) == 6
    assert {name.partition(".")[2] for name in opened} == {"0", "1", "2"}
    kinds = {step["frame"] for step in steps if step["do"] == "frame"}
    assert {"HELLO", "DATA_HELLO", "CHUNK", "PULL_REQ", "FINAL_MANIFEST", "FINAL_ACK", "SHUTDOWN"} <= kinds
    assert not [step for step in steps if step["do"] == "bytes"]


def play(path, *flags):
    """The exit code of playing it again, on a machine that may be busy."""
    return cli.main(["run", "--timeout", str(WAIT_S), "--corpus", str(path), *flags])


def verdicts(capsys):
    """The printed verdict of each cut."""
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {each["cut"]: each["verdict"] for each in results}


def test_the_run_is_played_again_with_the_same_answers(recorded, capsys):
    assert play(recorded, "--json") == 0
    assert verdicts(capsys) == {"recorded": "pass", "coalesced": "pass"}


def test_a_changed_tensor_is_noticed(recorded, capsys, tmp_path):
    found = trace.load(recorded)
    steps = [dict(step) for step in found.steps]
    for step in steps:
        if step.get("frame") == "CHUNK" and step["from"] == "syncer":
            data = step["fields"]["data"]
            changed = data[:-2] + ("00" if data[-2:] != "00" else "01")
            step["fields"] = {**step["fields"], "data": changed}
            step["wire"] = [*step["wire"][:-1], changed]
            break
    path = tmp_path / "changed.jsonl"
    trace.save(trace.Trace(found.head, tuple(steps)), path)
    assert play(path) == cli.FAILED
    assert "tensor: expected" in capsys.readouterr().out


@pytest.mark.parametrize("redact", ["hash", "fill"])
def test_tensors_are_left_out(recorded, redact):
    recorder = Recorder(None, redact)
    _feed(recorder, trace.load(recorded))
    redacted = recorder.trace("run", SETTINGS)
    plain = json.dumps(redacted.steps)
    whole = [step for step in trace.load(recorded).steps if step.get("frame") == "CHUNK"]
    tensors = {step["fields"]["data"][-16:] for step in whole if step["from"] == "syncer"}
    assert tensors
    assert not [each for each in tensors if each in plain]
    assert '"gen": "hash"' in plain
    assert ('"gen": "fill"' in plain) is (redact == "fill")


@pytest.mark.parametrize("redact", ["hash", "fill"])
@pytest.mark.parametrize("side", ["learner", "syncer"])
@pytest.mark.parametrize("broken", ["cut off", "undecodable", "bad magic"])
def test_what_is_no_frame_holds_no_tensor_either(redact, side, broken, tmp_path):
    """A learner that is killed in the middle of a push, and bytes after which nothing can be told apart."""
    secret = bytes(range(1, 251)) * 4
    kind, length = 200 if broken == "undecodable" else FrameType.PUSH_FRAGMENT, len(secret)
    data = struct.pack("<IBQ", 0 if broken == "bad magic" else MAGIC, kind, length) + secret
    recorder = Recorder(tmp_path, redact)
    connection = recorder.connection()
    connection.feed(side, data[:-100] if broken == "cut off" else data, 0.0)
    connection.end(side, 1.0)
    (step,) = (each for each in recorder.steps if each["do"] == "bytes")
    assert secret[:64].hex() not in json.dumps(step) and not list(tmp_path.iterdir())
    lengths = [part["len"] for part in step["wire"] if isinstance(part, dict)]
    assert sum(lengths) == len(data) - (100 if broken == "cut off" else 0) - (
        0 if broken == "bad magic" else HEADER_BYTES
    )


@pytest.mark.parametrize("given", [b"", b"\x00" * 5])
def test_a_piece_of_a_header_stays_as_it_is(given):
    recorder = Recorder(None, "hash")
    connection = recorder.connection()
    connection.feed("learner", given, 0.0)
    connection.end("learner", 1.0)
    assert [each["wire"] for each in recorder.steps if each["do"] == "bytes"] == [[given.hex()]] * bool(given)


def test_a_redacted_run_can_be_played_again(recorded, capsys, tmp_path):
    recorder = Recorder(tmp_path, "fill")
    _feed(recorder, trace.load(recorded))
    path = tmp_path / "redacted.jsonl"
    trace.save(recorder.trace("redacted", SETTINGS), path)
    assert play(path, "--json") == 0
    assert verdicts(capsys) == {"recorded": "pass", "coalesced": "pass"}


def _feed(recorder, found):
    """Record a trace once more, as if its bytes came again."""
    connections = {}
    for step in found.steps:
        on = step["on"]
        if step["do"] == "open":
            connections[on] = recorder.connection()
        elif step["do"] == "frame":
            connections[on].feed(step["from"], found.wire(step["wire"]), step["t"])
        elif step["do"] == "end":
            connections[on].end(step["by"], step["t"])


def _ip(source, target, ports, sequence, flags, data):
    tcp = struct.pack(">HHIIBBHHH", *ports, sequence, 0, 5 << 4, flags, 65535, 0, 0) + data
    return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + source + target + tcp


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_packet_capture_gives_the_same_trace(recorded, tmp_path, order):
    """Packets of 700 bytes; each third one comes late, and each fifth one twice."""
    found = trace.load(recorded)
    magic = 0xA1B2C3D4
    data = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, 1)
    learner, syncer = b"\x7f\0\0\1", b"\x7f\0\0\2"
    ports, sequences, packets = {}, {}, []
    for step in found.steps:
        on = step["on"]
        if step["do"] == "open":
            ports[on] = 40000 + len(ports)
            for side in ("learner", "syncer"):
                sequences[on, side] = 2**32 - 100
                packets.append((on, side, sequences[on, side] - 1, 2, b""))
        elif step["do"] == "frame":
            wire = found.wire(step["wire"])
            own = []
            for start in range(0, len(wire), 700):
                piece = wire[start : start + 700]
                own.append((on, step["from"], sequences[on, step["from"]], 16, piece))
                sequences[on, step["from"]] = (sequences[on, step["from"]] + len(piece)) % 2**32
            if len(own) > 2:
                own[1], own[2] = own[2], own[1]
            packets += [*own, *own[::5]]
        elif step["do"] == "end":
            packets.append((on, step["by"], sequences[on, step["by"]], 1, b""))
    for number, (on, side, sequence, flags, payload) in enumerate(packets):
        ways = (
            (learner, syncer, (ports[on], 29400))
            if side == "learner"
            else (syncer, learner, (29400, ports[on]))
        )
        frame = b"\0" * 12 + b"\x08\0" + _ip(*ways, sequence, flags, payload)
        data += struct.pack(f"{order}IIII", 1000 + number, 0, len(frame), len(frame)) + frame
    path = tmp_path / "run.pcap"
    path.write_bytes(data)
    recorder = Recorder(tmp_path)
    assert read_pcap(path, 29400, recorder) == 6
    steps = recorder.trace("run", {}).steps
    assert [_bare(step) for step in steps] == [_bare(step) for step in found.steps]


def _bare(step):
    return {key: value for key, value in step.items() if key != "t"}


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_the_command_records_until_every_connection_has_ended(tmp_path, flags):
    settings = {**SETTINGS, "learners": 1, "quorum": 1, "total_steps": 2}
    path = tmp_path / "out" / "run.jsonl"
    with serving(tmp_path, settings) as server:
        command = [sys.executable, "-m", "yeto_proto.conform.cli", "record", "--listen", "127.0.0.1:0"]
        command += ["--connect", f"127.0.0.1:{server.port}", "--out", str(path)]
        command += [part for name, value in settings.items() for part in ("--setting", f"{name}={value}")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([*command, *flags], **pipes) as recording:
            told = recording.stderr if flags else recording.stdout
            address = told.readline().removeprefix("recording on ").strip()
            learn(address, tmp_path, count=1, streams=1)
            assert recording.wait(WAIT_S) == 0
            printed = recording.stdout.read()
    found = trace.load(path)
    if flags:
        assert json.loads(printed) == {"trace": str(path), "connections": 2, "steps": len(found.steps)}
    else:
        assert f"wrote {path}: 2 connections, {len(found.steps)} steps" in printed
    assert found.head["settings"] == settings
    assert cli.main(["show", str(path)]) == 0


def test_a_file_that_is_no_capture_is_refused(tmp_path, capsys):
    path = tmp_path / "not.pcap"
    path.write_bytes(b"\x0a\x0d\x0d\x0a" + bytes(40))
    out = str(tmp_path / "out.jsonl")
    assert cli.main(["record", "--pcap", str(path), "--out", out]) == cli.BAD_ARGUMENTS
    assert "pcapng" in capsys.readouterr().err
    path.write_bytes(bytes(40))
    assert cli.main(["record", "--pcap", str(path), "--out", out]) == cli.BAD_ARGUMENTS
    assert "not a libpcap file" in capsys.readouterr().err


def test_a_run_in_which_the_syncer_said_nothing_judges_nothing(recorded, capsys, tmp_path):
    found = trace.load(recorded)
    steps = [step for step in found.steps if step["do"] == "open" or step.get("frame") == "HELLO"]
    path = tmp_path / "silent.jsonl"
    trace.save(trace.Trace(found.head, tuple(steps)), path)
    assert play(path) == 0
    assert "0 passed, 0 failed, 1 skipped" in capsys.readouterr().out


def test_a_trace_without_a_hello_cannot_be_played():
    empty = Recorder().trace("empty", {})
    with pytest.raises(trace.BadTraceError, match="no HELLO"):
        replay.as_server_case(empty)
