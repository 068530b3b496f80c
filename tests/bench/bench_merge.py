"""How fast fragments merge, beside memcpy, and how much memory they need beyond their result.

A merge must read every push, the parameters and the momentum once and write the last two once; `value` is
those bytes by the time taken, `raw` the bytes a second that `np.copyto` copies, and `ratio` one by the other
(`quality.md`). Figures are medians over repetitions, raw and merge taken in turn.
"""

from __future__ import annotations

import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yeto_proto import dtypes
from yeto_proto._generated.sizes import push_bytes
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_proto.pool import BufferPool
from yeto_syncer.core import merge
from yeto_syncer.core.jobs import Accumulator, Answer, FoldJob, Link, MergeJob, MergeTensors

F32 = NDArray[np.float32]

NUMEL = 1 << 26
LEARNERS = 4
TENSORS = 4
REPEATS = 5
THREADS = (1, 2)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def counted(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def long_noise(seed: int, numel: int) -> F32:
    """Cheap to make: one piece of noise over and over, of a length that divides no block."""
    piece = np.random.default_rng(seed).standard_normal(1_000_003, dtype=np.float32)
    return np.resize(piece, numel)


def job(mode: MergeMode, dtype: Dtype, correction: bool, numel: int) -> MergeJob:
    """Of the four gradients two oppose the momentum a little and two agree a little: all are corrected."""
    momentum = long_noise(99, numel)
    memory = BufferPool()
    answers = []
    for learner in range(LEARNERS):
        delta = long_noise(learner, numel)
        delta += momentum * np.float32((-1) ** learner * 0.05)
        wire = memory.take(push_bytes(dtype, numel))  # a large push is received into memory of the pool
        dtypes.encode(dtype, delta, wire)
        answers.append(Answer(Link(learner, 1), 1000.0 + learner, dtype, wire))
    layout = MergeTensors(mode, np.full(TENSORS, numel // TENSORS, np.uint64), None)
    params = long_noise(100, numel)
    return MergeJob(1, 1, 0, params, momentum, layout, tuple(answers), 0.7, 0.9, correction)


def merge_rows(
    name: str, mode: MergeMode, dtype: Dtype, correction: bool, target: float | None, numel: int
) -> list[dict[str, Any]]:
    todo = job(mode, dtype, correction, numel)
    touched = LEARNERS * push_bytes(dtype, numel) + 4 * 4 * numel
    source, copy = np.ones(numel, np.float32), np.ones(numel, np.float32)
    rows = []
    for threads in THREADS:
        memory = BufferPool()  # as in the syncer: a result is written where an older one stood
        with ThreadPoolExecutor(threads) as pool:

            def run(map: merge.Map = pool.map, empty: merge.Empty = memory.empty) -> None:
                assert merge.run(todo, map, empty=empty) is not None

            run()
            values, raws = [], []
            for _ in range(REPEATS):
                raws.append(source.nbytes / seconds(lambda: np.copyto(copy, source)) / 1e9)
                values.append(touched / seconds(run) / 1e9)
            tracemalloc.start()
            run(empty=BufferPool().empty)
            peak = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
        result = 8 * numel / 2**20
        work = f"{name}, {numel / 1e6:.0f}M values, {counted(threads)}"
        ratio = statistics.median(value / raw for value, raw in zip(values, raws, strict=True))
        rows.append(
            {
                "work": work,
                "value": statistics.median(values),
                "unit": "GB/s",
                "raw": statistics.median(raws),
                "ratio": ratio,
                "target": target,
                "threads": threads,
            }
        )
        rows.append(
            {
                "work": f"peak memory: {work}",
                "value": peak,
                "unit": "MiB",
                "raw": result,
                "ratio": peak / result,
                "target": None,
                "threads": threads,
            }
        )
    return rows


def fold_rows(numel: int) -> list[dict[str, Any]]:
    """One answer folded on arrival: its values and the sums are read, the sums written."""
    todo = job(MergeMode.AVG, Dtype.F32, False, numel)
    source, copy = np.ones(numel, np.float32), np.ones(numel, np.float32)
    rows = []
    for threads in THREADS:
        memory = BufferPool()
        with ThreadPoolExecutor(threads) as pool:
            sums = Accumulator(todo.tensors)

            def fold(number: int, into: Accumulator = sums, map: merge.Map = pool.map) -> None:
                answer = todo.answers[number % LEARNERS]
                one = FoldJob(1, 1, 0, todo.momentum, todo.tensors, answer, False, into)
                merge.fold(one, map, memory.empty)  # noqa: B023  # called in this turn of the loop only

            fold(0)
            raws, values = [], []
            for number in range(1, 1 + REPEATS):
                raws.append(source.nbytes / seconds(lambda: np.copyto(copy, source)) / 1e9)
                values.append(3 * 4 * numel / seconds(lambda n=number: fold(n)) / 1e9)
        rows.append(
            {
                "work": f"fold of one f32 answer, {numel / 1e6:.0f}M values, {counted(threads)}",
                "value": statistics.median(values),
                "unit": "GB/s",
                "raw": statistics.median(raws),
                "ratio": statistics.median(v / r for v, r in zip(values, raws, strict=True)),
                "target": None,
                "threads": threads,
            }
        )
    return rows


def iso_rows(size: int = 768) -> list[dict[str, Any]]:
    """Four square matrices, beside their bare decomposition (BLAS at one thread in both)."""
    rng = np.random.default_rng(0)
    numel = TENSORS * size * size
    layout = MergeTensors(
        MergeMode.ISO, np.full(TENSORS, size * size, np.uint64), np.full((TENSORS, 2), size, np.uint64)
    )
    delta = rng.standard_normal(numel, dtype=np.float32)
    answers = (Answer(Link(0, 1), 1.0, Dtype.F32, delta.tobytes()),)
    zeros = np.zeros(numel, np.float32)
    todo = MergeJob(1, 1, 0, zeros, zeros, layout, answers, 0.7, 0.9, correction=True)
    matrices = delta.astype(np.float64).reshape(TENSORS, size, size)
    rows = []
    for threads in THREADS:
        with ThreadPoolExecutor(threads) as pool:
            merge.iso(np.eye(2, dtype=np.float32))
            raw = seconds(lambda: [np.linalg.svd(one, full_matrices=False) for one in matrices])
            value = seconds(lambda map=pool.map: merge.run(todo, map))
        rows.append(
            {
                "work": f"iso of {TENSORS} matrices {size} x {size} beside serial SVDs, {counted(threads)}",
                "value": value,
                "unit": "s",
                "raw": raw,
                "ratio": raw / value,
                "target": None,
                "threads": threads,
            }
        )
    return rows


def rows(numel: int = NUMEL) -> list[dict[str, Any]]:
    avg, rda = MergeMode.AVG, MergeMode.RDA
    return [
        *merge_rows("avg of 4 learners + Nesterov, f32", avg, Dtype.F32, False, 0.5, numel),
        *merge_rows("avg of 4 learners + Nesterov, bf16", avg, Dtype.BF16, False, None, numel),
        *merge_rows("avg of 4 learners + Nesterov, q4", avg, Dtype.Q4, False, None, numel),
        *merge_rows("RDA of 4 learners, f32", rda, Dtype.F32, False, None, numel),
        *merge_rows("RDA of 4 learners with HeLoCo, f32", rda, Dtype.F32, True, 0.08, numel),
        *fold_rows(numel),
        *iso_rows(),
    ]


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1))
