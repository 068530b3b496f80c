"""Addresses whose handshakes fail too often."""

from __future__ import annotations

import pytest

from yeto_syncer.shell.doorman import REMEMBERED, WINDOW_S, Doorman


def test_so_many_failures_are_allowed_and_the_one_that_is_too_many_is_told_once() -> None:
    doorman = Doorman(3)
    assert [doorman.failed("10.0.0.1", 0.0) for _ in range(5)] == [False, False, True, False, False]
    assert doorman.turns_away("10.0.0.1", 0.0)
    assert not doorman.turns_away("10.0.0.2", 0.0)


def test_failures_are_forgiven_one_by_one() -> None:
    doorman = Doorman(3)
    for _ in range(3):
        doorman.failed("10.0.0.1", 0.0)
    assert doorman.turns_away("10.0.0.1", WINDOW_S / 3 - 0.1)
    assert not doorman.turns_away("10.0.0.1", WINDOW_S / 3 + 0.1)
    assert not doorman.failed("10.0.0.1", WINDOW_S / 3 + 0.1)
    assert doorman.turns_away("10.0.0.1", WINDOW_S / 3 + 0.2)


def test_after_a_quiet_time_everything_is_forgotten_and_told_anew() -> None:
    doorman = Doorman(1)
    assert doorman.failed("10.0.0.1", 0.0)
    assert not doorman.turns_away("10.0.0.1", 2 * WINDOW_S)
    assert doorman.failed("10.0.0.1", 2 * WINDOW_S)


def test_an_address_that_a_learner_came_from_is_never_turned_away() -> None:
    doorman = Doorman(1)
    doorman.failed("10.0.0.1", 0.0)
    assert doorman.turns_away("10.0.0.1", 0.0)
    doorman.admitted("10.0.0.1")
    assert not doorman.turns_away("10.0.0.1", 0.0)
    assert not doorman.failed("10.0.0.1", 0.0)


def test_no_limit() -> None:
    doorman = Doorman(0)
    assert not any(doorman.failed("10.0.0.1", 0.0) for _ in range(1000))
    assert not doorman.turns_away("10.0.0.1", 0.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_what_counts_of_an_ipv6_address(one: str, other: str, same: bool) -> None:
    doorman = Doorman(1)
    doorman.failed(one, 0.0)
    assert doorman.turns_away(other, 0.0) == same


def test_the_memory_is_bounded() -> None:
    doorman = Doorman(1)
    for number in range(3 * REMEMBERED):
        doorman.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
        doorman.admitted(f"11.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(doorman._accounts) == REMEMBERED
    assert len(doorman._known) == REMEMBERED
