"""How a broadcast is installed: the two tables of revision 2, for a running and for a restarted learner."""

from __future__ import annotations

from enum import Enum

__all__ = ["InstallMode", "live_install_mode", "resume_install_mode"]


class InstallMode(Enum):
    """What an accepted broadcast does to the local values and to the anchor of its fragment."""

    CONFIRM = "confirm"  # the anchor's own version came again: nothing is written
    ANCHOR_ONLY = "anchor"  # the anchor is set, local values stay bit for bit, counters go on
    SHIFT = "shift"  # local = global_new + (local - anchor), anchor = global_new, counters go on
    BLEND = "blend"  # local = alpha * local + (1 - alpha) * global_new, anchor = global_new, counters restart
    OVERWRITE = "overwrite"  # local = anchor = global_new, counters restart

    @property
    def keeps_counters(self) -> bool:
        """True when the local progress since the old anchor is still there, so its counters must be too."""
        return self in (InstallMode.CONFIRM, InstallMode.ANCHOR_ONLY, InstallMode.SHIFT)


def live_install_mode(
    *, version: int, anchor_version: int, catch_up: bool, same_bytes: bool, pushed: bool
) -> InstallMode:
    """The mode for a learner that holds an anchor of the fragment (revision 2, 7.3).

    `pushed`: a delta taken from this anchor was sent, so a newer global may hold it already.  `same_bytes` is
    only looked at when the versions are equal.
    """
    if version == anchor_version and same_bytes:
        return InstallMode.CONFIRM
    if not catch_up:
        return InstallMode.BLEND
    if version > anchor_version and pushed:
        return InstallMode.BLEND
    return InstallMode.SHIFT


def resume_install_mode(
    *,
    version: int,
    recorded_version: int | None,
    anchor_saved: bool,
    pushed: bool,
    pushed_from: int | None = None,
) -> InstallMode:
    """The mode for the first broadcast of a fragment after a restart (revision 2, 7.2).

    `recorded_version` is None when there is no record of the fragment, or one of another layout.
    `pushed_from` is the lowest anchor version that something was pushed from after the record.  It may lie
    below the recorded one, of a syncer that had come back older: every newer global may hold the progress.
    """
    if recorded_version is None:
        return InstallMode.OVERWRITE
    if pushed_from is not None and version > pushed_from:
        return InstallMode.OVERWRITE
    if version == recorded_version:
        return InstallMode.ANCHOR_ONLY
    if not anchor_saved:
        return InstallMode.OVERWRITE
    if version > recorded_version and pushed:
        return InstallMode.OVERWRITE
    return InstallMode.SHIFT
