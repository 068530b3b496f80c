"""The raw-socket learner against the real syncer, which is restarted under it in one test."""

from __future__ import annotations

import ast
import hashlib
import json
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.processes import Processes, Running, reserved_port
from tests.foreign.adapter import INTEROP
from tests.foreign.cases import write_case
from yeto_proto.files import read_final_state, read_snapshot

LEARNER = INTEROP / "learner.py"
QUICK = ("--grace-ms", "30000", "--sync-interval-steps", "0", "--quorum", "2", "--learners", "2")


def start(processes: Processes, case: str) -> Running:
    return processes.run(sys.executable, str(LEARNER), case)


def commits(tape: Path) -> list[dict[str, Any]]:
    """What has been committed so far; a line that is being written is left out."""
    text = tape.read_text() if tape.exists() else ""
    records = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
    return [record for record in records if "gnorm" in record]


def check_final(folder: Path, learners: list[Running], steps: int) -> None:
    """Every learner ends well, and has exactly the parameters that the syncer wrote."""
    state = read_final_state(folder / "final.bin")
    digest = hashlib.sha256(np.concatenate(list(state)).astype("<f4").tobytes()).hexdigest()
    for learner in learners:
        learner.stdout.wait_for(digest)
        assert learner.wait() == 0
        assert learner.stderr.text.count("error") == 0
    assert read_snapshot(folder / "state.ckpt").global_step == steps


def files(folder: Path) -> list[str]:
    return [
        *("--checkpoint-path", str(folder / "state.ckpt"), "--final-state", str(folder / "final.bin")),
        *("--event-tape", str(folder / "tape.jsonl")),
    ]


def test_it_is_short_and_imports_nothing_of_ours() -> None:
    text = LEARNER.read_text()
    assert len(text.splitlines()) < 300
    imported = {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module])
    }
    assert imported - set(sys.stdlib_module_names) == {"numpy"}


@pytest.mark.rule("chunk.streams.either")
@pytest.mark.parametrize(
    ("dtype", "streams"),
    [
        ("f32", 0),
        pytest.param("f32", 2, marks=pytest.mark.full),
        pytest.param("bf16", 1, marks=pytest.mark.full),
        ("q4", 1),
        pytest.param("q4", 0, marks=pytest.mark.full),
    ],
)
def test_it_trains_to_the_end(processes: Processes, tmp_path: Path, dtype: str, streams: int) -> None:
    syncer = processes.syncer("--total-steps", "9", *QUICK, *files(tmp_path))
    learners = [
        start(
            processes,
            write_case(tmp_path, syncer.port, number, dtype=dtype, num_streams=streams, merge_alpha=0.5),
        )
        for number in range(2)
    ]
    syncer.finished(timeout=300)
    check_final(tmp_path, learners, 9)
    for record in commits(tmp_path / "tape.jsonl"):
        assert record["responded"] == [0, 1]
        for responder in record["responders"]:
            assert responder["c_tokens"] == 64 * responder["c_steps"]


@pytest.mark.full
@pytest.mark.rule("learner.generation.fresh")
def test_it_redials_a_syncer_that_comes_back(processes: Processes, tmp_path: Path) -> None:
    """The second process goes on where the checkpoint of the first one ends, on the same port."""
    with reserved_port() as port:
        flags = ("--port", str(port), *QUICK, *files(tmp_path), "--checkpoint-every", "1")
        first = processes.syncer_command(*flags, "--total-steps", "1000000").listening()
        learners = [
            start(processes, write_case(tmp_path, port, number, num_streams=1, step_ms=2))
            for number in range(2)
        ]
        first.stderr.wait_for("outer step", count=5)
        first.signal(signal.SIGKILL)
        first.wait()
        reached = read_snapshot(tmp_path / "state.ckpt").global_step
        flags = (*flags, "--resume", "--total-steps", str(reached + 6))
        second = processes.syncer_command(*flags).listening()
        second.finished(timeout=300)
    check_final(tmp_path, learners, reached + 6)
    assert all("lost the syncer" in learner.stderr.text for learner in learners)


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("<IBQ", 0xD170C0DE, kind, len(payload)) + payload


def tensor(kind: int, number: int, version: int, numel: int, value: float) -> bytes:
    return frame(kind, struct.pack("<IQ", number, version) + np.full(numel, value, "<f4").tobytes())


def chunk(number: int, total: int, offset: int, data: bytes) -> bytes:
    return frame(9, struct.pack("<QQQ", number, total, offset) + data)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (frame(10, "nicht möglich".encode()), "nicht möglich"),
        (b"\0" * 13, "bad magic"),
        (frame(6, bytes(12)), "type 6"),
        (struct.pack("<IBQ", 0xD170C0DE, 3, 17), "17 bytes"),
        (frame(3, bytes(15)), "wrong length"),
        (frame(3, struct.pack("<IQI", 0, 1, 0)), "PULL_REQ"),
        (frame(3, struct.pack("<IQI", 3, 1, 1)), "PULL_REQ"),
        (frame(7, b""), "SHUTDOWN before"),
        (tensor(5, 0, 0, 300, 1) + tensor(5, 0, 0, 300, 2), "other bytes"),
        (tensor(5, 0, 0, 299, 1), "another length"),
        (tensor(5, 3, 0, 24, 1), "fragment"),
        (frame(11, struct.pack("<HQI3Q", 2, 9, 3, 7, 8, 9)), "FINAL_MANIFEST"),
        (frame(11, struct.pack("<HQI3Q", 1, 9, 2, 7, 8, 9)), "FINAL_MANIFEST"),
        (
            frame(11, struct.pack("<HQI3Q", 1, 9, 3, 7, 8, 9))
            + frame(11, struct.pack("<HQI3Q", 1, 9, 3, 7, 8, 8)),
            "conflicting",
        ),
        (chunk(0, 100, 0, b"ab") + chunk(0, 100, 1, b"b"), "overlapping"),
        (chunk(0, 100, 99, b"ab"), "does not fit"),
        (chunk(0, 12, 0, b"a"), "does not fit"),
        (chunk(0, 100, 0, b""), "without bytes"),
        (chunk(0, 100, 0, b"ab") + chunk(0, 101, 2, b"b"), "total"),
        (b"".join(chunk(number, 100, 0, b"a") for number in range(65)), "too many incomplete"),
        (chunk(0, 13, 0, bytes(13)), "no frame"),
        (chunk(0, 13, 0, frame(9, b"")), "no frame"),
        (chunk(0, 25, 0, frame(6, bytes(12))), "no frame"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.full
def test_it_refuses_what_a_syncer_may_not_send(
    processes: Processes, tmp_path: Path, sent: bytes, said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        learner = start(processes, write_case(tmp_path, server.getsockname()[1], 1))
        server.settimeout(300)
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(sent)
            assert learner.wait(300) == 1
    assert said in learner.stderr.text
    assert learner.stderr.text.startswith("error: ")
    assert "Traceback" not in learner.stderr.text
