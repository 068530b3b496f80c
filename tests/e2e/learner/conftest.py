"""Fixtures of the learner's tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.learner.rig import SMALL
from tests.e2e.scripted_syncer import WAIT, ScriptedSyncer
from yeto_learner import SyncerClient, connection
from yeto_proto.layout import Layout


@pytest.fixture(autouse=True)
def quick_redials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of other things should not wait a second for each redial."""
    monkeypatch.setattr(connection, "redial_waits", lambda: iter(lambda: 0.01, None))


@pytest.fixture(autouse=True)
def own_logger() -> Iterator[None]:
    """A learner may give its package's logger a handler; no test should see another's."""
    package = logging.getLogger("yeto_learner")
    kept = package.handlers[:], package.level, package.propagate
    package.handlers, package.propagate = [], True
    package.setLevel(logging.INFO)  # pytest's root handler prints, so the package needs none of its own
    yield
    package.handlers, package.level, package.propagate = kept


@pytest.fixture
def syncer() -> Iterator[ScriptedSyncer]:
    with ScriptedSyncer() as scripted:
        yield scripted


@pytest.fixture
def make(syncer: ScriptedSyncer) -> Iterator[Callable[..., SyncerClient]]:
    clients: list[SyncerClient] = []

    def build(layout: Layout = SMALL, *, start: bool = True, **options: object) -> SyncerClient:
        arguments: dict[str, object] = {"dtype": "f32", "num_streams": 2, "connect_timeout": WAIT, **options}
        client = SyncerClient(syncer.address, 0, layout, **arguments)  # type: ignore[arg-type]
        clients.append(client)
        if start:
            client.start()
        return client

    yield build
    for client in clients:
        client.close()
