"""Every kind of record, with every field of the specification, is told by a coordinator and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, play, training
from tests.unit.tape.tapes import Recorder, eventful, write
from yeto_proto._generated.files import TAPE
from yeto_proto._generated.messages import FinalAck, PullReq
from yeto_syncer.core.events import Stop
from yeto_syncer.tape_cli import main
from yeto_syncer.tape_file import Reader, faults, kind_of, read
from yeto_syncer.tape_summary import summarize

PARTS = {"member", "responder", "stamp"}
LEARNERS = {"learners": 3, "quorum": 2, "fold": "on-arrival", "late_carry": True, "learner_weight": "equal"}


def carrying(path: Path) -> None:
    """A late answer is carried and merged, a second one is given up when a stop drops its round; a member
    that comes late is pulled into a round, and a stale answer gives its slot back."""
    recorder = Recorder()
    run, peers = training(
        config=config(**LEARNERS, max_base_lag=6, min_start_learners=2, shutdown_timeout_s=5.0),
        peers=2,
        watch=recorder,
    )
    recorder.run = run
    peers.append(Peer(run, 2, 12))  # joins step 1, which gathers
    late = without(run, peers)
    peers[2].push(late, base=0)  # carried into step 4
    for _ in range(7):
        for peer in peers:
            peer.answer()
    again = without(run, peers)  # step 9
    assert again.global_step == 9
    peers[2].push(again, base=6)  # carried into step 12
    (pull,) = peers[2].pulls()
    assert (pull.global_step, pull.fragment_id) == (10, 0)
    peers[2].push(pull, base=0)  # version 7 stands there: stale
    peers[0].answer()
    run.feed(Stop(15))
    run.wait(10.0)
    assert run.exit is not None and run.exit.code == 0
    write(path, recorder.told)


def without(run: Driver, peers: list[Peer]) -> PullReq:
    """The first two learners close the round that gathers; returns what the third one was asked."""
    (pull,) = peers[2].pulls()
    for peer in peers[:2]:
        peer.answer()
    run.wait(1.0)
    return pull


@pytest.fixture(scope="module")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tapes")
    paths = [folder / "eventful.jsonl", folder / "carrying.jsonl"]
    eventful(paths[0])
    carrying(paths[1])
    return paths


def test_every_kind_and_every_field_is_told(tapes: list[Path]) -> None:
    readers = [Reader(str(path)) for path in tapes]
    records = [record for path, reader in zip(tapes, readers, strict=True) for record in read(path, reader)]
    assert [(reader.torn, reader.unknown) for reader in readers] == [(0, 0)] * len(tapes)
    assert [fault for record in records for fault in faults(record)] == []
    seen: dict[str, set[str]] = {}
    for record in records:
        seen.setdefault(kind_of(record), set()).update(record)
        for key in ("expected_members", "responders"):
            part = {"expected_members": "member", "responders": "responder"}[key]
            for each in record.get(key, ()):
                seen.setdefault(part, set()).update(each)
    assert seen.keys() | {"stamp"} == TAPE.keys()
    for kind, fields in seen.items():
        stamp = set() if kind in PARTS else set(TAPE["stamp"])
        assert fields == set(TAPE[kind]) | stamp, kind


def test_the_summary_keeps_carried_deltas_apart_from_answers(tapes: list[Path]) -> None:
    records = list(read(tapes[1]))
    summary = summarize(records)
    commits = [record for record in records if kind_of(record) == "commit"]
    deltas = [each for record in commits for each in record["responders"]]
    assert len(commits) == 9 and [each["lag"] for each in deltas].count(1) == 1
    told: dict[str, Any] = summary.as_json()
    assert told["carried"] == {"late": 2, "merged": 1, "dropped": 1}
    assert told["answers"]["merged"] == len(deltas) == 26
    assert (told["answers"]["asked"], told["answered_share"]) == (27, 25 / 27)
    assert told["learners"]["2"]["answered"] == 7 and told["learners"]["2"]["missed_steps"] == [1, 9]
    assert told["late_joins"] == 1 and told["rejections"] == {"StaleBase": 1}
    text = "\n".join(summary.lines())
    for part in ("carried, too late", "carried, merged", "carried, dropped", "late joins"):
        assert part in text


def test_follow_tells_of_every_kind(tapes: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for path in tapes:
        assert main(["follow", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert len(out.splitlines()) == sum(len(list(read(path))) for path in tapes)


def test_a_dropped_acknowledgement_is_told_without_an_attempt(tmp_path: Path) -> None:
    recorder = Recorder()
    run, peers = training(config=config(total_steps=1, quorum=3), watch=recorder)
    play(peers)
    peers[0].send(FinalAck(7))
    for peer in peers:
        peer.ack()
    write(tmp_path / "tape.jsonl", recorder.told)
    [rejected] = [record for record in read(tmp_path / "tape.jsonl") if kind_of(record) == "rejected"]
    assert (rejected["id"], rejected["step"]) == (0, 7) and "attempt" not in rejected
    assert run.exit is not None and run.exit.code == 0
