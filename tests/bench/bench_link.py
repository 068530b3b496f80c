"""INIT and BCAST of 1 GiB between real processes, beside bare sockets between as many processes.

The raw limit sends 4 MiB pieces with `sendall` from one thread a socket and takes them with `recv_into`. For
broadcasts its receivers hash blocks of 32 MiB on four threads, as a learner does. A second limit receives
into 1 GiB of new memory, as a syncer must that has just started.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

from tests.bench.common import Reserve, Row, Syncer, children, row
from yeto_learner import SyncerClient
from yeto_proto import dtypes
from yeto_proto._generated.constants import CHUNK_SLICE, DIGEST_BLOCK
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_proto.layout import Fragment, Layout, Tensor

FRAGMENTS = 4
VALUES = 64 << 20  # of one fragment
STREAMS = 4
HASH_THREADS = 4
GIB = 1 << 30
REPEATS = 3


def layout(values: int = VALUES, fragments: int = FRAGMENTS) -> Layout:
    """So many averaged fragments of one tensor each."""
    return Layout(
        [Fragment(MergeMode.AVG, [Tensor(f"tensor{n}", values, (values,))]) for n in range(fragments)]
    )


# -- bare sockets


def raw_sender(pipe: Connection, receivers: int, size: int) -> None:
    """Sends `size` bytes to each receiver over its sockets, all at once."""
    piece = np.ones(CHUNK_SLICE, np.uint8).data
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        sockets = [server.accept()[0] for _ in range(receivers * STREAMS)]
    pipe.recv()

    def send(sock: socket.socket) -> None:
        for _ in range(size // STREAMS // CHUNK_SLICE):
            sock.sendall(piece)

    threads = [threading.Thread(target=send, args=(sock,)) for sock in sockets]
    pipe.send(time.monotonic())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.recv()


def raw_receiver(pipe: Connection, port: int, size: int, hashing: bool, keep: bool) -> None:
    """Takes `size` bytes over four sockets: into a small buffer, or into new memory of that size (`keep`)."""
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(STREAMS)]
    share = size // STREAMS
    pool = ThreadPoolExecutor(HASH_THREADS)
    kept = np.empty(size if keep else 0, np.uint8)

    def receive(number: int) -> None:
        blocks = [np.ones(DIGEST_BLOCK, np.uint8).data for _ in range(2)]
        futures: list[Future[bytes] | None] = [None, None]
        taken = 0
        while taken < share:
            turn, inside = divmod(taken, DIGEST_BLOCK)
            block = blocks[turn % 2]
            if keep:
                place = kept[number * share + taken : (number + 1) * share][:CHUNK_SLICE].data
            else:
                place = block[inside : inside + min(CHUNK_SLICE, DIGEST_BLOCK - inside)]
            if hashing and not inside and (waiting := futures[turn % 2]) is not None:
                waiting.result()
            taken += sockets[number].recv_into(place)
            if hashing and (taken // DIGEST_BLOCK > turn or taken == share):
                futures[turn % 2] = pool.submit(lambda data=block: sha256(data).digest())
        for future in futures:
            if future is not None:
                future.result()

    threads = [threading.Thread(target=receive, args=(number,)) for number in range(STREAMS)]
    pipe.send(None)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(time.monotonic())


def raw(receivers: int, size: int, *, hashing: bool = False, keep: bool = False) -> float:
    """Seconds until every receiver has its `size` bytes."""
    reserve = Reserve((receivers + 2) * GIB)
    with children((raw_sender, receivers, size)) as [sender]:
        port = sender.hear()
        takers = [(raw_receiver, port, size, hashing, keep)] * receivers
        with children(*takers) as started:
            for child in started:
                child.hear()
            reserve.release()
            sender.tell("go")
            begun = sender.hear()
            return float(max(child.hear() for child in started) - begun)


# -- the product


def learner(pipe: Connection, port: int, learner_id: int, dtype: Dtype, initializes: bool) -> None:
    """Sends INIT if it is its turn, and takes every fragment once."""
    client = SyncerClient(("127.0.0.1", port), learner_id, layout(), dtype, STREAMS)
    values = np.full(VALUES, 0.5, np.float32)
    wire = dtypes.encode(dtype, values)
    with client:
        pipe.send(None)
        pipe.recv()
        pipe.send(time.monotonic())
        if initializes:
            for fragment in range(FRAGMENTS):
                client.send_init(fragment, wire)
        seen: set[int] = set()
        while len(seen) < FRAGMENTS:
            client.wait_for(lambda: client.has_updates)
            while (update := client.next_update()) is not None:
                seen.add(update.fragment_id)
                del update
        pipe.send(time.monotonic())
        pipe.recv()


def product(learners: int, dtype: Dtype) -> tuple[float, float, float]:
    """Seconds of INIT, seconds of the first BCAST of everything to everybody, peak MiB of the syncer."""
    flags = ("--learners", str(learners), "--total-steps", "1000", "--grace-ms", "0")
    reserve = Reserve((learners + 2) * GIB)
    with Syncer(*flags) as syncer:
        todo: list[tuple[Any, ...]] = [
            (learner, syncer.port, number, dtype, number == 0) for number in range(learners)
        ]
        with children(*todo) as started:
            for child in started:
                child.hear()
            syncer.wait_for("learner connected", learners)
            reserve.release()
            for child in started:
                child.tell("go")
            begun = min([child.hear() for child in started])
            initialized = syncer.wait_for("parameters initialized", FRAGMENTS)
            ended = max(child.hear() for child in started)
            return initialized - begun, ended - initialized, syncer.peak_mib()


def alternate(*works: Callable[[], Any]) -> list[list[Any]]:
    """Each in turn, several times, so that all see the same machine."""
    results: list[list[Any]] = [[] for _ in works]
    for _ in range(REPEATS):
        for work, kept in zip(works, results, strict=True):
            kept.append(work())
    return results


def rows() -> list[Row]:
    """All rows of this file."""
    size = 4 * VALUES * FRAGMENTS
    plain, new, hashed, one = alternate(
        lambda: raw(1, size),
        lambda: raw(1, size, keep=True),
        lambda: raw(1, size, hashing=True),
        lambda: product(1, Dtype.F32),
    )
    rate = size / 1e9
    init, bcast = median(each[0] for each in one), median(each[1] for each in one)
    found = [
        row("INIT of 1 GiB f32, 4 streams", rate / init, "GB/s", rate / median(plain), 0.60),
        row("INIT, beside sockets into new memory", rate / init, "GB/s", rate / median(new), None),
        row("BCAST of 1 GiB f32 to 1 learner", rate / bcast, "GB/s", rate / median(hashed), 0.70),
        row("peak memory of the syncer there", median(e[2] for e in one), "MiB", size / 2**20, None),
    ]
    half, plain_half = alternate(lambda: product(1, Dtype.BF16), lambda: raw(1, size // 2))
    init = median(each[0] for each in half)
    found.append(
        row(
            "INIT of 1 GiB as bf16 (wire bytes)", rate / 2 / init, "GB/s", rate / 2 / median(plain_half), 0.45
        )
    )
    four, hashed = alternate(lambda: product(4, Dtype.F32), lambda: raw(4, size, hashing=True))
    bcast = median(each[1] for each in four)
    found.append(
        row("BCAST of 1 GiB f32 to 4 learners", 4 * rate / bcast, "GB/s", 4 * rate / median(hashed), 0.60)
    )
    return found


if __name__ == "__main__":
    for entry in rows():
        print(entry)
