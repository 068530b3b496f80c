"""A recorded run of our own demo, with the learner that is killed and comes back, is played again."""

from __future__ import annotations

import json

import pytest

from yeto_learner import cli as learner_cli
from yeto_learner.demo import run
from yeto_learner.demo.settings import Settings
from yeto_proto.conform import cli, trace
from yeto_proto.conform.proxy import Proxy
from yeto_proto.conform.recorder import Recorder


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_demo_is_recorded_and_played_again(tmp_path, monkeypatch, capsys):
    settings = Settings().quick()
    recorder = Recorder(tmp_path)
    proxies = []
    start = run.Demo._start_syncer

    def through_the_proxy(self, crew):
        syncer = start(self, crew)
        host, _, port = self._address.rpartition(":")
        proxies.append(Proxy(recorder, ("127.0.0.1", 0), (host, int(port))))
        self._address = "{}:{}".format(*proxies[0].address)
        return syncer

    monkeypatch.setattr(run.Demo, "_start_syncer", through_the_proxy)
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
            "grace_ms": 1000,
            "grace_tau": settings.inner_steps,
            "quorum_timeout_s": 30,
        },
    )
    path = tmp_path / "demo.jsonl"
    trace.save(recorded, path)
    generations = {step["on"].partition(".")[0] for step in recorded.steps if step["do"] == "open"}
    assert len(generations) == settings.learners + 1  # the victim came twice
    capsys.readouterr()
    code = cli.main(["run", "--corpus", str(path), "--timeout", "90", "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert (code, result["verdict"]) == (0, "pass"), result["reason"]
