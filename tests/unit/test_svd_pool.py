"""The bounded pool of SVD workers: work in order, capacity, start, and every failure."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import psutil
import pytest

from tests.e2e.processes import alive, wait_until
from tests.unit.svd_children import gate, numpy_python, script
from tests.unit.svd_pools import GATED, NAME, SOON, WAIT_S, Call, Pools, failure, matrix, pools
from yeto_proto._generated.iso_worker import TEXT_LIMIT, Status
from yeto_syncer.core.jobs import F32
from yeto_syncer.core.merge import iso
from yeto_syncer.shell.svd_child import Child
from yeto_syncer.shell.svd_pool import SvdPoolError

__all__ = ["pools"]  # a fixture


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
    ending = SOON if "os.close" in body else WAIT_S
    with pytest.raises(SvdPoolError, match=f"^{NAME}: .*({message})"):
        pools.start(script(tmp_path, body), startup=startup, ending=ending)


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
    # One of them closes its output and stays: nobody should wait for its end for long.
    ending = SOON if "os.close" in body else WAIT_S
    program = script(tmp_path, f"probe()\nrequest, payload = read()\n{body}\nhang()\n")
    pool = pools.start(program, ending=ending)
    worker = psutil.Process(pool.pids[0])
    first = failure(lambda: pool.flatten([matrix()]))
    if ending == SOON:
        wait_until(lambda: not alive(worker), "the end of the killed worker")
    assert not alive(worker)
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
