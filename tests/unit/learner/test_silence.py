"""`Silence`: when a syncer that says nothing is taken for one without parameters."""

from __future__ import annotations

from yeto_learner.core.silence import Silence


def test_it_lasts_from_the_first_look_at_a_connection() -> None:
    silence = Silence(60.0)
    assert not silence.lasts(100.0, 3, silent=True)
    assert not silence.lasts(159.9, 3, silent=True)
    assert silence.lasts(160.0, 3, silent=True)
    assert silence.lasts(999.0, 3, silent=True)


def test_another_connection_begins_anew() -> None:
    silence = Silence(60.0)
    assert not silence.lasts(100.0, 3, silent=True)
    assert not silence.lasts(200.0, 5, silent=True)
    assert silence.lasts(260.0, 5, silent=True)


def test_whatever_comes_ends_it() -> None:
    silence = Silence(60.0)
    assert not silence.lasts(100.0, 3, silent=True)
    assert not silence.lasts(170.0, 3, silent=False)
    assert not silence.lasts(171.0, 3, silent=True)
    assert silence.lasts(231.0, 3, silent=True)


def test_no_patience() -> None:
    silence = Silence(0.0)
    assert silence.lasts(100.0, 3, silent=True)
    assert not silence.lasts(100.0, 3, silent=False)


def test_a_part_of_a_message_begins_the_patience_anew() -> None:
    silence = Silence(60.0)
    assert not silence.lasts(100.0, 3, silent=True, received=5)
    assert not silence.lasts(160.0, 3, silent=True, received=6)
    assert not silence.lasts(219.9, 3, silent=True, received=6)
    assert silence.lasts(220.0, 3, silent=True, received=6)
