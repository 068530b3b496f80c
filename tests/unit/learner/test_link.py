"""What a learner holds of the syncer's messages: monotonic broadcasts, the final cut, SHUTDOWN, epochs."""

from __future__ import annotations

import pytest

from yeto_learner.core.link import Link
from yeto_learner.core.records import BcastFragment, FinalManifest, PullRequest
from yeto_proto._generated import messages as wire
from yeto_proto._generated.errors import (
    ConflictingBroadcast,
    ConflictingManifest,
    EarlyShutdown,
    SessionRejected,
    UnexpectedType,
    WrongState,
)
from yeto_proto._generated.types import Dtype
from yeto_proto.layout import build_layout
from yeto_proto.session import Session

LAYOUT = build_layout({"a": 4, "b": 4}, 2)
SESSION = Session(Dtype.F32, LAYOUT.wire(), LAYOUT.fingerprint(), bytes(32), None)


def connected(*, rewound: bool = False) -> Link:
    link = Link(SESSION, accept_rewound_catch_up=rewound)
    link.connect(11)
    return link


def redial(link: Link, generation: int) -> None:
    link.disconnect(link.epoch)
    link.connect(generation)


def receive(link: Link, message: wire.Message, epoch: int | None = None) -> None:
    digest = bytes(message.tensor) if isinstance(message, wire.BcastFragment | wire.FinalFragment) else b""
    link.receive(link.epoch if epoch is None else epoch, message, digest, 1.0)


def bcast(version: int, fill: bytes = b"x", fragment: int = 0) -> wire.BcastFragment:
    return wire.BcastFragment(fragment, version, fill * 16)


def final(version: int, fill: bytes = b"x", fragment: int = 0) -> wire.FinalFragment:
    return wire.FinalFragment(fragment, version, fill * 16)


def versions(link: Link) -> list[int]:
    return [update.version for update in link.take_updates()]


def test_every_accepted_broadcast_is_kept_in_order() -> None:
    link = connected()
    for version in (0, 1, 4):
        receive(link, bcast(version))
    assert versions(link) == [0, 1, 4]
    assert versions(link) == []


@pytest.mark.rule("bcast_fragment.version.replay")
def test_a_lower_version_is_dropped() -> None:
    link = connected()
    receive(link, bcast(4))
    receive(link, bcast(3, b"other"))
    assert versions(link) == [4]


@pytest.mark.rule("bcast_fragment.version.replay")
def test_an_identical_replay_is_dropped_and_a_conflict_is_fatal() -> None:
    link = connected()
    receive(link, bcast(4))
    receive(link, bcast(4))
    assert versions(link) == [4]
    with pytest.raises(ConflictingBroadcast) as caught:
        receive(link, bcast(4, b"y"))
    assert caught.value.rule == "bcast_fragment.version.replay"


def test_the_versions_survive_a_redial() -> None:
    link = connected()
    receive(link, bcast(4))
    redial(link, 12)
    receive(link, bcast(3, b"y"))
    receive(link, bcast(4))
    assert versions(link) == [4]


def test_the_first_broadcast_of_each_fragment_after_a_redial_is_a_catch_up() -> None:
    link = connected()
    receive(link, bcast(1))
    redial(link, 12)
    for version in (2, 3):
        receive(link, bcast(version))
    receive(link, bcast(2, fragment=1))
    flags = [(update.fragment_id, update.version, update.catch_up) for update in link.take_updates()]
    assert flags == [(0, 1, False), (0, 2, True), (0, 3, False), (1, 2, True)]


@pytest.mark.rule("learner.catch_up.rewound")
@pytest.mark.parametrize(("version", "fill"), [(3, b"y"), (4, b"y")])
def test_a_rewound_catch_up_is_taken_once_when_that_is_asked_for(version: int, fill: bytes) -> None:
    link = connected(rewound=True)
    receive(link, bcast(4))
    redial(link, 12)
    receive(link, bcast(version, fill))
    receive(link, bcast(version - 1, b"z"))  # no longer the first one: dropped as ever
    assert versions(link) == [4, version]
    with pytest.raises(ConflictingBroadcast):
        receive(link, bcast(version, b"w"))


def test_without_the_option_a_rewound_catch_up_is_dropped_or_fatal() -> None:
    link = connected()
    receive(link, bcast(4))
    redial(link, 12)
    receive(link, bcast(3))
    assert versions(link) == [4]
    redial(link, 13)
    with pytest.raises(ConflictingBroadcast):
        receive(link, bcast(4, b"y"))


def test_a_replay_in_the_catch_up_uses_the_flag_up() -> None:
    link = connected(rewound=True)
    receive(link, bcast(4))
    redial(link, 12)
    receive(link, bcast(4))
    receive(link, bcast(3, b"y"))
    assert versions(link) == [4]


def test_pulls_are_kept_in_order_and_never_doubled_away() -> None:
    link = connected()
    for attempt in (1, 1, 2):
        receive(link, wire.PullReq(0, 1, attempt))
    assert link.take_pulls() == [PullRequest(0, 1, 1), PullRequest(0, 1, 1), PullRequest(0, 1, 2)]


def test_a_disconnect_drops_pulls_and_keeps_broadcasts_and_the_final_cut() -> None:
    link = connected()
    receive(link, wire.PullReq(0, 1, 1))
    receive(link, bcast(0))
    receive(link, final(9))
    receive(link, wire.FinalManifest(9, (9, 8)))
    link.disconnect(link.epoch)
    assert link.take_pulls() == []
    assert versions(link) == [0]
    assert link.finals[0].version == 9
    assert link.manifest == FinalManifest(9, (9, 8))


def test_messages_of_an_older_epoch_are_ignored() -> None:
    link = connected()
    old = link.epoch
    redial(link, 12)
    receive(link, wire.PullReq(0, 1, 1), epoch=old)
    receive(link, bcast(0), epoch=old)
    receive(link, wire.FinalManifest(9, (9, 8)), epoch=old)
    assert link.take_pulls() == []
    assert versions(link) == []
    assert link.manifest is None


def test_the_epoch_goes_up_at_each_connect_and_disconnect() -> None:
    link = connected()
    assert link.epoch == 1
    link.disconnect(1)
    assert link.epoch == 2
    link.disconnect(1)  # an older one changes nothing
    assert link.epoch == 2
    assert link.connect(12) == 3
    with pytest.raises(WrongState):
        link.connect(13)


@pytest.mark.rule("final_fragment.version.replay")
def test_final_fragments_have_a_memory_of_their_own() -> None:
    link = connected()
    receive(link, bcast(9, b"b"))
    receive(link, final(9, b"f"))  # same version, other bytes, no conflict
    receive(link, final(9, b"f"))
    receive(link, final(8, b"o"))  # lower: dropped
    assert [update.version for update in link.take_updates()] == [9]
    assert bytes(link.finals[0].data) == b"f" * 16
    with pytest.raises(ConflictingBroadcast) as caught:
        receive(link, final(9, b"g"))
    assert caught.value.rule == "final_fragment.version.replay"


def test_a_broadcast_never_stands_in_for_a_final_fragment() -> None:
    link = connected()
    receive(link, bcast(9))
    receive(link, final(8, fragment=1))
    receive(link, wire.FinalManifest(9, (9, 8)))
    assert link.missing_finals() == [(0, 9, None)]
    receive(link, final(7))
    assert link.missing_finals() == [(0, 9, 7)]
    receive(link, final(9))
    assert link.missing_finals() == []


def test_what_is_missing_needs_a_manifest() -> None:
    with pytest.raises(WrongState):
        connected().missing_finals()


@pytest.mark.rule("final_manifest.same")
def test_a_second_manifest_must_be_the_same() -> None:
    link = connected()
    receive(link, wire.FinalManifest(9, (9, 8)))
    receive(link, wire.FinalManifest(9, (9, 8)))
    with pytest.raises(ConflictingManifest) as caught:
        receive(link, wire.FinalManifest(9, (9, 7)))
    assert caught.value.rule == "final_manifest.same"


@pytest.mark.rule("shutdown.acknowledged")
def test_shutdown_needs_the_acknowledgement_of_the_held_manifest() -> None:
    link = connected()
    with pytest.raises(EarlyShutdown, match="legacy SHUTDOWN"):
        receive(link, wire.Shutdown())
    receive(link, wire.FinalManifest(9, (9, 8)))
    with pytest.raises(EarlyShutdown):
        receive(link, wire.Shutdown())
    link.start_ack(FinalManifest(9, (9, 8)))
    receive(link, wire.Shutdown())
    assert link.shutdown


def test_only_the_held_manifest_can_be_acknowledged() -> None:
    link = connected()
    with pytest.raises(WrongState):
        link.start_ack(FinalManifest(9, (9, 8)))
    receive(link, wire.FinalManifest(9, (9, 8)))
    with pytest.raises(WrongState):
        link.start_ack(FinalManifest(8, (7, 8)))
    assert not link.ack_started


def test_an_error_frame_carries_its_text() -> None:
    with pytest.raises(SessionRejected) as caught:
        receive(connected(), wire.Error("session mismatch: dtype"))
    assert caught.value.detail == "session mismatch: dtype"


def test_what_a_syncer_never_sends_is_refused() -> None:
    with pytest.raises(UnexpectedType):
        receive(connected(), wire.Heartbeat(0, 1))


def test_bytes_that_wait_are_counted() -> None:
    link = connected()
    receive(link, bcast(0))
    receive(link, bcast(0, fragment=1))
    assert link.update_bytes == 32
    assert link.take_update() == BcastFragment(0, 0, b"x" * 16)
    assert link.update_bytes == 32  # the one in hand still counts
    assert link.take_update() == BcastFragment(1, 0, b"x" * 16)
    assert link.update_bytes == 16
    assert link.take_update() is None
    assert link.update_bytes == 0
    link.drop_updates()
    receive(link, bcast(1))
    assert (link.update_bytes, link.take_update()) == (0, None)
    with pytest.raises(ConflictingBroadcast):
        receive(link, bcast(1, b"y"))  # still judged


def test_budget_mode_forgets_versions_once() -> None:
    link = connected()
    receive(link, bcast(9))
    link.forget_at_disconnect()
    redial(link, 12)
    receive(link, bcast(4, b"y"))
    assert versions(link) == [4]
    redial(link, 13)
    receive(link, bcast(3, b"z"))
    assert versions(link) == []
