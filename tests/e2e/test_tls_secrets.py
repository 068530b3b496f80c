"""A key never shows: not in logs, on the tape, in the metrics, on the status page or in --print-config."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.crew import Crew
from tests.e2e.processes import Processes
from tests.e2e.raw import dial
from tests.e2e.test_learner_real_syncer import QUICK, wait_for
from tests.e2e.test_metrics import get, url_of

SECRET = "a-key-that-nobody-may-see-7f3a"
SETTINGS = ("--learners", "2", *QUICK, "--log-level", "debug")


@pytest.mark.parametrize("source", ["file", pytest.param("variable", marks=pytest.mark.full)])
def test_the_key_is_nowhere_to_be_seen(processes: Processes, tmp_path: Path, source: str) -> None:
    tape, key = tmp_path / "tape.jsonl", tmp_path / "key"
    key.write_text(SECRET + "\n")
    key.chmod(0o600)
    flags = (*SETTINGS, "--event-tape", str(tape), "--metrics-port", "0", "--status-port", "0")
    environ = {"YETO_ISLAND_HMAC_KEY": SECRET} if source == "variable" else {}
    if source == "file":
        flags = (*flags, "--island-hmac-key-file", str(key))
    syncer = processes.syncer(*flags, environ=environ)
    metrics, status = url_of(syncer, "/metrics") + "/metrics", url_of(syncer, "/")
    with Crew(hold_at=2) as crew:
        with dial(syncer.port) as sock:  # a refusal that could tell too much
            sock.sendall(bytes(200))
            answer = b""
            while data := sock.recv(4096):
                answer += data
        crew.start(f"127.0.0.1:{syncer.port}", 0, 1, hmac_key=SECRET)
        wait_for(lambda: crew.steps.get(0, 0) >= 2 or bool(crew.errors))
        seen = get(metrics) + get(status + "/") + get(status + "/state.json")
        crew.may_pass.set()
        crew.finished()
    syncer.finished()
    shown = processes.run(sys.executable, "-m", "yeto_syncer", *flags, "--print-config", environ=environ)
    assert shown.wait() == 0
    seen += syncer.stderr.text + syncer.stdout.text + tape.read_text() + shown.stdout.text + shown.stderr.text
    assert len(seen) > 10_000
    for form in (SECRET, SECRET.encode().hex()):
        assert form not in seen and form.encode() not in answer
