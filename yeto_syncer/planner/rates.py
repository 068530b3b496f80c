"""How fast this machine merges, encodes, writes and moves bytes through a socket.

Each figure is taken with the code of the syncer itself, on a sample small enough for a few seconds in all.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from yeto_proto import dtypes
from yeto_proto._generated.constants import CHUNK_SLICE
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_proto.pool import BufferPool
from yeto_syncer.core import merge
from yeto_syncer.core.jobs import F32, Answer, Link, MergeJob, MergeTensors
from yeto_syncer.shell.checks import encode

SAMPLE_VALUES: Final = 1 << 23
SAMPLE_TENSORS: Final = 8
SOCKET_BYTES: Final = 256 << 20
DISK_BYTES: Final = 256 << 20
REPEATS: Final = 3


def merge_rate(learners: int, dtype: Dtype, mode: MergeMode, correction: bool, threads: int) -> float:
    """Answer values a second of a whole merge with its outer step."""
    momentum = _noise(0)
    memory = BufferPool()  # as the syncer: what arrives and what is made lie in memory that is used again
    answers = []
    for number in range(min(learners, 4)):
        encoded = memoryview(dtypes.encode(dtype, _noise(number + 1))).cast("B")
        received = memory.take(len(encoded))
        received[:] = encoded
        answers.append(Answer(Link(number, 1), 1.0 + number, dtype, received))
    layout = MergeTensors(mode, np.full(SAMPLE_TENSORS, SAMPLE_VALUES // SAMPLE_TENSORS, np.uint64), None)
    job = MergeJob(1, 1, 0, _noise(99), momentum, layout, tuple(answers), 0.7, 0.9, correction)
    with ThreadPoolExecutor(threads) as pool:
        spent = _best(lambda: merge.run(job, pool.map, empty=memory.empty))
    return len(answers) * SAMPLE_VALUES / spent


def encode_rate(dtype: Dtype, threads: int) -> float:
    """Bytes of f32 a second that become broadcast payloads of a session with this dtype."""
    if dtype is Dtype.F32:
        return float("inf")
    values = _noise(0)
    with ThreadPoolExecutor(threads) as pool:  # a q4 session broadcasts bf16
        return values.nbytes / _best(lambda: encode(Dtype.BF16, values, pool.map))


def disk_rate(folder: Path) -> float:
    """Bytes a second of a buffered write with fsync into a file of `folder`, which is removed."""
    block = _noise(0).data.cast("B")[: 8 << 20]
    with tempfile.TemporaryFile(dir=folder) as file:

        def write() -> None:
            file.seek(0)
            for _ in range(DISK_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())

        return DISK_BYTES / _best(write, repeats=1)


def socket_rate() -> float:
    """Bytes a second between two threads over one loopback connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    block = memoryview(bytearray(CHUNK_SLICE))

    def send() -> None:
        with sender:
            for _ in range(SOCKET_BYTES // len(block)):
                sender.sendall(block)

    thread = threading.Thread(target=send, daemon=True)
    into = memoryview(bytearray(CHUNK_SLICE))
    started = time.perf_counter()
    thread.start()
    with receiver:
        while receiver.recv_into(into):
            pass
    spent = time.perf_counter() - started
    thread.join()
    return SOCKET_BYTES / spent


def _noise(seed: int) -> F32:
    piece = np.random.default_rng(seed).standard_normal(1_000_003, dtype=np.float32)
    return np.resize(piece, SAMPLE_VALUES)


def _best(work: Callable[[], object], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
