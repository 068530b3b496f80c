"""Peers that stall, vanish, flood or come back: the learners beside them go on."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.processes import TIMEOUT_S, Processes, wait_until
from tests.e2e.raw import CONTROL, Raw, Trainer, dial, drive, hello, train
from tests.e2e.test_syncer_run import QUICK, initial, small_layout
from yeto_proto._generated.files import U64_MAX
from yeto_proto._generated.messages import BcastFragment, Heartbeat
from yeto_proto._generated.types import Dtype
from yeto_proto.codec import encode
from yeto_proto.files import read_snapshot
from yeto_proto.layout import build_layout

ALONE = (
    *("--sync-interval-steps", "0", "--grace-ms", "0", "--min-start-learners", "1"),
    *("--outer-momentum", "0"),
)
"""Rounds close with the first answer. No momentum: with stale answers an endless run would blow up."""


@pytest.mark.rule("syncer.write_queue.bounded")
@pytest.mark.rule("syncer.write_timeout.drop")
@pytest.mark.parametrize(
    ("dtype", "streams"),
    [
        pytest.param(Dtype.F32, 0, marks=pytest.mark.full),
        (Dtype.BF16, 2),
        pytest.param(Dtype.BF16, 0, marks=pytest.mark.full),
        pytest.param(Dtype.F32, 2, marks=pytest.mark.full),
    ],
)
def test_a_learner_that_stops_reading_delays_nobody_and_is_dropped(
    processes: Processes, dtype: Dtype, streams: int
) -> None:
    for seconds in (1, 10, 60):  # the first is enough unless the machine has no time for three rounds in it
        if rounds_beside_a_stuck_reader(processes, dtype, streams, seconds) > 3:
            return
    raise AssertionError("the stuck reader held up the other")


def rounds_beside_a_stuck_reader(processes: Processes, dtype: Dtype, streams: int, seconds: int) -> int:
    """How many pulls the other learner answers until the stuck one is dropped."""
    # 8 MB a broadcast of everything: more than the kernel holds for a peer that does not read.
    layout = build_layout({"embed": 1_000_000, "a": 1_000_000}, 2)
    endless = ("--learners", "2", "--total-steps", "1000000", *ALONE)
    syncer = processes.syncer(*endless, "--write-timeout-s", str(seconds))
    fast = Trainer(syncer.port, hello(layout, 0, dtype=dtype, streams=streams), target=1.0)
    stuck = Raw(syncer.port, hello(layout, 1, dtype=dtype, streams=streams))
    syncer.stderr.wait_for("learner connected", count=2)
    fast.initialize(initial(layout))
    dropped = "learner left learner=1"
    # A test process that is held up for as long looks like a stuck reader itself.
    drive([fast], lambda: dropped in syncer.stderr.text or fast.ended, "the end of the stuck reader")
    rounds = 0 if fast.ended else len(fast.answered)
    syncer.stderr.wait_for(dropped)
    assert f"no byte was taken for {seconds} s" in syncer.stderr.text
    syncer.signal(signal.SIGTERM)
    drive([fast], lambda: fast.ended, "the end")
    fast.close()
    stuck.close()
    syncer.finished()
    return rounds


@pytest.mark.rule("syncer.broadcast.newest")
def test_a_slow_reader_gets_the_newest_version_and_not_all_of_them(processes: Processes) -> None:
    layout = build_layout({"embed": 1_000_000}, 1)
    flags = ("--learners", "2", "--total-steps", "40", *ALONE, "--write-timeout-s", "900")
    syncer = processes.syncer(*flags)
    fast = Trainer(syncer.port, hello(layout, 0, streams=1), target=1.0)
    slow = Trainer(syncer.port, hello(layout, 1, streams=1), target=1.0)
    slow.answer = lambda pull: None  # type: ignore[method-assign]  # it only reads
    syncer.stderr.wait_for("learner connected", count=2)
    fast.initialize(initial(layout))
    drive([fast], lambda: len(fast.answered) >= 39, "the rounds")
    train([fast, slow])
    versions = [message.version for _, message in slow.seen if isinstance(message, BcastFragment)]
    assert versions == sorted(versions)
    assert 1 <= len(versions) < 20, "superseded versions were sent"
    assert np.array_equal(slow.final[0][1], fast.final[0][1])
    fast.close()
    slow.close()
    syncer.finished()


def test_a_reader_of_a_trickle_is_served_and_delays_nobody(processes: Processes) -> None:
    layout = build_layout({"embed": 500_000}, 1)
    endless = ("--learners", "2", "--total-steps", "1000000", *ALONE)
    syncer = processes.syncer(*endless, "--write-timeout-s", "600")
    fast = Trainer(syncer.port, hello(layout, 0), target=1.0)
    trickle = Raw(syncer.port, hello(layout, 1))
    syncer.stderr.wait_for("learner connected", count=2)
    fast.initialize(initial(layout))
    taken = 0

    def sip() -> bool:
        nonlocal taken
        trickle.sockets[CONTROL].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            taken += len(trickle.sockets[CONTROL].recv(1000))
        return len(fast.answered) >= 25 and taken > 5000

    drive([fast], sip, "rounds beside a trickle")
    assert "learner left" not in syncer.stderr.text
    trickle.close()
    syncer.signal(signal.SIGTERM)
    drive([fast], lambda: fast.ended, "the end")
    fast.close()
    syncer.finished()


def test_a_peer_that_leaves_in_the_middle_of_a_frame(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer("--learners", "2", "--total-steps", "30", *ALONE)
    fast = Trainer(syncer.port, hello(layout, 0), target=1.0)
    fast.initialize(initial(layout))
    for generation, how in enumerate(("close", "reset", "half") * 2, start=1):
        other = Raw(syncer.port, hello(layout, 1, generation=generation, streams=1))
        other.sockets[0].sendall(b"\xde\xc0\x70\xd1\x09\x20\x00\x00")
        sock = other.sockets[CONTROL]
        sock.sendall(b"\xde\xc0")
        syncer.stderr.wait_for(f"learner connected learner=1 generation={generation}")
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half":
            sock.shutdown(socket.SHUT_WR)
            syncer.stderr.wait_for(f"learner left learner=1 generation={generation}")
        other.close()
        syncer.stderr.wait_for(f"learner left learner=1 generation={generation}")
    train([fast])
    fast.close()
    syncer.finished()


def test_a_data_socket_that_dies_leaves_its_group_to_the_others(processes: Processes) -> None:
    layout = build_layout({"embed": 3_000_000}, 1)
    syncer = processes.syncer("--learners", "1", "--total-steps", "6", *ALONE)
    learner = Trainer(syncer.port, hello(layout, 0, streams=2), target=1.0)
    learner.initialize(initial(layout))
    answer, waiting = learner.answer, []
    learner.answer = waiting.append  # type: ignore[method-assign]  # nothing may be on its way now
    drive([learner], lambda: bool(waiting), "the first pull")
    process = psutil.Process(syncer.pid)
    before = process.num_fds()
    learner.sockets.pop(1).close()
    wait_until(lambda: process.num_fds() < before, "the end of the data socket at the other side")
    learner.answer = answer  # type: ignore[method-assign]
    learner.answer(waiting[0])
    train([learner])
    learner.close()
    syncer.finished()


def test_a_flood_of_small_frames_does_not_starve_others(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer("--learners", "2", "--total-steps", "1000000", *ALONE)
    learner = Trainer(syncer.port, hello(layout, 0), target=1.0)
    flooder = Raw(syncer.port, hello(layout, 1))
    learner.initialize(initial(layout))
    drive([learner], lambda: len(learner.answered) >= 5, "the first rounds")
    block = b"".join(map(bytes, encode(Heartbeat(1, 1)))) * 4096
    stop = threading.Event()

    def flood() -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                flooder.sockets[CONTROL].sendall(block)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        target = len(learner.answered) + 20
        drive([learner], lambda: len(learner.answered) >= target, "twenty rounds beside a flood")
        assert "learner left" not in syncer.stderr.text
    finally:
        stop.set()
        with contextlib.suppress(OSError):
            flooder.sockets[CONTROL].shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT_S)
    syncer.signal(signal.SIGTERM)
    drive([learner], lambda: learner.ended, "the end")
    learner.close()
    flooder.close()
    syncer.finished()


@pytest.mark.rule("syncer.capture.catch_up")
def test_sixteen_joiners_at_once_are_all_served(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer("--learners", "17", "--total-steps", "60", *ALONE, "--quorum", "1")
    first = Trainer(syncer.port, hello(layout, 0), target=1.0)
    first.initialize(initial(layout))
    drive([first], lambda: len(first.answered) >= 3, "training")
    joiners = [Trainer(syncer.port, hello(layout, number, streams=1), target=1.0) for number in range(1, 17)]
    syncer.stderr.wait_for("learner connected", count=17)
    train([first, *joiners])
    for learner in [first, *joiners]:
        assert {m.fragment_id for _, m in learner.seen if isinstance(m, BcastFragment)} == {0, 1, 2, 3}
        assert all(np.array_equal(learner.final[n][1], first.final[n][1]) for n in range(4))
        learner.close()
    syncer.finished()


def test_a_small_soft_limit_of_descriptors_is_raised(processes: Processes) -> None:
    limited = ("/bin/sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh")
    flags = ("--port", "0", "--learners", "1", "--total-steps", "1")
    syncer = processes.syncer_command(*flags, under=limited).listening()
    soft, hard = resource.prlimit(syncer.pid, resource.RLIMIT_NOFILE)
    assert soft == hard > 64
    syncer.signal(signal.SIGTERM)
    syncer.finished()


def test_running_out_of_descriptors_neither_spins_nor_ends_the_run(processes: Processes) -> None:
    layout = small_layout()
    flags = ("--learners", "2", "--total-steps", "40", *QUICK, "--handshake-timeout-s", "600")
    syncer = processes.syncer(*flags, "--status-port", "0")
    page = int(syncer.stderr.wait_for(r"serving url=http://127\.0\.0\.1:(\d+)/").group(1))
    process = psutil.Process(syncer.pid)
    learner = Trainer(syncer.port, hello(layout, 0), target=1.0)
    syncer.stderr.wait_for("learner connected")
    limits = resource.prlimit(syncer.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(syncer.pid, resource.RLIMIT_NOFILE, (process.num_fds() + 3, limits[1]))
    crowd = [dial(syncer.port) for _ in range(8)]
    syncer.stderr.wait_for("cannot accept a connection: Too many open files", count=2)
    crowd.append(dial(page))
    syncer.stderr.wait_for('a page cannot be served reason="Too many open files"')
    # Its share of a processor over two tries or more. Being held up makes the share smaller, not larger.
    started, before = time.monotonic(), sum(process.cpu_times()[:2])
    tries = syncer.stderr.text.count("cannot accept a connection")
    while time.monotonic() - started < 1.0:
        tries += 1
        syncer.stderr.wait_for("cannot accept a connection", count=tries)
    assert (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - started) < 0.3
    for sock in crowd:
        sock.close()
    resource.prlimit(syncer.pid, resource.RLIMIT_NOFILE, limits)
    learner.initialize(initial(layout))
    late = Trainer(syncer.port, hello(layout, 1), target=1.0)
    train([learner, late])
    learner.close()
    late.close()
    syncer.finished()


@pytest.mark.full
def test_reconnecting_in_a_loop_leaks_nothing(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer("--learners", "2", "--total-steps", "400", *ALONE, "--quorum", "1")
    process = psutil.Process(syncer.pid)
    first = Trainer(syncer.port, hello(layout, 0), target=1.0)
    first.initialize(initial(layout))
    syncer.stderr.wait_for("learner connected learner=0")
    before = process.num_fds()
    resident: list[int] = []
    for generation in range(1, 421):
        other = Raw(syncer.port, hello(layout, 1, generation=generation, streams=2))
        syncer.stderr.wait_for(f"learner connected learner=1 generation={generation}\\b")
        other.close()
        syncer.stderr.wait_for(f"learner left learner=1 generation={generation}\\b")
        drive([first], lambda: True, "nothing")
        if generation in (20, 420):
            wait_until(lambda: process.num_fds() <= before, "the end of every closed socket there too")
            resident.append(process.memory_info().rss)
    train([first])
    first.close()
    syncer.finished()
    # The buffers of 1,200 readers that nobody frees would be 10 MB; what the allocator keeps is much less.
    assert resident[1] - resident[0] < 8 << 20


@pytest.mark.full
def test_thousands_of_idle_connections_do_not_slow_a_run_down(processes: Processes) -> None:
    layout = small_layout()
    flags = ("--learners", "2", "--total-steps", "200", *QUICK, "--max-pending-connections", "4096")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        syncer = processes.syncer(*flags)
        idle = [dial(syncer.port) for _ in range(2000)]
        learners = [Trainer(syncer.port, hello(layout, number), target=1.0) for number in range(2)]
        learners[0].initialize(initial(layout))
        train(learners)
        for learner in learners:
            learner.close()
        syncer.finished()
        for sock in idle:
            sock.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.rule("syncer.strays.contained")
def test_a_learner_that_claims_all_tokens_there_are_does_not_stop_the_checkpoints(
    processes: Processes, tmp_path: Path
) -> None:
    layout = small_layout()
    checkpoint = tmp_path / "run.ckpt"
    syncer = processes.syncer(
        *("--learners", "2", "--total-steps", "6", *QUICK, "--quorum", "2"),
        *("--checkpoint-path", str(checkpoint), "--checkpoint-every", "1"),
    )
    honest = Trainer(syncer.port, hello(layout, 0), target=1.0)
    liar = Trainer(syncer.port, hello(layout, 1), target=1.0)
    liar.tokens = U64_MAX
    honest.initialize(initial(layout))
    train([honest, liar])
    syncer.finished()
    ledger = read_snapshot(checkpoint).ledger
    assert (ledger[0].merges, ledger[0].tokens) == (6, 60)
    assert (ledger[1].merges, ledger[1].tokens) == (6, U64_MAX)
