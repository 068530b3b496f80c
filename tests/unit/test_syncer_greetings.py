"""The memory that strangers may take before anybody knows who they are."""

from __future__ import annotations

import random

import pytest

from yeto_proto._generated.constants import HELLO_MAX
from yeto_syncer.shell.greetings import BUDGET, MODERATE, SMALL, Greetings


def test_small_ones_never_wait() -> None:
    greetings = Greetings(budget=0)
    assert all(greetings.ask(conn, SMALL) for conn in range(1000))
    assert greetings.held == 0
    assert greetings.leave(3) == []


def test_large_ones_wait_for_those_before_them_to_leave() -> None:
    greetings = Greetings()
    assert [greetings.ask(conn, HELLO_MAX) for conn in range(5)] == [True, True, True, False, False]
    assert greetings.held == 3 * HELLO_MAX
    assert greetings.leave(4) == [], "it has only waited"
    assert greetings.leave(1) == [3]
    assert greetings.leave(0) == []
    assert greetings.held == 2 * HELLO_MAX


def test_the_longest_cannot_keep_out_those_of_real_layouts() -> None:
    greetings = Greetings()
    for conn in range(100):
        greetings.ask(conn, HELLO_MAX)
    assert greetings.ask(1000, MODERATE)
    assert not greetings.ask(1001, MODERATE + 1)


def test_nobody_is_overtaken_for_ever() -> None:
    greetings = Greetings(budget=4 * MODERATE)
    assert greetings.ask(1, 2 * MODERATE)
    assert not greetings.ask(2, 3 * MODERATE)
    assert not greetings.ask(3, MODERATE + 1), "it would fit, and so would the next, and the next"
    assert greetings.leave(1) == [2]
    assert greetings.leave(2) == [3]


@pytest.mark.parametrize("seed", range(20))
def test_never_more_than_the_budget_and_all_get_their_turn(seed: int) -> None:
    chance = random.Random(seed)
    greetings = Greetings()
    sizes = {conn: chance.randint(1, HELLO_MAX) for conn in range(60)}
    receiving = {conn for conn, size in sizes.items() if greetings.ask(conn, size)}
    served: set[int] = set()
    while receiving:
        conn = chance.choice(sorted(receiving))
        receiving.remove(conn)
        served.add(conn)
        receiving.update(greetings.leave(conn))
        held = sum(sizes[other] for other in receiving if sizes[other] > SMALL)
        assert greetings.held == held <= BUDGET
    assert served == set(sizes)
