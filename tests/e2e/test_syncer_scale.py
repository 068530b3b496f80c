"""Many at once, and the memory that they may take: bounds are counts, bytes and the order of events."""

from __future__ import annotations

import contextlib
import resource
import select
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.processes import TIMEOUT_S, Processes, Syncer, wait_until
from tests.e2e.raw import CONTROL, Raw, Trainer, dial, drive, hello, train
from tests.e2e.test_syncer_faults import ALONE
from tests.e2e.test_syncer_refusals import error_text
from tests.e2e.test_syncer_run import QUICK, initial, small_layout
from yeto_proto._generated.constants import HELLO_MAX
from yeto_proto._generated.messages import BcastFragment
from yeto_proto._generated.types import Dtype, FrameType
from yeto_proto.codec import encode, header
from yeto_proto.layout import build_layout

PATIENCE_S = 300.0
"""For what moves many megabytes."""

ENDLESS = ("--learners", "20", "--total-steps", "1000000", *ALONE)

on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory from /proc")


def peak(syncer: Syncer) -> int:
    """The most memory that was resident at one time, in bytes."""
    status = Path(f"/proc/{syncer.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


class Frugal(Trainer):
    """Keeps no message, so that it stays small, and its ACK until it is allowed, so that the syncer stays."""

    allowed = False

    def react(self) -> None:
        super().react()
        self.seen.clear()

    def finish(self) -> None:
        if self.allowed:
            super().finish()


def stop(syncer: Syncer, learner: Trainer) -> None:
    """End an endless run."""
    syncer.signal(signal.SIGTERM)
    drive([learner], lambda: learner.ended, "the end")
    learner.close()
    syncer.finished()


# ------------------------------------------------------------------------------------------------ strangers


def pump(strangers: dict[socket.socket, memoryview], enough: int, patience: float) -> None:
    """Write what the kernel takes: until `enough` of them have sent all, then until it takes no more."""
    while left := [sock for sock, rest in strangers.items() if rest]:
        done = len(strangers) - len(left)
        ready = select.select([], left, [], TIMEOUT_S if done < enough else patience)[1]
        if not ready:
            assert done >= enough, f"only {done} were taken"
            return
        for sock in ready:
            with contextlib.suppress(BlockingIOError):
                strangers[sock] = strangers[sock][sock.send(strangers[sock][: 1 << 20]) :]


@on_linux
@pytest.mark.rule("syncer.hello.bounded")
@pytest.mark.parametrize("count", [12, pytest.param(256, marks=pytest.mark.full)])
def test_strangers_with_the_longest_hellos_cannot_take_all_memory(processes: Processes, count: int) -> None:
    # A million fragments of one tensor each, and the last byte does not come.
    layout = small_layout()
    syncer = processes.syncer(*ENDLESS, "--handshake-timeout-s", "600", "--max-pending-connections", "300")
    learner = Trainer(syncer.port, hello(layout, 0), target=1.0)
    learner.initialize(initial(layout))
    drive([learner], lambda: len(learner.answered) >= 3, "the first rounds")
    before = peak(syncer)
    fragments = (HELLO_MAX - 200) // 13
    head = struct.pack("<HIQBI", 4, 1, 1, 1, fragments)
    payload = head + struct.pack("<BIQ", 0, 1, 4) * fragments + bytes(64) + struct.pack("<H", 0)
    content = memoryview(header(FrameType.HELLO, len(payload)) + payload)
    strangers = {dial(syncer.port): content[:-1] for _ in range(count)}
    for sock in strangers:
        sock.setblocking(False)
    pump(strangers, enough=3, patience=0.5)
    # Who brings a real layout gets in beside them, and the rounds go on.
    other = build_layout({f"tensor.{number}": 1 for number in range(10_000)}, 1)
    with dial(syncer.port) as honest:
        greeting = b"".join(map(bytes, encode(hello(other, 1))))
        assert 1 << 16 < len(greeting) < 1 << 20
        honest.sendall(greeting)
        target = len(learner.answered) + 5
        drive([learner], lambda: len(learner.answered) >= target, "rounds beside the strangers")
        assert "session mismatch" in error_text(honest)
    assert peak(syncer) - before < 3 * HELLO_MAX + (24 << 20)
    # Whoever waited longest gets its turn when the others are gone.
    late, rest = strangers.popitem()
    for sock in strangers:
        sock.close()
    late.setblocking(True)
    late.settimeout(TIMEOUT_S)
    late.sendall(content[len(content) - len(rest) - 1 :])
    assert "session mismatch" in error_text(late)
    late.close()
    stop(syncer, learner)


def test_a_storm_of_connections_leaves_nothing_and_stops_no_round(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer(*ENDLESS)
    learner = Trainer(syncer.port, hello(layout, 0), target=1.0)
    learner.initialize(initial(layout))
    drive([learner], lambda: len(learner.answered) >= 3, "the first rounds")
    process = psutil.Process(syncer.pid)
    descriptors, threads = process.num_fds(), process.num_threads()
    storm = 0
    target = len(learner.answered) + 30

    def gust() -> bool:
        nonlocal storm
        for _ in range(20):
            with contextlib.suppress(OSError):  # a full backlog refuses
                dial(syncer.port).close()
                storm += 1
        return len(learner.answered) >= target

    drive([learner], gust, "rounds in a storm")
    assert storm >= 100
    wait_until(lambda: process.num_fds() <= descriptors, "the end of all that came with the storm")
    assert process.num_threads() == threads
    stop(syncer, learner)


# ------------------------------------------------------------------------------------------------ readers


def sip(groups: Sequence[Raw], count: int) -> None:
    """Take at most `count` bytes from each, if some are there."""
    for group in groups:
        group.sockets[CONTROL].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            group.sockets[CONTROL].recv(count)


@pytest.mark.rule("syncer.write_queue.bounded")
@pytest.mark.parametrize(
    "taken", [pytest.param(0, id="stuck"), pytest.param(100, id="trickle", marks=pytest.mark.full)]
)
def test_sixteen_joiners_that_hardly_read_delay_nobody(processes: Processes, taken: int) -> None:
    """The rounds go on before a single one of them has caught up."""
    layout = build_layout({"a": 750_000, "b": 750_000, "c": 750_000, "d": 750_000}, 4)  # 12 MB
    syncer = processes.syncer(*ENDLESS, "--write-timeout-s", "600")
    learner = Trainer(syncer.port, hello(layout, 0), target=1.0)
    learner.initialize(initial(layout))
    drive([learner], lambda: len(learner.answered) >= 3, "the first rounds")
    joiners = [Raw(syncer.port, hello(layout, number)) for number in range(1, 17)]
    syncer.stderr.wait_for("learner connected", count=17)
    target = len(learner.answered) + 8  # all four fragments twice

    def look() -> bool:
        if taken:
            sip(joiners, taken)
        return len(learner.answered) >= target

    drive([learner], look, "eight rounds beside sixteen joiners", PATIENCE_S)
    assert "learner left" not in syncer.stderr.text
    for joiner in joiners:
        joiner.close()
    stop(syncer, learner)


def test_equal_readers_get_equal_shares(processes: Processes) -> None:
    """Four that read as fast as they can: when the first has all it can get, no other is far behind."""
    layout = build_layout({"a": 500_000, "b": 500_000}, 2)
    syncer = processes.syncer(*ENDLESS)
    learner = Trainer(syncer.port, hello(layout, 0, streams=1), target=1.0)
    readers = [Trainer(syncer.port, hello(layout, number, streams=1), target=1.0) for number in range(1, 5)]
    for reader in readers:
        reader.answer = lambda pull: None  # type: ignore[method-assign]  # it only reads
    syncer.stderr.wait_for("learner connected", count=5)
    learner.initialize(initial(layout))

    def count(reader: Trainer) -> int:
        return sum(isinstance(message, BcastFragment) for _, message in reader.seen)

    drive([learner, *readers], lambda: max(map(count, readers)) >= 16, "sixteen broadcasts", PATIENCE_S)
    assert min(map(count, readers)) >= 8
    for reader in readers:
        reader.close()
    stop(syncer, learner)


# ------------------------------------------------------------------------------------------------ memory


@on_linux
@pytest.mark.full
@pytest.mark.parametrize("fold", ["at-close", "on-arrival"])
@pytest.mark.parametrize("dtype", list(Dtype))
def test_the_peak_memory_of_a_run_is_what_the_documentation_says(
    processes: Processes, dtype: Dtype, fold: str
) -> None:
    """8 bytes a parameter of state, the fragment that is being committed once more, the pushes in flight as
    received, two decoded fragments, an encoded copy of what is being sent, and 64 MiB a learner."""
    numel, fragments, learners, pipeline = 8_000_000, 4, 2, 2
    layout = build_layout({f"tensor{number}": numel for number in range(fragments)}, fragments)
    syncer = processes.syncer(
        *("--learners", str(learners), "--total-steps", "16", *QUICK, "--fold", fold),
        *("--pipeline", str(pipeline)),
    )
    crowd = [Frugal(syncer.port, hello(layout, n, dtype=dtype, streams=2), 1.0) for n in range(learners)]
    syncer.stderr.wait_for("learner connected", count=learners)
    before = peak(syncer)
    crowd[0].initialize([np.zeros(numel, np.float32) for _ in range(fragments)])
    drive(crowd, lambda: all(len(each.final) == fragments for each in crowd), "the final cut", PATIENCE_S)
    used = peak(syncer) - before
    for learner in crowd:
        learner.allowed = True
    train(crowd, PATIENCE_S)
    for learner in crowd:
        learner.close()
    syncer.finished()
    push = {Dtype.F32: 4.0, Dtype.BF16: 2.0, Dtype.Q4: 132 / 256}[dtype] * numel
    state = 8 * numel * fragments
    commit, decoded = 8 * numel, 2 * 4 * numel
    sent = (4 if dtype is Dtype.F32 else 2) * numel * fragments
    bound = state + commit + pipeline * learners * push + decoded + sent + learners * (64 << 20)
    assert used < bound, f"{used / 2**20:.0f} MiB, not {bound / 2**20:.0f}"


@pytest.mark.full
def test_two_hundred_and_fifty_six_learners_and_as_many_threads_as_for_two(processes: Processes) -> None:
    """Every round closes with all of them, and the number of threads does not move."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        layout = build_layout({f"tensor{number}": 65_536 for number in range(4)}, 4)  # 1 MiB
        syncer = processes.syncer(
            *("--learners", "256", "--total-steps", "8", "--grace-ms", "100000", "--quorum", "256"),
            *("--sync-interval-steps", "0", "--pipeline", "2", "--max-pending-connections", "1024"),
        )
        process = psutil.Process(syncer.pid)
        crowd = [Trainer(syncer.port, hello(layout, number, streams=1), 1.0) for number in range(2)]
        syncer.stderr.wait_for("learner connected", count=2)
        threads = process.num_threads()
        crowd += [Trainer(syncer.port, hello(layout, number, streams=1), 1.0) for number in range(2, 256)]
        syncer.stderr.wait_for("learner connected", count=256, timeout=PATIENCE_S)
        crowd[0].initialize([np.zeros(65_536, np.float32) for _ in range(4)])
        train(crowd, PATIENCE_S)
        assert process.num_threads() <= threads
        assert all(len(learner.answered) == 8 for learner in crowd)
        assert all(np.array_equal(learner.final[0][1], crowd[0].final[0][1]) for learner in crowd)
        for learner in crowd:
            learner.close()
        syncer.finished()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
