"""How the shell performs a `Drain`: the effects behind it wait, and are dropped when it fails."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.svd_children import numpy_python, script
from tests.unit.svd_pools import Pools, failure, pools
from tests.unit.test_syncer_shell import WAIT_S, Loop
from yeto_proto.pool import BufferPool
from yeto_syncer.core.effects import Drain
from yeto_syncer.core.events import DrainFailed, Event
from yeto_syncer.shell.counters import Counters
from yeto_syncer.shell.logs import Log
from yeto_syncer.shell.performer import Performer
from yeto_syncer.shell.storage import Storage
from yeto_syncer.shell.svd_pool import CLOSED, SvdPool

__all__ = ["pools"]  # a fixture


class Line:
    """Stands in for the engine."""

    def __init__(self) -> None:
        self.resumed: list[tuple[Event | None, bool]] = []

    def post(self, event: Event) -> None:
        raise AssertionError(event)

    def resume(self, event: Event | None, failed: bool = False) -> None:
        self.resumed.append((event, failed))


class Unused:
    """Stands in for the server, of which a drain needs nothing."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def perform(pool: SvdPool | None) -> tuple[bool, list[tuple[Event | None, bool]]]:
    """Perform a drain; whether it held the line, and what was said at its end."""
    loop, line = Loop(), Line()
    performer = Performer(
        loop,  # type: ignore[arg-type]  # all that a drain needs of an event loop
        Unused(),  # type: ignore[arg-type]
        Storage(None, None),
        None,
        Log(io.StringIO()),
        map,
        pool,
        lambda effect: None,
        BufferPool(),
        Counters(),
    )
    performer.connect(line)
    held = performer(Drain())
    if held:
        assert line.resumed == []
        loop.turn()
    assert performer.close(WAIT_S)
    return held, line.resumed


@pytest.mark.rule("iso_worker.pool.drain")
def test_a_drain_holds_the_line_and_lets_it_go_on(pools: Pools, tmp_path: Path) -> None:
    pool = pools.start(numpy_python(tmp_path))
    assert perform(pool) == (True, [(None, False)])
    assert failure(lambda: pool.flatten([])) == CLOSED


@pytest.mark.rule("iso_worker.pool.drain")
def test_a_poisoned_pool_drops_what_is_behind_the_drain(pools: Pools, tmp_path: Path) -> None:
    pool = pools.start(script(tmp_path, "probe()\nraise SystemExit(3)\n"))
    message = failure(lambda: pool.flatten([np.ones((2, 2), np.float32)]))
    assert perform(pool) == (True, [(DrainFailed(message), True)])


def test_without_a_pool_there_is_nothing_to_wait_for() -> None:
    assert perform(None) == (False, [])
