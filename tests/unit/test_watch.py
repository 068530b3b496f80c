"""What the status page warns of, and of whom it does not."""

from __future__ import annotations

from typing import Any

import pytest

from yeto_syncer.core.jobs import Link
from yeto_syncer.core.view import LearnerView, RunView
from yeto_syncer.shell.counters import Counters
from yeto_syncer.shell.metrics import Metrics
from yeto_syncer.shell.watch import QUIET_S, Depths, Watch


class NoSockets:
    """A server with nothing to do."""

    def depths(self, effects: int) -> Depths:
        return Depths(0, 0, 0, 0, 0, effects)

    def catch_up_left(self, link: Link, token: int) -> int | None:
        return None


def connection(
    learner: int, *, observer: bool = False, state: str = "ready", quiet: float = 0.0
) -> LearnerView:
    return LearnerView(learner, 1, state, observer, 0, None, quiet, None)


def run(*connections: LearnerView, observers: tuple[int, ...]) -> RunView:
    return RunView("training", 1, 10, 3, 1, (1, 0), connections, (), (), 0.0, observers)


def watch(seen: RunView, metrics: Metrics | None = None) -> Watch:
    return Watch(lambda now: seen, NoSockets(), lambda: 0, lambda: 0.0, lambda: 1000.0, metrics, durable=True)


def warned(seen: RunView) -> list[str]:
    told: list[str] = watch(seen).state()["warnings"]
    return told


def test_an_observer_may_be_silent() -> None:
    long = QUIET_S + 1
    quiet = run(connection(0, quiet=long), connection(2, observer=True, quiet=long), observers=(2,))
    assert warned(quiet) == [f"Nothing came from learner 0 for {long:.0f} s."]


@pytest.mark.parametrize("state", ["ready", "catching_up"])
def test_an_observer_moves_nothing(state: str) -> None:
    alone = run(connection(1, state="catching_up"), connection(2, observer=True, state=state), observers=(2,))
    assert warned(alone) == ["No learner is ready: nothing moves until one has caught up."]
    assert warned(run(connection(1), observers=(2,))) == []


def test_an_observer_that_left_is_not_missed() -> None:
    pytest.importorskip("prometheus_client")
    metrics = Metrics(Counters())
    looking = watch(run(connection(0), observers=(2,)), metrics)
    left: dict[str, Any] = {"event": "learner_left", "generation": 1, "reason": "disconnected"}
    for learner in (1, 2):
        looking.record({"event": "learner_joined", "id": learner, "generation": 1, "step": 0})
        looking.record(left | {"id": learner})
    [told] = looking.state()["warnings"]
    assert told.startswith("Learner 1 is away")
    scraped = metrics.exposition().decode()
    assert 'yeto_syncer_learner_connected{learner="1"} 0.0' in scraped
    assert 'yeto_syncer_learner_connected{learner="2"}' not in scraped
