"""A recorded run of our own demo, with the learner that is killed and comes back, is played again.

What a round gathers must not depend on the speed of a machine, then or now: nobody who is connected is left
out, and while a learner goes or comes the others are held up.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.processes import wait_until
from yeto_learner import cli as learner_cli
from yeto_learner.demo import run
from yeto_learner.demo.crew import Child
from yeto_learner.demo.settings import Settings
from yeto_proto.conform import cli, trace
from yeto_proto.conform.proxy import Proxy
from yeto_proto.conform.recorder import Connection, Recorder

WAIT_S = 300
PATIENT = {"grace_ms": 10_000, "grace_tau": 1_000_000, "quorum_timeout_s": 300}
"""A round waits for each member, and for a killed one the grace window long."""
QUIET_S = 25
"""So long after the last step, no grace window is open any more, and no quorum is given up yet."""


class Held(Connection):
    """A connection whose learner may be held up."""

    def feed(self, side: str, data: bytes, when: float) -> None:
        if side == "learner":
            self._recorder.pass_by(self)
        super().feed(side, data, when)


class Gate(Recorder):
    """A recorder that can hold up learners: what they send is neither recorded nor passed on meanwhile."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self._made: list[Held] = []
        self._waiting: list[Held] = []
        self._changed = threading.Condition()

    def connection(self) -> Held:
        with self._changed:
            self._made.append(Held(self, len(self._made) + 1))
            return self._made[-1]

    def pass_by(self, connection: Held) -> None:
        with self._changed:
            self._changed.wait_for(lambda: connection not in self._waiting)

    @contextmanager
    def closed(self, victim: int) -> Iterator[None]:
        """Hold up everybody who is there, but for one learner."""
        with self._changed:
            self._waiting = [each for each in self._made if not each.name.startswith(f"l{victim}g")]
        try:
            yield
        finally:
            with self._changed:
                self._waiting = []
                self._changed.notify_all()

    def settle(self) -> None:
        """Wait until the syncer has said all that it says without an answer: a catch-up in the middle of a
        broadcast could go either way when it is played again.
        """
        count = -1
        while count != len(self.steps):
            count = len(self.steps)
            time.sleep(QUIET_S)

    def of(self, learner: int, **wanted: str) -> list[str]:
        """The connections of a learner's steps that have these values."""
        with self.lock:
            steps = list(self.steps)
        return [
            step["on"]
            for step in steps
            if step["on"].startswith(f"l{learner}g") and wanted.items() <= step.items()
        ]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_demo_is_recorded_and_played_again(tmp_path, monkeypatch, capsys):
    settings = Settings().quick()
    recorder = Gate(tmp_path)
    proxies = []
    start, kill, let_go = run.Demo._start_syncer, run.Demo._kill, Child.let_go

    def through_the_proxy(self, crew):
        begin = crew.start

        def patiently(name, module, arguments, on_line):
            flags = list(arguments)
            for setting, value in PATIENT.items():
                flags[flags.index("--" + setting.replace("_", "-")) + 1] = str(value)
            return begin(name, module, flags, on_line)

        with monkeypatch.context() as patch:
            patch.setattr(crew, "start", patiently)
            syncer = start(self, crew)
        host, _, port = self._address.rpartition(":")
        proxies.append(Proxy(recorder, ("127.0.0.1", 0), (host, int(port))))
        self._address = "{}:{}".format(*proxies[0].address)
        return syncer

    def killed(self, victim):
        with recorder.closed(victim):
            kill(self, victim)
            opened = recorder.of(victim, do="open")
            wait_until(
                lambda: len(recorder.of(victim, do="end", by="syncer")) == len(opened), "the end", WAIT_S
            )

    def returning(child):
        victim = settings.victim
        before = set(recorder.of(victim, do="open"))
        with recorder.closed(victim):
            recorder.settle()
            let_go(child)
            # The first frame tells that it has been admitted.
            wait_until(
                lambda: bool({*recorder.of(victim, do="frame", **{"from": "syncer"})} - before),
                "the learner that comes back",
                WAIT_S,
            )

    monkeypatch.setattr(run.Demo, "_start_syncer", through_the_proxy)
    monkeypatch.setattr(run.Demo, "_kill", killed)
    monkeypatch.setattr(Child, "let_go", returning)
    try:
        assert learner_cli.main(["demo", "--quick", "--output", str(tmp_path / "demo")]) == 0
    finally:
        for proxy in proxies:
            proxy.close()
    recorded = recorder.trace(
        "demo",
        {
            "learners": settings.learners,
            "quorum": settings.quorum,
            "total_steps": settings.rounds,
            "sync_interval_steps": settings.inner_steps,
            "outer_lr": settings.outer_rate,
            "outer_momentum": settings.outer_momentum,
            **PATIENT,
        },
    )
    path = tmp_path / "demo.jsonl"
    trace.save(recorded, path)
    generations = {step["on"].partition(".")[0] for step in recorded.steps if step["do"] == "open"}
    assert len(generations) == settings.learners + 1  # the victim came twice
    capsys.readouterr()
    code = cli.main(["run", "--corpus", str(path), "--timeout", str(WAIT_S), "--json"])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["cut"] for each in results] == ["coalesced", "recorded"]
    assert (code, {each["verdict"] for each in results}) == (0, {"pass"}), [
        each["reason"] for each in results
    ]
