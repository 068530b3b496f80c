"""Every flag of `yeto-syncer` with what cannot be used: one line that names it, before anything listens.

A flag that is not written as its kind asks is a mistake of syntax (exit 2); the same text in the environment,
and a value that breaks a rule, is a bad setting (exit 1).
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from yeto_syncer import cli
from yeto_syncer.shell import start
from yeto_syncer.shell.settings import SETTINGS, SWITCH, Setting

RUN = {"--learners": "2", "--total-steps": "8", "--port": "0"}
CARRY = ("--fold", "on-arrival", "--late-carry")
TAKEN, FOLDER = "{taken}", "{folder}"
MISSING = "no/such/folder/file"

RULES: dict[str, tuple[str, ...]] = {
    "learners": ("--learners", "0"),
    "total_steps": (),
    "min_start_learners": ("--min-start-learners", "3"),
    "observers": ("--observers", "2"),
    "learner_budget_steps": ("--learner-budget-steps", "0", "--checkpoint-path", "x"),
    "shutdown_timeout_s": ("--shutdown-timeout-s", "-1"),
    "preset": (),
    "quorum": ("--quorum", "3"),
    "quorum_timeout_s": ("--quorum-timeout-s", "0"),
    "grace_ms": (),
    "grace_gamma": ("--grace-gamma", "nan"),
    "grace_tau": ("--grace-tau", "inf"),
    "pipeline": (),
    "min_round_interval_ms": (),
    "sync_interval_steps": ("--sync-interval-steps", "nan"),
    "max_base_lag": (),
    "island_lease_s": ("--island-lease-s", "-1"),
    "final_ack_timeout_s": (),
    "fold": ("--fold", "early"),
    "late_carry": ("--late-carry",),
    "max_carry_lag": (*CARRY, "--max-carry-lag", "0"),
    "carry_decay": (*CARRY, "--carry-decay", "0"),
    "carry_answers_round": ("--carry-answers-round",),
    "quorum_capacity": ("--quorum-capacity", "0"),
    "soft_deadline_s": ("--quorum-capacity", "0.5", "--soft-deadline-s", "0"),
    "policy_sweep_fragments": ("--policy-sweep-fragments", "4"),
    "outer_lr": ("--outer-lr", "nan"),
    "outer_momentum": ("--outer-momentum", "inf"),
    "delta_correction": ("--delta-correction", "magic"),
    "learner_weight": ("--learner-weight", "magic"),
    "iso_backend": ("--iso-backend", "magic"),
    "iso_worker_python": ("--iso-backend", "torch-svd", "--iso-worker-python", MISSING),
    "iso_worker_device": ("--iso-worker-device", ""),
    "iso_worker_devices": ("--iso-worker-devices", "cpu,cpu"),
    "iso_worker_queue_capacity": ("--iso-worker-queue-capacity", "0"),
    "merge_threads": ("--merge-threads", "0"),
    "checkpoint_path": ("--checkpoint-path", FOLDER),
    "checkpoint_every": (),
    "resume": ("--resume",),
    "resume_if_exists": ("--resume-if-exists",),
    "mark_final_checkpoint": ("--mark-final-checkpoint",),
    "checkpoint_on_start": ("--checkpoint-on-start",),
    "background_checkpoint": ("--background-checkpoint",),
    "final_state": ("--final-state", FOLDER),
    "event_tape": ("--event-tape", FOLDER),
    "host": ("--host", "0.0.0.0"),
    "port": ("--port", TAKEN),
    "port_file": ("--port-file", FOLDER),
    "handshake_timeout_s": ("--handshake-timeout-s", "0"),
    "max_pending_connections": ("--max-pending-connections", "0"),
    "write_timeout_s": ("--write-timeout-s", "0"),
    "allow_unauthenticated": (),
    "island_hmac_key_file": ("--island-hmac-key-file", MISSING),
    "tls_cert": ("--tls-cert", MISSING, "--tls-key", MISSING),
    "tls_key": ("--tls-key", MISSING),
    "tls_client_ca": ("--tls-client-ca", MISSING),
    "max_failed_handshakes": (),
    "require_profile_binding": (),
    "log_format": (),
    "log_level": (),
    "metrics_port": ("--metrics-port", TAKEN),
    "metrics_host": ("--metrics-port", "0", "--metrics-host", "no.such.host.invalid"),
    "status_port": ("--status-port", TAKEN),
    "status_host": ("--status-port", "0", "--status-host", "no.such.host.invalid"),
}
"""Flags that break a rule of each setting; none where everything that its kind takes is allowed."""

NO_VALUE = {
    "U16": "65536",
    "U32": "-1",
    "U64": "1.5",
    "NUMBER": "much",
    "ID,ID,...": "1,x",
    "SWITCH": "maybe",
    "PATH": "",
    "TEXT": "",
}
"""Text that is no value of a kind; anything else takes one of a few names."""

JUDGED_LATER = (
    "fold",
    "delta_correction",
    "learner_weight",
    "iso_backend",
    "iso_worker_device",
    "iso_worker_devices",
)
"""Settings that take any text at first: a wrong one breaks a rule instead."""


@pytest.fixture(autouse=True)
def unheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing may listen, and the signals of this process are given back."""

    def listen(bound: socket.socket) -> None:
        raise AssertionError("it listens")

    monkeypatch.setattr(start, "_listen", listen)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(*flags: str, environ: dict[str, str] | None = None) -> int:
    """Exit code of the command."""
    given = {flag: value for flag, value in RUN.items() if flag not in flags}
    try:
        return cli.main([*(each for pair in given.items() for each in pair), *flags], environ or {})
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error, after the log lines if there are any."""
    out, err = capsys.readouterr()
    assert out == ""
    line = err.splitlines()[-1]
    assert line.startswith("error: ") and line.count("; ") >= 2, err
    return line


def test_every_setting_is_here() -> None:
    assert list(RULES) == [setting.name for setting in SETTINGS]


@pytest.mark.rule("syncer.exit.codes")
@pytest.mark.parametrize(
    "setting", [each for each in SETTINGS if RULES[each.name]], ids=lambda each: each.name
)
def test_a_value_that_breaks_a_rule(
    setting: Setting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        known = {TAKEN: taken, FOLDER: str(tmp_path)}
        code = run(*(known.get(each, each) for each in RULES[setting.name]))
    line = complaint(capsys)
    assert code == 1
    assert setting.flag in line, line


WRITTEN = [setting for setting in SETTINGS if setting.name not in JUDGED_LATER]


@pytest.mark.rule("syncer.exit.codes")
@pytest.mark.parametrize("setting", WRITTEN, ids=lambda each: each.name)
def test_a_text_that_is_no_value_of_the_flag(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    text = NO_VALUE.get(setting.kind.name, "magic")
    code = run(f"{setting.flag}={text}") if setting.kind is SWITCH else run(setting.flag, text)
    assert (code, setting.flag in complaint(capsys)) == (2, True)


@pytest.mark.parametrize(
    "setting", [each for each in WRITTEN if NO_VALUE.get(each.kind.name) != ""], ids=lambda each: each.name
)
def test_a_text_that_is_no_value_of_the_variable(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    text = NO_VALUE.get(setting.kind.name, "magic")
    flags = [part for flag, value in RUN.items() if flag != setting.flag for part in (flag, value)]
    assert cli.main(flags, {setting.env: text}) == 1
    assert setting.env in complaint(capsys)
