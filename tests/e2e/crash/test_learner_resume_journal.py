"""The journal beside a resume record, seen from the syncer: the record knows of a push by the time that it
arrives, and a push that cannot be noted does not leave."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tests.e2e.learner.rig import arrived, catch_up, flat, parameters, running, train, wait_until, wire_values
from tests.e2e.scripted_syncer import ScriptedSyncer
from yeto_learner import Learner
from yeto_learner.core.boundary import Boundary, RecordedFragment
from yeto_learner.core.modes import InstallMode
from yeto_learner.core.records import BcastFragment
from yeto_learner.journal import JournaledRecord
from yeto_learner.record import read_record, with_later_pushes
from yeto_proto._generated import messages as wire


def unpushed(path: Path) -> set[int]:
    record, trusted = with_later_pushes(read_record(path))
    assert trusted
    return record.unpushed


@pytest.mark.rule("learner.install.resumed")
def test_a_push_is_noted_before_it_arrives_and_not_added_again_by_who_comes_back(tmp_path: Path) -> None:
    arrays, path = parameters(), tmp_path / "sync.npz"
    with running(arrays) as (made, peer, _):
        train(arrays)
        made.step()
        made.save_state(path)
        saved = {name: array.copy() for name, array in arrays.items()}
        assert unpushed(path) == {0, 1}
        peer.send(wire.PullReq(0, 1, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step()
        peer.expect(wire.PushFragment)
        assert unpushed(path) == {1}
    raw, data = zip(*(wire_values(made, fragment, 4) for fragment in range(2)), strict=True)
    with (
        ScriptedSyncer(admit=catch_up({0: (2, data[0]), 1: (2, data[1])})) as syncer,
        Learner(
            saved, syncer.address, num_fragments=2, dtype="f32", session_contract="test", resume=path
        ) as back,
    ):
        assert back.versions == [2, 2]
        # The newer global may hold what was pushed, and what was not pushed moves onto it.
        assert flat(back, saved, 0).tobytes() == raw[0].tobytes()
        assert flat(back, saved, 1).tobytes() != raw[1].tobytes()
        # Moved progress of the same record, pushed now from a newer anchor: known to the next life as well.
        peer = syncer.next_peer()
        peer.send(wire.PullReq(1, 3, 1))
        arrived(back, pulls=1)
        back.step()
        assert peer.expect(wire.PushFragment).base_version == 2
        assert with_later_pushes(read_record(path))[0].pushed_from == {0: 0, 1: 2}
    # The older life's parameters again, where the syncer came back without the last push, and where not.
    for version, mode in ((2, InstallMode.SHIFT), (3, InstallMode.OVERWRITE)):
        again = Boundary(2)
        record = with_later_pushes(read_record(path))[0]
        again.restore(record.steps, record.tokens, record.global_step, record.fragments)
        assert again.mode_of(BcastFragment(1, version, b"")) is mode


def test_a_learner_that_never_saved_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = parameters()
    with running(arrays) as (made, peer, _):
        made.save_state()
        peer.send(wire.PullReq(0, 1, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step()
        peer.expect(wire.PushFragment)
    assert list(tmp_path.iterdir()) == []


def test_a_push_that_cannot_be_noted_is_not_sent_and_the_caller_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, path = parameters(), tmp_path / "sync.npz"

    def full(record: JournaledRecord, fragment_id: int, base: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with running(arrays, heartbeat_s=0.0) as (made, peer, _):
        made.save_state(path)
        monkeypatch.setattr(JournaledRecord, "note", full)
        sent = made.bytes_sent
        peer.send(wire.PullReq(0, 1, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step()
        wait_until(lambda: made._exporter._failure is not None)
        with pytest.raises(RuntimeError, match=r"sync\.npz\.pushed: cannot note .*nothing of it was sent"):
            made.step()
        assert made.bytes_sent == sent
    assert unpushed(path) == {0, 1}  # and so the record may say


def test_only_the_sender_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = parameters()
    noted_on: list[str] = []
    note = JournaledRecord.note

    def watched(record: JournaledRecord, fragment_id: int, base: int) -> None:
        noted_on.append(threading.current_thread().name)
        note(record, fragment_id, base)

    monkeypatch.setattr(JournaledRecord, "note", watched)
    with running(arrays) as (made, peer, _):
        made.save_state(tmp_path / "sync.npz")
        peer.send(wire.PullReq(0, 1, 1))
        arrived(made, pulls=1)
        train(arrays)
        made.step()
        peer.expect(wire.PushFragment)
    assert noted_on == ["yeto-export"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_progress_that_an_older_syncer_took_is_not_added_again(version: int) -> None:
    """The record is of version 4; the syncer came back at 0, took the moved progress there, and went on."""
    boundary = Boundary(1)
    boundary.restore(9, 0, 4, [RecordedFragment(4, 2, 0, True, 5, pushed_from=0)])
    assert boundary.mode_of(BcastFragment(0, version, b"")) is InstallMode.OVERWRITE
    assert boundary.mode_of(BcastFragment(0, 0, b"")) is InstallMode.SHIFT
