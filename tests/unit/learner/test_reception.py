"""The memory of received broadcasts: one block is used again, and none lies idle beside one that is lent."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from yeto_learner.reception import SMALLEST, ReceptionMemory

SIZE = 4 * SMALLEST


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def test_one_after_the_other_gets_the_same_memory() -> None:
    memory = ReceptionMemory()
    first = memory.take(SIZE)
    first[:] = bytes(SIZE)
    where = address(first)
    del first
    assert memory.idle == SIZE
    second = memory.take(SIZE - 100)  # a fragment that is a little smaller
    assert address(second) == where and len(second) == SIZE - 100 and memory.idle == 0


def test_a_buffer_comes_back_when_its_last_view_is_gone() -> None:
    memory = ReceptionMemory()
    values = np.frombuffer(memory.take(SIZE), np.float32)[10:20]
    gc.collect()
    assert memory.idle == 0
    del values
    assert memory.idle == SIZE


def test_what_comes_back_while_another_is_lent_is_not_kept() -> None:
    memory = ReceptionMemory()
    installed, arriving = memory.take(SIZE), memory.take(SIZE)
    assert address(installed) != address(arriving)
    del installed
    assert memory.idle == 0
    third = memory.take(SIZE)
    del arriving, third
    assert memory.idle == SIZE  # the last one


@pytest.mark.parametrize("size", [SIZE // 2, SIZE + 1, 2 * SIZE])
def test_another_size_gets_memory_of_its_own_and_the_idle_block_goes(size: int) -> None:
    memory = ReceptionMemory()
    first = memory.take(SIZE)
    del first
    other = memory.take(size)
    assert len(other) == size and memory.idle == 0
    del other
    assert memory.idle == size


def test_small_buffers_are_left_to_the_allocator() -> None:
    memory = ReceptionMemory()
    small = memory.take(SMALLEST - 1)
    assert len(small) == SMALLEST - 1
    del small
    assert memory.idle == 0


def test_a_size_that_cannot_be_had_leaves_nothing_lent() -> None:
    memory = ReceptionMemory()
    with pytest.raises((MemoryError, ValueError)):
        memory.take(1 << 62)
    buffer = memory.take(SIZE)
    del buffer
    assert memory.idle == SIZE


def test_threads_never_share_a_block() -> None:
    memory = ReceptionMemory()
    torn: list[int] = []

    def work(mark: int) -> None:
        for _ in range(200):
            values = np.frombuffer(memory.take(SMALLEST), np.uint8)
            values[::4096] = mark
            if (values[::4096] != mark).any():
                torn.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torn and memory.idle in (0, SMALLEST)
