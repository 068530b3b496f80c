"""`SecondInit` with a sender that is behind: it never waits, and sends each anchor once."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from yeto_learner import second_init as second_init_module
from yeto_learner.core.boundary import Boundary
from yeto_learner.core.modes import InstallMode
from yeto_learner.core.records import BcastFragment, PullRequest
from yeto_learner.core.values import F32
from yeto_learner.errors import NonFiniteParameterError
from yeto_learner.second_init import SECOND_INIT_S, SecondInit

COUNT = 5


@dataclass
class Client:
    """A redialled connection on which nothing has come."""

    connected: bool = True
    connection_epoch: int = 3
    catching_up: frozenset[int] = frozenset(range(COUNT))
    bytes_received: int = 0


@dataclass
class Parts:
    """Values, buffers and the exporter: two buffers, which come back when the test says so."""

    free: int = 2
    sent: list[tuple[int, float]] = field(default_factory=list)
    num_fragments: int = COUNT

    def numel(self, fragment_id: int) -> int:
        return 4

    def read_anchor(self, fragment_id: int, out: F32) -> None:
        out[:] = fragment_id

    def read_initial(self, fragment_id: int, out: F32) -> None:
        out[:] = -1 - fragment_id

    def give(self, buffer: F32) -> None:
        self.free += 1

    def take(self, numel: int) -> F32 | None:
        if not self.free:
            return None
        self.free -= 1
        return np.empty(numel, np.float32)

    def submit_init(self, fragment_id: int, values: F32) -> None:
        self.sent.append((fragment_id, float(values[0])))


def anchored() -> Boundary:
    boundary = Boundary(COUNT)
    for number in range(COUNT):
        boundary.installed(BcastFragment(number, 1, b"", 0.0, b"x", False, 1, 7), InstallMode.OVERWRITE)
    return boundary


def second_init(
    client: Client, boundary: Boundary, parts: Parts, patience: float = 0.0, *, rewinds: bool = True
) -> SecondInit:
    given = cast(Any, parts)
    return SecondInit(cast(Any, client), boundary, given, given, given, patience, rewinds=rewinds)


def test_what_the_sender_has_no_room_for_follows_at_later_boundaries() -> None:
    client, parts = Client(), Parts()
    looking = second_init(client, anchored(), parts)
    for back, sent in ((0, 2), (0, 2), (2, 4), (1, 5), (2, 5)):
        parts.free += back
        looking.look()
        assert parts.sent == [(number, float(number)) for number in range(sent)]


@pytest.mark.parametrize("what", ["a broadcast", "a pull", "no connection", "nothing may be rewound"])
def test_when_nothing_is_sent(what: str) -> None:
    client, parts, boundary = Client(), Parts(), anchored()
    match what:
        case "a broadcast":
            client.catching_up = frozenset(range(1, COUNT))
        case "a pull":
            boundary.add_pulls([PullRequest(0, 1, 1, 0.0, 1, 7)])
        case "no connection":
            client.connected = False
    second_init(client, boundary, parts, rewinds=what != "nothing may be rewound").look()
    assert parts.sent == []


@pytest.mark.parametrize("rewinds", [True, False])
def test_what_no_broadcast_has_come_of_is_sent_as_at_the_start(rewinds: bool) -> None:
    parts = Parts(free=COUNT)
    second_init(Client(), Boundary(COUNT), parts, rewinds=rewinds).look()
    assert parts.sent == [(number, float(-1 - number)) for number in range(COUNT)]


def test_anchors_are_sent_where_there_are_some() -> None:
    parts, boundary = Parts(free=COUNT), Boundary(COUNT)
    boundary.installed(BcastFragment(1, 1, b"", 0.0, b"x", False, 1, 7), InstallMode.OVERWRITE)
    second_init(Client(), boundary, parts).look()
    assert parts.sent == [(0, -1.0), (1, 1.0), (2, -3.0), (3, -4.0), (4, -5.0)]


def test_a_value_that_cannot_be_sent_gives_its_buffer_back() -> None:
    class Broken(Parts):
        def read_initial(self, fragment_id: int, out: F32) -> None:
            raise NonFiniteParameterError("w", "a value")

    parts = Broken()
    with pytest.raises(NonFiniteParameterError):
        second_init(Client(), Boundary(COUNT), parts).look()
    assert (parts.sent, parts.free) == ([], 2)


def test_a_broadcast_between_two_boundaries_ends_it() -> None:
    client, parts = Client(), Parts()
    looking = second_init(client, anchored(), parts)
    looking.look()
    client.catching_up = frozenset(range(1, COUNT))
    parts.free = COUNT
    looking.look()
    assert [number for number, _ in parts.sent] == [0, 1]


def test_a_new_connection_gets_all_of_them() -> None:
    client, parts = Client(), Parts()
    looking = second_init(client, anchored(), parts)
    looking.look()
    client.connection_epoch, parts.free = 5, COUNT
    looking.look()
    assert [number for number, _ in parts.sent] == [0, 1, *range(COUNT)]


def test_a_broadcast_that_is_on_its_way_ends_the_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(second_init_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    client, parts = Client(), Parts(free=COUNT)
    looking = second_init(client, anchored(), parts, patience=60.0)
    for _ in range(10):  # 300 s of a slow catch-up
        looking.look()
        now[0] += 30.0
        client.bytes_received += 1000
    assert parts.sent == []
    looking.look()
    now[0] += 60.0
    looking.look()
    assert len(parts.sent) == COUNT


@pytest.mark.rule("learner.init.again")
def test_the_patience_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(second_init_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    parts = Parts(free=COUNT)
    looking = second_init(Client(), anchored(), parts, patience=1800.0)
    for at, sent in ((0.0, 0), (SECOND_INIT_S - 0.1, 0), (SECOND_INIT_S, COUNT)):
        now[0] = 1000.0 + at
        looking.look()
        assert len(parts.sent) == sent
