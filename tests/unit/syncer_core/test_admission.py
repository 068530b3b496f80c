"""HELLO and DATA_HELLO: the order of the checks, the session, retired generations, early data streams."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.driver import Driver, Peer, layout_of
from yeto_proto._generated.errors import (
    BadCounter,
    BadMagic,
    BadScale,
    DuplicateGeneration,
    DuplicateStream,
    HandshakeTimeout,
    LearnerOutOfRange,
    NonFinite,
    ProfileMismatch,
    ProfileMissing,
    RetiredGeneration,
    SessionMismatch,
    StreamOutOfBounds,
    UnknownGroup,
)
from yeto_proto._generated.messages import DataHello, Error, Heartbeat
from yeto_proto._generated.types import Dtype
from yeto_proto.errors_base import YetoError
from yeto_proto.probe import NOBODY
from yeto_syncer.core.config import Config
from yeto_syncer.core.coordinator import Phase
from yeto_syncer.core.effects import Accept, Attach, CloseConn, Count, Log, Refuse, Send
from yeto_syncer.core.events import DataHelloReceived, Disconnected, Received, Refused


def driver(**settings: Any) -> Driver:
    return Driver(Config(**{"learners": 3, "total_steps": 4, "quorum": 2, **settings}))


@pytest.mark.rule("hello.learner_id.must")
def test_a_learner_outside_the_launch_set_is_refused() -> None:
    run = driver()
    peer = Peer(run, 3, 1)
    assert isinstance(peer.refused, LearnerOutOfRange)
    assert not run.of(Accept)


def test_a_probe_is_answered_without_a_warning() -> None:
    """The HELLO of `yeto-learner doctor`, which no learner can send."""
    run = driver()
    assert isinstance(Peer(run, NOBODY, 1).refused, LearnerOutOfRange)
    assert [each.level for each in run.of(Log)] == ["info"]
    Peer(run, 3, 1)
    assert [each.level for each in run.of(Log)] == ["info", "warning"]


def test_acceptance_is_silent() -> None:
    peer = Peer(driver(), 0, 7)
    assert peer.connected
    assert not peer.driver.inbox[peer.link]


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": Dtype.BF16},
        {"layout": layout_of(4)},
        {"fingerprint": bytes(32)},
        {"contract": bytes(32)},
    ],
)
@pytest.mark.rule("hello.layout.session")
@pytest.mark.rule("hello.dtype.session")
@pytest.mark.rule("hello.layout_fingerprint.session")
@pytest.mark.rule("hello.session_contract_hash.session")
def test_the_first_hello_fixes_the_session(other: dict[str, Any]) -> None:
    run = driver()
    first = Peer(run, 0, 1)
    second = Peer(run, 1, 1, **other)
    assert isinstance(second.refused, SessionMismatch)
    assert str(second.refused).startswith("session mismatch")
    first.close()
    assert isinstance(Peer(run, 1, 2, **other).refused, SessionMismatch), (
        "the session outlives its first learner"
    )
    assert Peer(run, 1, 3).connected


def test_a_refused_hello_fixes_nothing() -> None:
    run = driver()
    assert isinstance(Peer(run, 9, 1, contract=bytes(32)).refused, LearnerOutOfRange)
    assert Peer(run, 0, 1).connected


@pytest.mark.rule("hello.syncer_profile_hash.matches")
@pytest.mark.rule("hello.syncer_profile_hash.session")
def test_an_offered_profile_must_be_right_also_without_binding() -> None:
    run = driver()
    assert isinstance(Peer(run, 0, 1, profile=bytes(32)).refused, ProfileMismatch)
    bound = Peer(run, 0, 2, profile=run.core.profile_hash)
    assert bound.connected
    assert isinstance(Peer(run, 1, 1).refused, SessionMismatch), (
        "bound and unbound clients never share a session"
    )


@pytest.mark.rule("hello.syncer_profile_hash.required")
def test_binding_refuses_clients_without_a_profile() -> None:
    run = driver(require_profile_binding=True)
    assert isinstance(Peer(run, 0, 1).refused, ProfileMissing)
    assert Peer(run, 0, 2, profile=run.core.profile_hash).connected


def test_profile_before_session_before_generation() -> None:
    run = driver()
    Peer(run, 0, 1)
    assert isinstance(Peer(run, 0, 1, profile=bytes(32), contract=bytes(32)).refused, ProfileMismatch)
    assert isinstance(Peer(run, 0, 1, contract=bytes(32)).refused, SessionMismatch)
    assert isinstance(Peer(run, 0, 1).refused, DuplicateGeneration)


@pytest.mark.rule("hello.connection_generation.connected")
def test_a_duplicate_generation_leaves_the_live_group_alone() -> None:
    run = driver()
    first = Peer(run, 0, 5)
    second = Peer(run, 0, 5)
    assert isinstance(second.refused, DuplicateGeneration)
    assert first.connected
    first.heartbeat(1)
    assert first.refused is None


@pytest.mark.rule("hello.connection_generation.retired")
def test_a_generation_never_comes_back() -> None:
    run = driver()
    Peer(run, 0, 5).close()
    assert isinstance(Peer(run, 0, 5).refused, RetiredGeneration)
    assert Peer(run, 0, 4).connected, "generations need not ascend"
    assert Peer(run, 1, 5).connected, "another learner may use the same number"


def test_a_new_generation_supersedes_and_the_old_socket_stays_open() -> None:
    run = driver()
    old, new = Peer(run, 0, 1), Peer(run, 0, 2)
    assert old.connected and new.connected
    assert run.logged("superseded by a newer connection of the same learner id")
    old.close()
    assert new.connected


def test_every_refusal_is_counted_by_reason() -> None:
    run = driver()
    Peer(run, 3, 1)
    Peer(run, 4, 1)
    assert run.counted("connections_refused", reason="LearnerOutOfRange") == 2


# -- data streams --------------------------------------------------------------------------------------------


@pytest.mark.rule("data_hello.stream_idx.must")
@pytest.mark.rule("data_hello.stream_idx.free")
def test_stream_indices_count_from_zero_and_are_taken_once() -> None:
    run = driver()
    peer = Peer(run, 0, 1, num_streams=2)
    first = peer.data_stream(0)
    peer.data_stream(1)
    assert [(each.stream_idx, each.link) for each in run.of(Attach)] == [(0, peer.link), (1, peer.link)]
    assert isinstance(run.closed[peer.data_stream(2)], StreamOutOfBounds)
    assert isinstance(run.closed[peer.data_stream(1)], DuplicateStream)
    run.feed(Disconnected(first))
    assert isinstance(run.closed[peer.data_stream(0)], DuplicateStream), "taken for good in this generation"
    assert peer.connected, "the control connection survives"


def test_a_group_without_data_streams_takes_none() -> None:
    peer = Peer(driver(), 0, 1, num_streams=0)
    assert isinstance(peer.driver.closed[peer.data_stream(0)], StreamOutOfBounds)


def test_a_data_stream_may_come_before_its_hello() -> None:
    run = driver()
    early = [run.conn(), run.conn()]
    for index, conn in enumerate(early):
        run.feed(DataHelloReceived(conn, DataHello(0, 9, index)))
    run.wait(5.0)
    assert not run.of(Attach)
    peer = Peer(run, 0, 9, num_streams=1)
    assert [each.conn for each in run.of(Attach)] == early[:1]
    assert isinstance(run.closed[early[1]], StreamOutOfBounds)
    run.wait(100.0)
    assert peer.connected and early[0] not in run.closed


def test_an_early_data_stream_waits_for_the_handshake_time_only() -> None:
    run = driver(handshake_timeout_s=10.0)
    conn = run.conn()
    run.feed(DataHelloReceived(conn, DataHello(0, 9, 0)))
    run.wait(9.9)
    assert conn not in run.closed
    run.wait(0.2)
    assert isinstance(run.closed[conn], UnknownGroup)
    assert "unknown learner" in str(run.closed[conn])


def test_a_data_stream_of_a_generation_that_is_gone_is_refused_at_once() -> None:
    run = driver()
    Peer(run, 0, 9).close()
    conn = run.conn()
    run.feed(DataHelloReceived(conn, DataHello(0, 9, 0)))
    assert isinstance(run.closed[conn], UnknownGroup)


@pytest.mark.rule("data_hello.learner_id.must")
def test_a_data_stream_of_an_impossible_learner_is_refused_at_once() -> None:
    run = driver()
    conn = run.conn()
    run.feed(DataHelloReceived(conn, DataHello(3, 9, 0)))
    assert isinstance(run.closed[conn], LearnerOutOfRange)


def test_a_waiting_data_stream_that_closes_is_forgotten() -> None:
    run = driver()
    conn = run.conn()
    run.feed(DataHelloReceived(conn, DataHello(0, 9, 0)))
    run.feed(Disconnected(conn))
    Peer(run, 0, 9, num_streams=1)
    run.wait(60.0)
    assert not run.of(Attach) and not run.of(Refuse)


# -- handshake time and bad bytes ----------------------------------------------------------------------------


def test_a_silent_socket_is_closed_after_the_handshake_time() -> None:
    run = driver(handshake_timeout_s=10.0)
    silent = run.conn()
    run.wait(6.0)
    later = run.conn()
    admitted = Peer(run, 0, 1)
    run.wait(4.5)
    assert isinstance(run.closed[silent], HandshakeTimeout)
    assert later not in run.closed
    run.wait(10.0)
    assert isinstance(run.closed[later], HandshakeTimeout)
    assert admitted.connected


def test_bad_bytes_before_admission_end_that_socket() -> None:
    run = driver()
    other = Peer(run, 0, 1)
    conn = run.conn()
    run.feed(Refused(conn, BadMagic(detail="first frame")))
    assert isinstance(run.closed[conn], BadMagic)
    run.wait(60.0)
    assert len(run.of(Refuse)) == 1, "answered once"
    assert other.connected


def test_bad_bytes_on_the_control_stream_end_the_group_and_no_other() -> None:
    run = driver()
    peer, other = Peer(run, 0, 1, num_streams=1), Peer(run, 1, 1)
    peer.data_stream(0)
    run.feed(Refused(peer.conn, BadMagic()))
    assert isinstance(peer.refused, BadMagic)
    assert other.connected
    assert run.counted("learners_left", reason="BadMagic") == 1


@pytest.mark.rule("syncer.data_stream.error")
def test_bad_bytes_on_a_data_stream_end_that_socket_alone() -> None:
    run = driver()
    peer, other = Peer(run, 0, 1, num_streams=2), Peer(run, 1, 1)
    first, second = peer.data_stream(0), peer.data_stream(1)
    effects = run.feed(Refused(first, BadMagic(detail="seen 0")))
    assert [each for each in effects if not isinstance(each, Log | Count)] == [
        Send(peer.link, Error("bad magic: seen 0")),
        CloseConn(first),
    ], "the ERROR is on its way on the control stream before the socket ends"
    assert run.counted("data_streams_closed", reason="BadMagic") == 1
    assert peer.connected and other.connected and second not in run.closed
    run.feed(Disconnected(first))
    assert peer.connected, "its end is no news"
    conn = run.conn()
    run.feed(DataHelloReceived(conn, DataHello(0, 1, 0)))
    assert isinstance(run.closed[conn], DuplicateStream), "its index stays taken"
    peer.init()
    assert run.core.phase is Phase.WAITING and not run.tape("learner_left")


@pytest.mark.rule("syncer.data_stream.error")
def test_a_message_that_its_sender_may_not_send_ends_the_data_socket_that_brought_it() -> None:
    run = driver()
    peer = Peer(run, 0, 1, num_streams=1)
    data = peer.data_stream(0)
    effects = run.feed(Received(data, peer.link, Heartbeat(2, 1)))
    assert CloseConn(data) in effects and peer.connected
    assert isinstance(next(peer.messages(Error)), Error)


@pytest.mark.rule("syncer.data_stream.error")
def test_what_was_read_on_a_data_socket_before_it_could_be_closed_is_not_heard() -> None:
    """Effects may wait behind a checkpoint, and meanwhile the shell reads on."""
    run = driver()
    peer = Peer(run, 0, 1, num_streams=2)
    broken, good = peer.data_stream(0), peer.data_stream(1)
    run.feed(Received(broken, peer.link, Heartbeat(2, 1)))
    effects = run.feed(Received(broken, peer.link, Heartbeat(2, 2)), Refused(broken, BadMagic()))
    assert effects == []
    assert len(run.of(CloseConn)) == len(list(peer.messages(Error))) == 1, "answered once"
    assert CloseConn(good) in run.feed(Received(good, peer.link, Heartbeat(2, 3))), "the others are heard"


@pytest.mark.rule("syncer.data_stream.error")
@pytest.mark.parametrize(
    "error", [NonFinite(), BadScale(), BadCounter()], ids=lambda each: type(each).__name__
)
def test_values_and_counters_that_no_learner_may_send_end_the_group(error: YetoError) -> None:
    run = driver()
    peer, other = Peer(run, 0, 1, num_streams=1), Peer(run, 1, 1)
    run.feed(Refused(peer.data_stream(0), error))
    assert peer.refused is error
    assert other.connected


def test_a_lost_data_stream_leaves_its_group_connected() -> None:
    run = driver()
    peer = Peer(run, 0, 1, num_streams=1)
    run.feed(Disconnected(peer.data_stream(0)))
    assert peer.connected


def test_joins_and_leaves_are_on_the_tape() -> None:
    run = driver(event_tape="tape.jsonl")
    Peer(run, 1, 4).close()
    assert run.tape("learner_joined") == [{"event": "learner_joined", "id": 1, "generation": 4, "step": 0}]
    assert run.tape("learner_left") == [
        {"event": "learner_left", "id": 1, "generation": 4, "reason": "disconnected"}
    ]
