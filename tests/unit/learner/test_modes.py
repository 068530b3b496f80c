"""How broadcasts are installed: every row of the two tables of revision 2, section 7."""

from __future__ import annotations

import pytest

from yeto_learner.core.modes import InstallMode, live_install_mode, resume_install_mode

A, S, B, W, C = (
    InstallMode.ANCHOR_ONLY,
    InstallMode.SHIFT,
    InstallMode.BLEND,
    InstallMode.OVERWRITE,
    InstallMode.CONFIRM,
)


@pytest.mark.parametrize(
    ("version", "catch_up", "same_bytes", "pushed", "mode"),
    [
        (5, True, True, True, C),  # a replay is only confirmed
        (5, False, True, False, C),
        (5, True, False, False, S),  # the same number with other bytes, after a rewind
        (5, True, False, True, S),
        (6, True, False, False, S),
        (6, True, False, True, B),  # the newer global may hold the pushed delta
        (4, True, False, False, S),
        (4, True, False, True, S),  # an older one cannot
        (6, False, False, False, B),  # whatever is not a catch-up
        (6, False, False, True, B),
    ],
)
@pytest.mark.rule("learner.install.live")
def test_a_running_learner_follows_table_7_3(
    version: int, catch_up: bool, same_bytes: bool, pushed: bool, mode: InstallMode
) -> None:
    chosen = live_install_mode(
        version=version, anchor_version=5, catch_up=catch_up, same_bytes=same_bytes, pushed=pushed
    )
    assert chosen is mode


@pytest.mark.parametrize(
    ("version", "recorded", "anchor_saved", "pushed", "mode"),
    [
        (5, 5, False, False, A),
        (5, 5, True, True, A),
        (6, 5, True, False, S),
        (6, 5, True, True, W),
        (4, 5, True, False, S),
        (4, 5, True, True, S),
        (6, 5, False, False, W),
        (4, 5, False, False, W),  # no anchor to shift from
        (0, None, False, False, W),
        (9, None, True, False, W),
    ],
)
@pytest.mark.rule("learner.install.resumed")
def test_a_restarted_learner_follows_table_7_2(
    version: int, recorded: int | None, anchor_saved: bool, pushed: bool, mode: InstallMode
) -> None:
    chosen = resume_install_mode(
        version=version, recorded_version=recorded, anchor_saved=anchor_saved, pushed=pushed
    )
    assert chosen is mode


def test_counters_go_on_exactly_where_local_progress_does() -> None:
    assert {mode for mode in InstallMode if mode.keeps_counters} == {A, S, C}
