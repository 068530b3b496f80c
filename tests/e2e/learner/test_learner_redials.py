"""`SyncerClient`: lost connections, and what is left behind."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from functools import partial
from itertools import islice

import pytest

from tests.e2e.learner.rig import SMALL, client_descriptors, failure, until, values, wait_until
from tests.e2e.scripted_syncer import WAIT, ScriptedSyncer
from yeto_learner import SyncerClient, connection
from yeto_learner.core.redial import redial_waits
from yeto_proto._generated import messages as wire
from yeto_proto.layout import build_layout


@pytest.mark.rule("learner.generation.fresh")
def test_a_redial_has_a_new_generation_and_drops_what_belonged_to_the_old_one(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make()
    numel = SMALL.fragments[0].numel
    generations = set()
    for round_number in range(5):
        peer = syncer.next_peer()
        generations.add(peer.hello.connection_generation)
        peer.broadcast(0, round_number, values(numel, round_number))
        peer.send(wire.PullReq(0, round_number + 1, 1))
        until(client, lambda: bool(client._link._pulls))
        until(client, partial(holds_updates, client, round_number + 1))
        peer.reset() if round_number % 2 else peer.close()
        until(client, partial(reached_epoch, client, 2 * round_number + 3))
        assert client.drain_pulls() == []
    assert len(generations) == 5
    assert 0 not in generations
    flags = [(update.version, update.catch_up) for update in client.drain_updates()]
    assert flags == [(0, False), (1, True), (2, True), (3, True), (4, True)]
    client.check_health()


def holds_updates(client: SyncerClient, count: int) -> bool:
    return len(client._link._updates) == count


def reached_epoch(client: SyncerClient, epoch: int) -> bool:
    return client.connection_epoch == epoch


def test_one_lost_data_socket_ends_the_whole_group(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    make(num_streams=3)
    first = syncer.next_peer()
    first.close_stream(2)
    second = syncer.next_peer()
    assert first.ended.wait(WAIT)
    assert second.complete


def noting(waits: list[float]) -> Callable[[float], bool]:
    """A wait that takes no time."""

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    return wait


def test_waits_between_tries_follow_the_schedule(
    monkeypatch: pytest.MonkeyPatch, syncer: ScriptedSyncer
) -> None:

    monkeypatch.setattr(connection, "redial_waits", redial_waits)
    waits: list[float] = []
    client = SyncerClient(syncer.address, 0, SMALL, num_streams=0, max_reconnects=8)
    with client:
        peer = syncer.next_peer()
        monkeypatch.setattr(client._connection.closed, "wait", noting(waits))
        syncer.stop_listening()
        peer.close()
        error = failure(client)
    assert "all 8 reconnects are used" in str(error)
    assert waits == list(islice(redial_waits(), 8))


def test_no_reconnects_means_the_first_loss_is_final(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient]
) -> None:
    client = make(max_reconnects=0)
    syncer.next_peer().close()
    assert "reconnects are used" in str(failure(client))
    assert syncer.accepted == 3


@pytest.mark.parametrize("redials", [50, pytest.param(500, marks=pytest.mark.full)])
def test_redials_leave_threads_and_descriptors_where_they_were(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient], redials: int
) -> None:
    def resources() -> list[str]:
        return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("yeto-"))

    make()
    peer = syncer.next_peer()
    before = resources()
    for number in range(redials):
        peer.reset() if number % 2 else peer.close()
        peer = syncer.next_peer()
    wait_until(lambda: resources() == before)
    # The scripted syncer keeps its sockets until it is closed, so only the client's own are counted.
    wait_until(lambda: client_descriptors(syncer.port) == 3)


def test_closing_joins_everything(syncer: ScriptedSyncer) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    client = SyncerClient(syncer.address, 0, build_layout({"w": 9_000_000}, 1), "f32", 2)
    client.start()
    peer = syncer.next_peer()
    peer.send_chunked(wire.BcastFragment(0, 0, values(9_000_000)))
    until(client, lambda: client.has_updates)
    client.close()
    client.close()
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread.ident not in before and thread.name.startswith("yeto-")
    ]
    assert left == []
    with pytest.raises(RuntimeError, match="closed"):
        client.wait_for(lambda: False, 1)


def test_an_outage_takes_few_lines_of_the_log(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient], caplog: pytest.LogCaptureFixture
) -> None:
    """However long it lasts: who ended it and for how long it is dialled, and the first try that failed."""
    caplog.set_level(logging.DEBUG, logger="yeto_learner")
    client = make(max_reconnects=4)
    first = syncer.next_peer()
    syncer.stop_listening()
    first.close()
    assert "all 4 reconnects are used" in str(failure(client))
    told = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert told[0] == (
        "WARNING",
        f"the syncer at {syncer.address} closed the connection; it is dialled again at most 4 times more",
    )
    assert [level for level, text in told if "no syncer at" in text] == ["INFO", *["DEBUG"] * 3]
    assert len(told) == 5


def test_a_broken_connection_is_told_with_its_cause(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="yeto_learner")
    make()
    syncer.next_peer().reset()
    syncer.next_peer()
    wait_until(lambda: len(caplog.records) >= 2)
    first, second = (each.getMessage() for each in caplog.records)
    assert first.startswith(f"the connection to the syncer at {syncer.address} is lost (")
    assert first.endswith("); it is dialled again until it is back")
    assert re.fullmatch(rf"connected again to {syncer.address} after \d+ s", second)
