"""The bounded pool of SVD workers: deadlines, drain, and an end that leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.e2e.processes import alive, wait_until
from tests.unit.svd_children import gate, numpy_python, script
from tests.unit.svd_pools import GATED, NAME, SOON, WAIT_S, Call, Pools, failure, matrix, pools
from yeto_syncer.core.jobs import F32
from yeto_syncer.shell.svd_child import Child, Deadline
from yeto_syncer.shell.svd_pool import CLOSED, BadTimeoutError, SvdPoolError, Timeouts

__all__ = ["pools"]  # a fixture


# -- deadlines -----------------------------------------------------------------------------------------------


@pytest.mark.rule("iso_worker.pool.deadlines")
@pytest.mark.rule("iso_worker.pool.kill_first")
@pytest.mark.parametrize("body", ["hang()", "head(); hang()", "request, _ = read(); hang()"])
def test_a_late_answer_kills_the_worker_before_anybody_hears_of_it(
    pools: Pools, tmp_path: Path, body: str
) -> None:
    pool = pools.start(script(tmp_path, f"probe()\n{body}\n"), request=SOON)
    process = psutil.Process(pool.pids[0])
    large = matrix(1000, 1000)
    with pytest.raises(SvdPoolError, match=f"^{NAME}: gave no answer to a matrix of 1000 x 1000 within"):
        pool.flatten([large])
    assert not alive(process)


@pytest.mark.rule("iso_worker.pool.deadlines")
def test_the_deadline_counts_from_the_submission(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second matrix still waits for its admission when its time has passed."""
    pool = pools.start(numpy_python(tmp_path), capacity=1)
    real = Child.flatten
    late = SimpleNamespace(monotonic=lambda: time.monotonic() + WAIT_S)

    def slow(child: Child, matrix: F32, deadline: Deadline) -> None:
        if matrix.shape == (1, 1):
            wait_until(lambda: pool.load == (1, 0, 1), "the second to wait")
        real(child, matrix, deadline)
        monkeypatch.setattr("yeto_syncer.shell.svd_child.time", late)

    monkeypatch.setattr(Child, "flatten", slow)
    message = failure(lambda: pool.flatten([matrix(1, 1), matrix(1, 2)]))
    assert message == f"SVD worker 0 (cpu): gave no answer to a matrix of 1 x 2 within {WAIT_S:g} s"


def test_a_job_whose_time_is_over_when_its_turn_comes_fails(pools: Pools, tmp_path: Path) -> None:
    pool = pools.start(numpy_python(tmp_path), request=1e-9)
    with pytest.raises(SvdPoolError, match=r"gave no answer to a matrix of 2 x 3 within 1e-09 s"):
        pool.flatten([matrix()])


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "soon", "00", " 5", "5\n", "٣"])
def test_times_in_the_environment(text: str) -> None:
    assert Timeouts.of({}) == Timeouts(300.0, 3540.0, 3600.0)
    given = {
        "YETO_ISO_WORKER_STARTUP_TIMEOUT_S": "1",
        "YETO_ISO_WORKER_REQUEST_TIMEOUT_S": "020",
        "YETO_ISO_WORKER_DRAIN_TIMEOUT_S": "300",
    }
    assert Timeouts.of(given) == Timeouts(1.0, 20.0, 300.0)
    for name in given:
        if text:
            with pytest.raises(BadTimeoutError, match=name) as raised:
                Timeouts.of({**given, name: text})
            assert raised.value.name == name
        else:
            assert Timeouts.of({name: text}) == Timeouts()


# -- drain and end -------------------------------------------------------------------------------------------


@pytest.mark.rule("iso_worker.pool.drain")
def test_a_drain_waits_for_what_was_submitted_and_then_nothing_is_taken(pools: Pools, tmp_path: Path) -> None:
    door = gate(tmp_path)
    body = GATED.format(log=str(tmp_path / "log"), gate=str(door))
    pool = pools.start(script(tmp_path, body), capacity=1)
    calls = [Call(pool, matrix(1, 1), matrix(1, 2)), Call(pool, matrix(1, 3))]
    wait_until(lambda: pool.load == (1, 0, 2), "one running, two waiting for their admission")
    ended = threading.Event()

    def drain() -> None:
        pool.drain()
        ended.set()

    draining = threading.Thread(target=drain, daemon=True)
    draining.start()

    def refused() -> bool:
        try:
            pool.flatten([])
        except SvdPoolError as error:
            return str(error) == CLOSED
        return False

    wait_until(refused, "the end of admission")
    for left in (2, 1, 0):
        assert not ended.is_set()
        door.open("wb").close()
        wait_until(lambda left=left: sum(pool.load) == left, f"{left} matrices left")
    assert ended.wait(WAIT_S)
    draining.join(WAIT_S)
    assert [call.ended() for call in calls] == [None, None]
    pool.drain()
    assert failure(lambda: pool.flatten([matrix()])) == CLOSED


@pytest.mark.rule("iso_worker.pool.deadlines")
@pytest.mark.rule("iso_worker.pool.drain")
def test_a_late_drain_kills_and_poisons(pools: Pools, tmp_path: Path) -> None:
    pool = pools.start(script(tmp_path, "probe()\nhang()\n"), drain=SOON)
    process = psutil.Process(pool.pids[0])
    call = Call(pool, matrix())
    wait_until(lambda: pool.load == (1, 0, 0), "the matrix to run")
    message = f"the SVD pool was not drained within {SOON:g} s"
    assert failure(pool.drain) == message
    wait_until(lambda: not alive(process), "the end of the worker")
    assert call.ended() == message
    assert failure(pool.drain) == message


@pytest.mark.rule("iso_worker.pool.children")
def test_closing_ends_a_worker_that_hangs_and_whoever_waits_for_it(pools: Pools, tmp_path: Path) -> None:
    pool = pools.start(script(tmp_path, "probe()\nhang()\n"))
    call = Call(pool, matrix())
    wait_until(lambda: pool.load == (1, 0, 0), "the matrix to run")
    assert pool.close()
    assert pool.close()
    assert call.ended() == CLOSED


@pytest.mark.rule("iso_worker.pool.children")
def test_what_a_worker_has_started_ends_with_it(pools: Pools, tmp_path: Path) -> None:
    """A launcher that does not `exec`: the killed process is not the one that holds the pipe."""
    inner = script(tmp_path, "probe()\nhang()\n", "inner")
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\n"{inner}" "$@"\nexit 1\n')
    launcher.chmod(0o755)
    pool = pools.start(str(launcher), request=SOON)
    family = psutil.Process(pool.pids[0]).children(recursive=True)
    assert len(family) == 1
    with pytest.raises(SvdPoolError, match="gave no answer"):
        pool.flatten([matrix()])
    wait_until(lambda: not any(map(alive, family)), "the end of the inner process")


OWNER = """
import os, sys, threading
from yeto_syncer.shell.svd_pool import SvdPool, Timeouts
pool = SvdPool.start(sys.argv[1], ("cpu:0", "cpu:1"), 4, Timeouts(), os.environ)
print(*pool.pids, flush=True)
threading.Event().wait()
"""


@pytest.mark.rule("iso_worker.pool.children")
def test_workers_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    python = numpy_python(tmp_path)
    with subprocess.Popen([sys.executable, "-c", OWNER, python], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(workers) == 2 and all(map(alive, workers))
        owner.kill()
    wait_until(lambda: not any(map(alive, workers)), "the end of the workers")
