"""`yeto-learner doctor` in front of a syncer with TLS."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.authority import Authority
from tests.e2e.processes import Processes, Running
from tests.e2e.test_doctor import ADMITTED_S, DOCTOR, REFUSED_S
from yeto_proto.layout import build_layout


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    path = tmp_path / "layout.json"
    path.write_text(build_layout({"w": 64}, 1).to_json())
    return path


def doctor(processes: Processes, port: int, *flags: str | Path, silence: str = REFUSED_S) -> Running:
    command = (sys.executable, "-c", DOCTOR, silence, f"127.0.0.1:{port}")
    return processes.run(*command, *map(str, flags))


def lines(running: Running, code: int) -> dict[str, str]:
    assert running.wait() == code, running.stdout.text + running.stderr.text
    return {line.split()[0]: line for line in running.stdout.text.splitlines()}


def test_what_can_be_wrong_with_tls(
    processes: Processes, authority: Authority, layout: Path, tmp_path: Path
) -> None:
    syncer = processes.syncer("--learners", "2", "--total-steps", "1", *authority.flags(mutual=True))
    mine, theirs = authority.issue(("yeto:learner:0",)), Authority(tmp_path / "other")
    me = ("--layout", layout, "--learner-id", "0")
    shown = ("--tls-ca", authority.ca, "--tls-cert", mine)
    good = lines(doctor(processes, syncer.port, *shown, *me, silence=ADMITTED_S), 0)
    assert "TLSv1.3, certificate valid until" in good["TLS"] and "learner 0 is admitted" in good["session"]
    none = lines(doctor(processes, syncer.port, "--tls-ca", authority.ca), 1)
    assert "certificate required" in none["TLS"] or "FAIL" in none["TLS"]
    wrong = lines(doctor(processes, syncer.port, "--tls-ca", theirs.ca), 1)
    assert "the syncer's certificate is not accepted" in wrong["TLS"]
    as_other = ("--layout", layout, "--learner-id", "1")
    named = lines(doctor(processes, syncer.port, *shown, *as_other), 1)
    assert "ok" in named["MAC"] and "certificate does not name learner 1" in named["learner"]
    plain = lines(doctor(processes, syncer.port), 1)
    assert "may speak TLS (give --tls-ca FILE)" in plain["protocol"]
    syncer.kill()


def test_a_syncer_without_tls(processes: Processes, authority: Authority) -> None:
    syncer = processes.syncer("--learners", "1", "--total-steps", "1")
    found = lines(doctor(processes, syncer.port, "--tls-ca", authority.ca), 1)
    assert "does the syncer run with --tls-cert?" in found["TLS"]
    syncer.kill()


def test_files_that_cannot_be_used(processes: Processes, authority: Authority) -> None:
    alone = doctor(processes, 1, "--tls-cert", authority.certificate)
    assert alone.wait() == 1
    assert (
        alone.stderr.text
        == "error: --tls-cert and --tls-key need --tls-ca; command line; give the CA of the syncer"
    )
    missing = doctor(processes, 1, "--tls-ca", "none.pem")
    assert missing.wait() == 1
    assert missing.stderr.text.startswith("error: cannot use the TLS files: No such file or directory; ")
