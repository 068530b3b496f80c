"""The bounded pool of SVD workers: order, capacity, deadlines, poison, drain, and a clean end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from tests.e2e.processes import alive, wait_until
from tests.unit.svd_children import gate, numpy_python, script
from yeto_proto._generated.iso_worker import TEXT_LIMIT, Status
from yeto_syncer.core.jobs import F32
from yeto_syncer.core.merge import iso
from yeto_syncer.shell.svd_child import Child, Deadline
from yeto_syncer.shell.svd_pool import CLOSED, BadTimeoutError, SvdPool, SvdPoolError, Timeouts

WAIT_S = 30.0
SOON = 0.3
"""A deadline that passes while a test waits for it."""

NAME = r"SVD worker 0 \(cpu\)"


class Pools:
    """Starts pools for one test, and closes them at its end."""

    def __init__(self) -> None:
        self.started: list[SvdPool] = []

    def start(
        self,
        python: str,
        devices: tuple[str, ...] = ("cpu",),
        *,
        capacity: int = 16,
        startup: float = WAIT_S,
        request: float = WAIT_S,
        drain: float = WAIT_S,
    ) -> SvdPool:
        pool = SvdPool.start(python, devices, capacity, Timeouts(startup, request, drain), os.environ)
        self.started.append(pool)
        return pool


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # pathlib would keep one open while it counts


@pytest.fixture
def pools() -> Iterator[Pools]:
    """Pools of which no child, thread or descriptor is left after the test."""
    before, threads = fds(), threading.active_count()
    made = Pools()
    yield made
    for pool in made.started:
        assert pool.close()
        assert not any(psutil.pid_exists(pid) for pid in pool.pids)
    wait_until(lambda: threading.active_count() == threads, "the end of all threads")
    assert fds() == before
    assert not psutil.Process().children(recursive=True)


class Call(threading.Thread):
    """A call of `flatten` on a thread of its own."""

    def __init__(self, pool: SvdPool, *matrices: F32) -> None:
        super().__init__(daemon=True)
        self.matrices = matrices
        self._pool = pool
        self._end: SimpleQueue[SvdPoolError | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        try:
            self._pool.flatten(self.matrices)
        except SvdPoolError as error:
            self._end.put(error)
        else:
            self._end.put(None)

    def ended(self) -> str | None:
        """Wait for its end; the message when it failed."""
        error = self._end.get(timeout=WAIT_S)
        self.join(WAIT_S)
        return None if error is None else str(error)


def matrix(rows: int = 2, cols: int = 3, value: float = 1.0) -> F32:
    return np.full((rows, cols), value, np.float32)


def failure(work: Callable[[], object]) -> str:
    with pytest.raises(SvdPoolError) as raised:
        work()
    return str(raised.value)


# -- work ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [("cpu",), ("cpu:0", "cpu:1", "cpu:2")])
def test_matrices_are_flattened_in_place(pools: Pools, tmp_path: Path, devices: tuple[str, ...]) -> None:
    pool = pools.start(numpy_python(tmp_path), devices, capacity=3)
    generator = np.random.default_rng(5)
    shapes = [(1, 1), (1, 9), (9, 1), (40, 300), (300, 40), (64, 64), (2, 2), (7, 5)]
    whole = generator.standard_normal(sum(rows * cols for rows, cols in shapes)).astype(np.float32)
    views, at = [], 0
    for rows, cols in shapes:
        views.append(whole[at : at + rows * cols].reshape(rows, cols))
        at += rows * cols
    expected = [iso(view) for view in views]
    pool.flatten(views)
    for view, flat in zip(views, expected, strict=True):
        np.testing.assert_allclose(view, flat, rtol=2e-4, atol=2e-5)
    zero = np.zeros((3, 4), np.float32)
    pool.flatten([zero])
    assert not zero.any()
    pool.flatten([])
    assert pool.load == (0, 0, 0)
    assert len(set(pool.pids)) == len(devices)


@pytest.mark.rule("iso_worker.reply.status")
def test_a_result_that_overflows_is_nan_and_no_failure(pools: Pools, tmp_path: Path) -> None:
    body = """
        probe()
        request, payload = read()
        answer(request, b"too large", Status.NON_FINITE_OUTPUT)
        answer(*read())
        hang()
    """
    pool = pools.start(script(tmp_path, body))
    one, two = matrix(), matrix(value=4.0)
    pool.flatten([one, two])
    assert np.isnan(one).all()
    assert (two == 4.0).all()
    pool.drain()


GATED = """
    probe()
    with open({log!r}, "ab", buffering=0) as log:
        while True:
            request, payload = read()
            log.write(b"%d " % request.cols)
            with open({gate!r}, "rb") as gate:
                gate.read()
            answer(request, payload)
"""


@pytest.mark.rule("iso_worker.pool.capacity")
@pytest.mark.rule("iso_worker.pool.order")
def test_capacity_covers_queued_and_running_and_the_order_is_that_of_submission(
    pools: Pools, tmp_path: Path
) -> None:
    log, door = tmp_path / "log", gate(tmp_path)
    pool = pools.start(script(tmp_path, GATED.format(log=str(log), gate=str(door))), capacity=2)
    calls = [Call(pool, matrix(1, 1), matrix(1, 2), matrix(1, 3))]
    wait_until(lambda: pool.load == (1, 1, 1), "one running, one queued, one waiting")
    for number in (4, 5, 6):
        calls.append(Call(pool, matrix(1, number)))
        wait_until(lambda number=number: pool.load == (1, 1, number - 2), "one more waiting")
    for left in (5, 4, 3, 2, 1, 0):
        door.open("wb").close()
        running, queued, waiting = min(left, 1), min(max(left - 1, 0), 1), max(left - 2, 0)
        wait_until(lambda load=(running, queued, waiting): pool.load == load, f"{left} matrices left")
    assert [call.ended() for call in calls] == [None] * 4
    assert log.read_bytes() == b"1 2 3 4 5 6 "


# -- start ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("iso_worker.probe.must")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise SystemExit(7)", "exited with 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
        ("hang()", f"was not ready within {SOON:g} s"),
        ("head(); hang()", f"was not ready within {SOON:g} s"),
        ("say(b'x' * 48); hang()", "bytes that are no frame|without having been asked"),
        ("request, _ = read(); answer(request, floats(1.0000001)); hang()", "the probe"),
        ("request, _ = read(); answer(request, b'', Status.NON_FINITE_OUTPUT); hang()", "the probe"),
        ("request, _ = read(); answer(request, b'no', Status.COMPUTE_ERROR); hang()", "COMPUTE_ERROR: no"),
        ("os.close(1); hang()", "closed its standard output"),
    ],
)
def test_a_worker_that_cannot_start_leaves_nothing(
    pools: Pools, tmp_path: Path, body: str, message: str
) -> None:
    startup = SOON if "ready" in message else WAIT_S
    with pytest.raises(SvdPoolError, match=f"^{NAME}: .*({message})"):
        pools.start(script(tmp_path, body), startup=startup)


def test_a_program_that_is_not_there(pools: Pools, tmp_path: Path) -> None:
    path = str(tmp_path / "nobody")
    message = failure(lambda: pools.start(path))
    assert message == f"SVD worker 0 (cpu) cannot be started: {path}: No such file or directory"


@pytest.mark.rule("iso_worker.pool.children")
def test_the_good_workers_end_with_the_one_that_cannot_start(pools: Pools, tmp_path: Path) -> None:
    body = """
        if sys.argv[-1] == "cpu:1":
            raise SystemExit(3)
        probe()
        hang()
    """
    message = failure(lambda: pools.start(script(tmp_path, body), ("cpu:0", "cpu:1", "cpu:2")))
    assert message == "SVD worker 1 (cpu:1): exited with 3"


# -- failures ------------------------------------------------------------------------------------------------

ANSWERS = [
    *(
        (f"answer(request, b'why  so\\n', {status})", f"answered {Status(status).name}: why so$")
        for status in (1, 2, 3, 4, 5, 6, 8)
    ),
    ("answer(request, b'why', 77)", "answered status 77: why"),
    ("answer(request, b'\\xff' * TEXT_LIMIT, 6)", "answered COMPUTE_ERROR: "),
    ("answer(request, b'x' * (TEXT_LIMIT + 1), 6)", f"a text of {TEXT_LIMIT + 1} bytes"),
    ("answer(request, payload, magic=b'YETOISO2')", "no frame"),
    ("answer(request, payload, version=2)", "no frame"),
    ("answer(request, payload, request_id=1)", r"answered request 2 \(2 x 3\) with request 1 \(2 x 3\)"),
    ("answer(request, payload, request_id=3)", "with request 3"),
    ("answer(request, payload, rows=3, cols=2)", r"with request 2 \(3 x 2\)"),
    ("answer(request, payload[:-4])", "with 20 bytes, not 24"),
    ("answer(request, payload + b'more')", "with 28 bytes, not 24"),
    ("answer(request, floats(1, 2, 3, 4, 5, float('inf')))", "not finite"),
    ("answer(request, floats(float('nan'), 2, 3, 4, 5, 6))", "not finite"),
    ("say(frame(request, payload)[:-1]); raise SystemExit(0)", "exited with 0"),
    ("say(frame(request, payload)[:20]); raise SystemExit(4)", "exited with 4"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
    ("os.close(1); hang()", "closed its standard output"),
]


@pytest.mark.rule("iso_worker.reply.echo")
@pytest.mark.rule("iso_worker.reply.status")
@pytest.mark.rule("iso_worker.reply.length")
@pytest.mark.rule("iso_worker.reply.finite")
@pytest.mark.rule("iso_worker.pool.poison")
@pytest.mark.parametrize(("body", "message"), ANSWERS)
def test_a_wrong_answer_poisons_the_pool_for_good(
    pools: Pools, tmp_path: Path, body: str, message: str
) -> None:
    pool = pools.start(script(tmp_path, f"probe()\nrequest, payload = read()\n{body}\nhang()\n"))
    (pid,) = pool.pids
    first = failure(lambda: pool.flatten([matrix()]))
    assert not psutil.pid_exists(pid) or not alive(psutil.Process(pid))
    with pytest.raises(SvdPoolError, match=f"^{NAME}: .*{message}"):
        pool.flatten([matrix()])
    assert "\n" not in first
    assert failure(lambda: pool.flatten([])) == first
    assert failure(pool.drain) == first
    pool.close()
    assert failure(lambda: pool.flatten([matrix()])) == failure(pool.drain) == first == pool.poison


@pytest.mark.rule("iso_worker.reply.turn")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("say(frame(request, payload) + b'hello'); hang()", "without having been asked"),
        ("answer(request, payload); raise SystemExit(5)", "exited with 5"),
    ],
)
def test_what_an_idle_worker_does_shows_at_the_next_request(
    pools: Pools, tmp_path: Path, body: str, message: str
) -> None:
    pool = pools.start(script(tmp_path, f"probe()\nrequest, payload = read()\n{body}\n"))
    pool.flatten([matrix()])
    wait_until(
        lambda: "hang" in body or not alive(psutil.Process(pool.pids[0])), "the end of the worker, if it ends"
    )
    with pytest.raises(SvdPoolError, match=message):
        pool.flatten([matrix()])


@pytest.mark.rule("iso_worker.reply.turn")
def test_an_answer_to_what_was_not_read_is_none(pools: Pools, tmp_path: Path) -> None:
    body = """
        probe()
        request = head()
        os.close(0)
        answer(request, bytes(request.payload_bytes))
        hang()
    """
    pool = pools.start(script(tmp_path, body))
    with pytest.raises(SvdPoolError, match=f"^{NAME}: .*before it had read all of it"):
        pool.flatten([matrix(1000, 1000)])  # more than a pipe holds


@pytest.mark.rule("iso_worker.payload.limit")
def test_a_matrix_that_is_too_large_for_the_worker(pools: Pools, tmp_path: Path) -> None:
    pool = pools.start(numpy_python(tmp_path, "--max-frame-bytes", "999999"))
    with pytest.raises(SvdPoolError, match="answered TOO_LARGE: the payload has 4000000 bytes"):
        pool.flatten([matrix(1000, 1000)])


@pytest.mark.rule("iso_worker.pool.poison")
def test_everything_that_is_pending_fails_with_the_first_message(pools: Pools, tmp_path: Path) -> None:
    door = gate(tmp_path)
    body = f"""
        probe()
        request, payload = read()
        if sys.argv[-1] == "cpu:1":
            hang()
        with open({str(door)!r}, "rb") as gate:
            gate.read()
        raise SystemExit(9)
    """
    pool = pools.start(script(tmp_path, body), ("cpu:0", "cpu:1"), capacity=3)
    calls = [Call(pool, matrix()) for _ in range(5)]
    wait_until(lambda: pool.load == (2, 1, 2), "two running, one queued, two waiting")
    drain = threading.Thread(target=lambda: failures.put(failure(pool.drain)), daemon=True)
    failures: SimpleQueue[str] = SimpleQueue()
    drain.start()
    door.open("wb").close()
    assert [call.ended() for call in calls] == ["SVD worker 0 (cpu:0): exited with 9"] * 5
    assert failures.get(timeout=WAIT_S) == "SVD worker 0 (cpu:0): exited with 9"
    drain.join(WAIT_S)


@pytest.mark.rule("iso_worker.pool.poison")
def test_a_success_that_was_not_delivered_becomes_the_failure(pools: Pools, tmp_path: Path) -> None:
    body = "probe()\nanswer(*read())\nread()\nraise SystemExit(2)\n"
    pool = pools.start(script(tmp_path, body))
    assert failure(lambda: pool.flatten([matrix(), matrix()])) == "SVD worker 0 (cpu): exited with 2"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_of_a_thread_does_not_hang_its_callers(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools.start(numpy_python(tmp_path))

    def broken(child: Child, matrix: F32, deadline: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Child, "flatten", broken)
    with pytest.raises(SvdPoolError, match="ended by a defect"):
        pool.flatten([matrix()])


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
