"""`yeto-learner doctor` against real syncers, and against things that are none."""

from __future__ import annotations

import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Processes, Running, Syncer
from yeto_proto.layout import build_layout

LAYOUT = build_layout({"layers.0.weight": (4, 4), "layers.1.weight": (4, 4)}, 2)
OTHER = build_layout({"layers.0.weight": (4, 4), "layers.1.bias": (4, 4)}, 2)
CERTIFICATE = Path(__file__).parent / "learner" / "tls_cert.pem"
KEY = {"YETO_ISLAND_HMAC_KEY": "a secret of the run"}


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    path = tmp_path / "layout.json"
    path.write_text(LAYOUT.to_json())
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.json"
    path.write_text(OTHER.to_json())
    return path


DOCTOR = """
import sys
from yeto_learner import cli, doctor
doctor.CONNECT_S = doctor.ANSWER_S = 90.0
doctor.SILENCE_S = float(sys.argv[1])
sys.exit(cli.main(["doctor", *sys.argv[2:]]))
"""
"""The command with other times: silence counts as acceptance, so a refusal that a busy machine holds up must
be waited for, and where none can come there is no need to wait for long."""

REFUSED_S, ADMITTED_S = "90", "0.3"


def examine(
    processes: Processes, port: int, *flags: str, silence: str = REFUSED_S, **environ: str
) -> Running:
    command = (sys.executable, "-c", DOCTOR, silence, f"127.0.0.1:{port}", *flags)
    return processes.run(*command, environ=environ)


@pytest.fixture
def start(processes: Processes) -> Iterator[Callable[..., Syncer]]:
    """Starts a syncer for the time of the test."""
    started: list[Syncer] = []

    def start(*flags: str, **environ: str) -> Syncer:
        syncer = processes.syncer("--learners", "2", "--total-steps", "1", *flags, environ=environ)
        started.append(syncer)
        return syncer

    yield start
    for syncer in started:
        if syncer.process.poll() is None:
            syncer.signal(signal.SIGTERM)
            syncer.finished(0)


def verdicts(running: Running, code: int) -> dict[str, str]:
    """Waits for the end and returns what was said about each subject."""
    assert running.wait() == code, running.stderr.text + running.stdout.text
    assert running.stderr.text == ""
    return {line.split()[0]: line.split()[1] for line in running.stdout.lines}


def test_a_healthy_syncer_without_a_layout(start: Callable[..., Syncer], processes: Processes) -> None:
    syncer = start()
    command = (sys.executable, "-m", "yeto_learner", "doctor", f"127.0.0.1:{syncer.port}")
    found = verdicts(processes.run(*command), 0)
    assert found == {"DNS": "ok", "TCP": "ok", "MAC": "ok", "version": "ok", "session": "?"}
    syncer.kill()  # all that it said is here now
    assert "learner connected" not in syncer.stderr.text


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_look_and_health_checks_are_no_warning(
    start: Callable[..., Syncer], processes: Processes, tls: bool
) -> None:
    """A TCP connection that closes without a byte is what supervisors do all day."""
    flags = ("--tls-cert", str(CERTIFICATE), "--tls-key", str(CERTIFICATE.with_name("tls_key.pem")))
    syncer = start(*(flags if tls else ()))
    for ending in range(6):
        check = socket.create_connection(("127.0.0.1", syncer.port))
        if ending % 2:  # with a reset, as some of them do to keep no socket in TIME_WAIT
            check.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        check.close()
    shown = ("--tls-ca", str(CERTIFICATE)) if tls else ()
    verdicts(examine(processes, syncer.port, *shown), 0)
    line = syncer.stderr.wait_for("probe answered").string
    assert " info " in line and "outside configured range" in line
    assert "warning" not in syncer.stderr.text
    with socket.create_connection(("127.0.0.1", syncer.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        syncer.stderr.wait_for(" warning connection refused")


def test_a_look_leaves_the_session_to_the_learners(
    start: Callable[..., Syncer], processes: Processes, layout: Path, other: Path
) -> None:
    syncer = start()
    verdicts(examine(processes, syncer.port), 0)
    # The first learner may have any layout; after it the others must have the same.
    admitted = ("--layout", str(other), "--learner-id")
    good = verdicts(examine(processes, syncer.port, *admitted, "0", silence=ADMITTED_S), 0)
    assert good["session"] == "ok"
    syncer.stderr.wait_for("learner connected learner=0")
    again = examine(processes, syncer.port, *admitted, "1", silence=ADMITTED_S)
    assert verdicts(again, 0)["session"] == "ok"
    syncer.stderr.wait_for("learner left learner=1")
    different = examine(processes, syncer.port, "--layout", str(layout), "--learner-id", "1")
    assert verdicts(different, 1)["session"] == "FAIL"
    assert "session mismatch" in different.stdout.text
    contract = ("--contract", "another experiment")
    another = examine(processes, syncer.port, "--layout", str(other), "--learner-id", "1", *contract)
    assert verdicts(another, 1)["session"] == "FAIL"


def test_a_learner_id_that_the_run_does_not_have(
    start: Callable[..., Syncer], processes: Processes, layout: Path
) -> None:
    syncer = start()
    found = verdicts(examine(processes, syncer.port, "--layout", str(layout), "--learner-id", "2"), 1)
    assert found["learner"] == "FAIL"


def test_a_profile_that_differs_or_is_missing(
    start: Callable[..., Syncer], processes: Processes, layout: Path
) -> None:
    syncer = start("--require-profile-binding")
    flags = ("--layout", str(layout), "--learner-id", "0")
    assert verdicts(examine(processes, syncer.port, *flags), 1)["profile"] == "FAIL"
    wrong = examine(processes, syncer.port, *flags, "--profile", "ab" * 32)
    assert verdicts(wrong, 1)["profile"] == "FAIL"


def test_a_syncer_with_a_key(start: Callable[..., Syncer], processes: Processes, layout: Path) -> None:
    syncer = start(**KEY)
    without = examine(processes, syncer.port)
    assert verdicts(without, 1)["MAC"] == "FAIL"
    assert "a key is needed" in without.stdout.text
    wrong = examine(processes, syncer.port, YETO_ISLAND_HMAC_KEY="something else")
    assert verdicts(wrong, 1)["MAC"] == "FAIL"
    mine = ("--layout", str(layout), "--learner-id", "1")
    right = examine(processes, syncer.port, *mine, silence=ADMITTED_S, **KEY)
    assert set(verdicts(right, 0).values()) == {"ok"}


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_on_the_port(answer: bytes, processes: Processes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):  # the look at TCP, then the probe
                connection, _ = server.accept()
                with connection:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        running = examine(processes, server.getsockname()[1])
        found = verdicts(running, 1)
        thread.join()
    assert found["protocol"] == "FAIL"
    assert "or belong to something else" in running.stdout.text


@pytest.mark.parametrize("address", ["a..b:29400", f"{'x' * 64}.example:29400"])
def test_a_mistyped_name_is_one_line(processes: Processes, address: str) -> None:
    found = processes.run(sys.executable, "-m", "yeto_learner", "doctor", address)
    assert found.wait() == 1
    assert "cannot be the name of a host" in found.stderr.text
    assert len(found.stderr.text.splitlines()) == 1
    assert "Traceback" not in found.stderr.text
