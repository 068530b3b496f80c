"""A whole synchronisation: every learner pushes 64M parameters, the syncer merges and steps, all get them.

PULL, PUSH f32, avg, Nesterov, commit, BCAST of four fragments, over loopback between real processes. A
learner pushes when it holds all that the synchronisation before gave, so that one does not overlap with the
next. Beside it stands a bare star: numpy and sockets only, the same fragments, order and arithmetic, without
a protocol, finite checks, digests, versions or anybody who may fail. `make bench-peers` compares with gloo
and torchft.
"""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

from tests.bench.bench_link import FRAGMENTS, STREAMS, layout
from tests.bench.common import Reserve, Row, Syncer, children, row
from yeto_learner import SyncerClient
from yeto_proto._generated.types import Dtype

VALUES = (64 << 20) // FRAGMENTS  # of one fragment
SYNCS = 6  # whole synchronisations in one run; the first two are not counted
PIECE = 1 << 18
LR, MU = 0.7, 0.9


def sync_of(version: int) -> int:
    """The synchronisation whose step gives a fragment this version, counted from one; zero for INIT."""
    return -(-version // FRAGMENTS)


def learner(pipe: Connection, port: int, learner_id: int, values: int) -> None:
    """Answers the pulls of a synchronisation when it has all of the one before; says when what came."""
    client = SyncerClient(("127.0.0.1", port), learner_id, layout(values), Dtype.F32, STREAMS)
    delta = np.full(values, 1e-6, np.float32).data.cast("B")
    came: dict[int, float] = {}
    held: dict[int, int] = {}
    with client:
        pipe.send(None)
        pipe.recv()
        if learner_id == 0:
            for fragment in range(FRAGMENTS):
                client.send_init(fragment, delta)
        pulls: list[Any] = []
        while not client.finalizing.is_set() and not client.shutdown.is_set():
            client.wait_for(
                lambda: client.has_updates or client.has_pulls or client.finalizing.is_set(), timeout=60.0
            )
            while (update := client.next_update()) is not None:
                held[update.fragment_id] = update.version
                came[update.version] = time.monotonic()
                del update
            pulls += client.drain_pulls()
            if len(held) < FRAGMENTS:
                continue
            done = sync_of(min(held.values()))
            for pull in [pull for pull in pulls if sync_of(pull.global_step) <= done + 1]:
                pulls.remove(pull)
                step = pull.global_step
                base = held[pull.fragment_id]
                client.push_fragment(pull.fragment_id, step, pull.round_attempt, base, step, 1, 1, delta)
        pipe.send(came)
        pipe.recv()


def product(learners: int, values: int = VALUES, *flags: str) -> tuple[list[float], float, float]:
    """Seconds of each counted synchronisation, processor seconds and peak MiB of the syncer."""
    total = SYNCS * FRAGMENTS
    settings = (
        *("--learners", str(learners), "--quorum", str(learners), "--total-steps", str(total + 1)),
        *("--grace-ms", "0", "--sync-interval-steps", "0", "--delta-correction", "none"),
        *("--log-level", "warning", "--pipeline", str(FRAGMENTS), *flags),
    )
    reserve = Reserve((learners + 2) << 30)
    with Syncer(*settings) as syncer:
        todo: list[tuple[Any, ...]] = [(learner, syncer.port, n, values) for n in range(learners)]
        with children(*todo) as started:
            for child in started:
                child.hear()
            reserve.release()
            for child in started:
                child.tell("go")
            came = [child.hear() for child in started]
            ends = [
                max(
                    seen[step]
                    for seen in came
                    for step in range(last - FRAGMENTS + 1, last + 1)
                    if step in seen
                )
                for last in range(FRAGMENTS, total + 1, FRAGMENTS)
            ]
            return (
                [after - before for before, after in pairwise(ends[1:])],
                syncer.cpu_s(),
                syncer.peak_mib(),
            )


# -- a star of bare sockets


def leaf(pipe: Connection, port: int, values: int) -> None:
    """Sends its delta of each fragment, gets the fragment."""
    sock = socket.create_connection(("127.0.0.1", port))
    delta = np.full(values, 1e-6, np.float32).data.cast("B")
    buffer = np.ones(values, np.float32).data.cast("B")

    def receive() -> None:
        for _ in range(FRAGMENTS):
            taken = 0
            while taken < len(buffer):
                taken += sock.recv_into(buffer[taken:])

    for _ in range(SYNCS):
        thread = threading.Thread(target=receive)
        thread.start()
        for _ in range(FRAGMENTS):
            sock.sendall(delta)
        thread.join()
    pipe.send(time.monotonic())
    pipe.recv()


def merge(deltas: list[np.ndarray], params: np.ndarray, momentum: np.ndarray, part: slice) -> None:
    """avg and Nesterov on one piece, in place."""
    share = np.float32(-1 / len(deltas))
    total = deltas[0][part] * share
    for delta in deltas[1:]:
        total += delta[part] * share
    buffer, theta = momentum[part], params[part]
    buffer *= np.float32(MU)
    buffer += total
    total += buffer * np.float32(MU)
    total *= np.float32(LR)
    theta -= total


def root(pipe: Connection, learners: int, values: int) -> None:
    """The middle of the star: one thread for each leaf and direction, two that merge."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        socks = [server.accept()[0] for _ in range(learners)]
    states = [(np.ones(values, np.float32), np.zeros(values, np.float32)) for _ in range(FRAGMENTS)]
    # Two sets of buffers: the next fragment comes in while one is merged.
    buffers = [[np.ones(values, np.float32) for _ in range(learners)] for _ in range(2)]
    pool = ThreadPoolExecutor(2 * learners + 2)
    parts = [slice(start, min(start + PIECE, values)) for start in range(0, values, PIECE)]

    def receive(number: int, turn: int) -> None:
        view, taken = buffers[turn % 2][number].data.cast("B"), 0
        while taken < len(view):
            taken += socks[number].recv_into(view[taken:])

    def work() -> list[float]:
        ends = []
        coming = [pool.submit(receive, number, 0) for number in range(learners)]
        going: list[Any] = []
        for turn in range(SYNCS * FRAGMENTS):
            for future in coming:
                future.result()
            if turn + 1 < SYNCS * FRAGMENTS:
                coming = [pool.submit(receive, number, turn + 1) for number in range(learners)]
            params, momentum = states[turn % FRAGMENTS]
            list(
                pool.map(lambda part, p=params, m=momentum, t=turn: merge(buffers[t % 2], p, m, part), parts)
            )
            for future in going:
                future.result()
            going = [pool.submit(sock.sendall, params.data.cast("B")) for sock in socks]
            if turn % FRAGMENTS == FRAGMENTS - 1:
                for future in going:
                    future.result()
                ends.append(time.monotonic())
        return ends

    pipe.send(work())
    pipe.recv()


def star(learners: int, values: int = VALUES) -> list[float]:
    """Seconds of each counted synchronisation."""
    with children((root, learners, values)) as [middle]:
        port = middle.hear()
        with children(*[(leaf, port, values)] * learners):
            ends = middle.hear()
            return [after - before for before, after in pairwise(ends[1:])]


def rows(repeats: int = 3) -> list[Row]:
    """All rows of this file."""
    found: list[Row] = []
    for learners in (2, 4):
        mine: list[tuple[list[float], float, float]] = []
        bare: list[float] = []
        for _ in range(repeats):
            mine.append(product(learners))
            bare += star(learners)
        taken = median(one for seconds, _, _ in mine for one in seconds)
        what = f"whole synchronisation of 64M f32, M = {learners}"
        found.append(row(f"{what}, beside a bare star", taken, "s", median(bare), None))
        peak = median(each[2] for each in mine)
        found.append(row(f"peak memory of the syncer there, M = {learners}", peak, "MiB", None, None))
    return found


if __name__ == "__main__":
    for entry in rows():
        print(entry)
