"""Buffers that are lent again: never while somebody still looks into them, and never more than before."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.numerics.jobs import random_job, same_bits
from yeto_proto._generated.types import MergeMode
from yeto_proto.pool import HEADROOM, SMALLEST, BufferPool
from yeto_syncer.core import merge

SIZE = 4 * SMALLEST - HEADROOM  # a whole size class


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only the count of references may give memory back."""
    gc.disable()
    yield
    gc.enable()


def test_memory_comes_back_when_the_last_view_is_gone() -> None:
    pool = BufferPool()
    view = pool.take(SIZE)
    first = address(view)
    values = np.frombuffer(view, np.float32)[5:10]
    deep = memoryview(values.view(np.uint8)[3:])
    del view, values
    assert (pool.lent, pool.idle) == (SIZE + HEADROOM, 0), "a view of a view of a view still holds it"
    assert address(pool.take(SIZE)) != first
    deep.release()
    del deep
    assert pool.lent == 0
    assert pool.idle == 2 * (SIZE + HEADROOM)
    assert {address(one) for one in (pool.take(SIZE), pool.take(SIZE))} >= {first}


def test_a_read_only_view_holds_its_memory_and_the_next_user_may_write() -> None:
    pool = BufferPool()
    held = pool.empty(SIZE // 4)
    held.flags.writeable = False
    assert not np.shares_memory(held, pool.empty(SIZE // 4))
    del held
    pool.empty(SIZE // 4)[:] = 1.0


def test_small_buffers_are_none_of_its_business() -> None:
    pool = BufferPool()
    held = pool.take(SMALLEST - 1)
    assert (len(held), pool.lent) == (SMALLEST - 1, 0)
    assert len(pool.take(0)) == 0


@pytest.mark.parametrize("size", [SIZE, SIZE + 1, SIZE + 12345, 100_000_001])
def test_a_buffer_has_the_size_that_was_asked_for_and_is_aligned_for_f32(size: int) -> None:
    pool = BufferPool()
    view = pool.take(size)
    assert len(view) == size
    assert address(view) % 4 == 0
    assert size <= pool.lent <= size + size // 8 + HEADROOM


def test_a_little_less_fits_too() -> None:
    pool = BufferPool()
    first = address(pool.take(SIZE + 1))
    assert address(pool.take(SIZE)) == first
    assert address(pool.take(SIZE // 2)) != first, "half of a block would waste the other half"


@pytest.mark.parametrize("values", [1 << 20, 1 << 24, 3 << 22, 10_000_000, 12_345_678])
def test_payloads_and_their_values_use_the_same_memory(values: int) -> None:
    pool = BufferPool()
    first = address(pool.take(4 * values + 70))
    assert pool.empty(values).ctypes.data == first
    assert address(pool.take(4 * values + 70)) == first


def test_what_no_memory_can_hold_is_refused_and_not_counted() -> None:
    pool = BufferPool()
    with pytest.raises((MemoryError, ValueError)):
        pool.take(1 << 62)
    assert (pool.lent, pool.idle, pool.peak) == (0, 0, 0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(SMALLEST, 3 * SMALLEST)), max_size=60))
def test_it_never_holds_more_than_was_once_lent(steps: list[tuple[int, int]]) -> None:
    pool = BufferPool()
    held: dict[int, memoryview] = {}
    peak = 0
    for slot, size in steps:
        if slot in held:
            del held[slot]
        else:
            held[slot] = pool.take(size)
            held[slot][0] = held[slot][-1] = slot
        lent = sum(map(len, held.values()))
        assert lent <= pool.lent <= (lent + HEADROOM * len(held)) * 1.2
        peak = max(peak, pool.lent)
        assert pool.lent + pool.idle <= pool.peak == peak
        assert all(view[0] == view[-1] == slot for slot, view in held.items()), "two share their memory"


def test_many_threads() -> None:
    pool = BufferPool()
    wrong: list[int] = []

    def work(number: int) -> None:
        for round_ in range(60):
            values = pool.empty(SMALLEST // 4 * (1 + round_ % 3))
            values[:] = number
            if not (values == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.lent == 0
    assert pool.idle <= pool.peak


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("mode", list(MergeMode))
@pytest.mark.parametrize("correction", [False, True])
def test_merges_use_the_memory_of_retired_results(mode: MergeMode, correction: bool) -> None:
    """And give the same bits in used memory, while older results are still looked at."""
    pool = BufferPool()
    job = random_job(3, mode, [(600, 700), (30, 40)], correction=correction)
    expected = merge.run(job)
    kept = merge.run(job, empty=pool.empty)
    again = merge.run(job, empty=pool.empty)
    assert kept is not None and again is not None
    assert not np.shares_memory(kept.params, again.params)
    assert same_bits(kept, expected) and same_bits(again, expected)
    peak = pool.peak
    again.params.flags.writeable = True
    again.params.fill(np.nan)
    for _ in range(3):
        again = merge.run(job, empty=pool.empty)
        assert same_bits(again, expected) and same_bits(kept, expected)
    del kept, again
    assert pool.lent == 0, "a cycle of references keeps a whole fragment until the collector comes"
    assert pool.peak <= peak + 10 * 2**20
