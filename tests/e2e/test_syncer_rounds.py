"""What happens to a round when one of its learners or the syncer dies in it, stalls, or comes late.

Every claim is read from the event tape of a real syncer process.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.lone_learner import digest
from tests.e2e.processes import Processes, Running, Syncer, reserved_port, wait_until
from tests.e2e.raw import Trainer, drive, hello, train
from tests.e2e.test_syncer_run import initial, small_layout
from yeto_proto._generated.messages import BcastFragment, FinalFragment, PullReq
from yeto_proto.files import read_final_state, read_snapshot
from yeto_syncer.tape_file import faults

ROOT = Path(__file__).parents[2]
WAIT = 120.0
ONE_BY_ONE = ("--pipeline", "1", "--sync-interval-steps", "0")


def started(processes: Processes, syncer: Syncer, learner_id: int, *flags: str) -> Running:
    """A learner in a process of its own."""
    command = [sys.executable, "-m", "tests.e2e.lone_learner", str(syncer.port), str(learner_id), *flags]
    return processes.run(*command, cwd=ROOT)


def told(tape: Path) -> list[dict[str, Any]]:
    """The whole lines of a tape that may still be written."""
    text = tape.read_text() if tape.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def commits(records: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The merge records by step; each step is told once, and every record is as the specification has it."""
    assert [fault for record in records for fault in faults(record)] == []
    found = [record for record in records if "event" not in record]
    assert [record["step"] for record in found] == list(range(1, len(found) + 1))
    return {record["step"]: record for record in found}


def of(records: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [record for record in records if record.get("event") == event]


def until(learner: Trainer, step: int) -> None:
    """Serve this learner until it has answered a step."""
    what = f"its answer to step {step}"
    drive([learner], lambda: any(pull.global_step == step for pull in learner.answered), what, WAIT)


@pytest.mark.rule("syncer.round.rebind")
def test_a_learner_that_is_killed_in_a_round_comes_back_into_it(processes: Processes, tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    syncer = processes.syncer(
        *("--learners", "2", "--quorum", "2", "--total-steps", "6", *ONE_BY_ONE, "--event-tape", str(tape))
    )
    victim = started(processes, syncer, 1, "--hold-at", "3")
    syncer.stderr.wait_for("learner connected learner=1", WAIT)
    first = Trainer(syncer.port, hello(small_layout(), 0), target=1.0)
    first.initialize(initial(small_layout()))
    until(first, 3)
    victim.stdout.wait_for("^holding 3$", WAIT)
    victim.kill()
    syncer.stderr.wait_for("learner left.*learner=1 generation=1", WAIT)
    back = started(processes, syncer, 1, "--generation", "2")
    train([first], WAIT)
    first.close()
    assert back.wait(WAIT) == 0
    syncer.finished()

    assert victim.process.returncode == -signal.SIGKILL
    assert back.stdout.lines[0] == "answered 3" and back.stdout.lines[-1] == f"final {digest(first)}"
    records = told(tape)
    rounds = commits(records)
    assert len(rounds) == 6 and of(records, "attempt_discarded") == []
    for step, record in rounds.items():
        members = [{"id": 0, "generation": 1}, {"id": 1, "generation": 1 if step < 3 else 2}]
        assert (record["attempt"], record["responded_members"]) == (1, members)
    [rebound] = of(records, "rebound")
    assert (rebound["id"], rebound["generation"], rebound["step"], rebound["attempt"]) == (1, 2, 3, 1)
    [recovery] = of(records, "recovery")
    assert (recovery["lost_generation"], recovery["generation"], recovery["step"]) == (1, 2, 3)
    assert recovery["reason"] == "disconnected" and recovery["connect_ms"] > 0
    order = [record.get("event") or record["step"] for record in records]
    at = [order.index(each) for each in (2, "learner_left", "rebound", "recovery", 3)]
    assert at == sorted(at), "lost, back and merged between the commits of steps 2 and 3"


@pytest.mark.rule("syncer.retry.members")
def test_a_learner_that_is_killed_in_a_round_and_stays_away_is_left_out_of_the_next_attempt(
    processes: Processes, tmp_path: Path
) -> None:
    tape = tmp_path / "tape.jsonl"
    syncer = processes.syncer(
        *("--learners", "2", "--quorum", "2", "--total-steps", "5", *ONE_BY_ONE, "--event-tape", str(tape)),
        *("--quorum-timeout-s", "2", "--final-ack-timeout-s", "900"),
    )
    victim = started(processes, syncer, 1, "--hold-at", "3")
    syncer.stderr.wait_for("learner connected learner=1", WAIT)
    first = Trainer(syncer.port, hello(small_layout(), 0), target=1.0)
    first.initialize(initial(small_layout()))
    until(first, 3)
    victim.stdout.wait_for("^holding 3$", WAIT)
    victim.kill()
    train([first], WAIT)
    first.close()
    syncer.finished()

    records = told(tape)
    third = commits(records)[3]
    assert third["attempt"] >= 2 and third["expected"] == third["responded"] == [0]
    assert third["quorum"] == 1, "the smaller of the quorum and of who could be captured"
    discarded = [record for record in of(records, "attempt_discarded") if record["step"] == 3]
    assert [record["attempt"] for record in discarded] == list(range(1, third["attempt"]))
    assert max(record["answers"] for record in discarded) == 1
    assert all(commits(records)[step]["expected"] == [0] for step in (4, 5))


class Repeating(Trainer):
    """Answers one step twice: the refusal of the second answer shows that the first was taken."""

    twice = 0

    def answer(self, pull: PullReq) -> None:
        super().answer(pull)
        if pull.global_step == self.twice:
            super().answer(pull)


class Holding(Trainer):
    """Leaves the pulls of some steps unanswered."""

    held: tuple[int, ...] = ()

    def answer(self, pull: PullReq) -> None:
        if pull.global_step in self.held:
            self.waiting = pull
            return
        super().answer(pull)

    waiting: PullReq | None = None


@pytest.mark.rule("syncer.order.contiguous")
def test_a_syncer_that_is_killed_in_a_round_plays_it_again_and_merges_nothing_twice(
    processes: Processes, tmp_path: Path
) -> None:
    layout = small_layout()

    def flags(folder: Path) -> list[str]:
        folder.mkdir(exist_ok=True)
        return [
            *("--learners", "2", "--quorum", "2", "--total-steps", "7", *ONE_BY_ONE),
            *("--checkpoint-path", str(folder / "state.ckpt"), "--checkpoint-every", "1"),
            *("--final-state", str(folder / "final.bin"), "--event-tape", str(folder / "tape.jsonl")),
        ]

    def pair(syncer: Syncer, generation: int) -> tuple[Repeating, Holding]:
        one = Repeating(syncer.port, hello(layout, 0, generation=generation, streams=1), target=1.0)
        two = Holding(syncer.port, hello(layout, 1, generation=generation, streams=1), target=3.0)
        return one, two

    cut, whole = tmp_path / "cut", tmp_path / "whole"
    tape = cut / "tape.jsonl"
    with reserved_port() as port:
        command = ("--port", str(port), *flags(cut))
        syncer = processes.syncer_command(*command).listening(WAIT)
        one, two = pair(syncer, 1)
        one.twice, two.held = 4, (4,)
        one.initialize(initial(layout))
        drive([one, two], lambda: two.waiting is not None and len(one.answered) == 5, "step 4", WAIT)
        wait_until(
            lambda: bool(of(told(tape), "rejected")), "the second answer of learner 0 on the tape", WAIT
        )
        [repeated] = of(told(tape), "rejected")
        assert (repeated["reason"], repeated["id"], repeated["step"]) == ("Duplicate", 0, 4)
        syncer.kill()
        for learner in (one, two):
            learner.close()
        before = told(tape)
        assert read_snapshot(cut / "state.ckpt").global_step == 3 and max(commits(before)) == 3

        again = processes.syncer_command(*command, "--resume").listening(WAIT)
        pair_again = pair(again, 2)
        train(pair_again, WAIT)
        again.finished()
    records = told(tape)
    assert records[: len(before)] == before
    starts = of(records, "run_started")
    assert [(start["step"], start["resumed"]) for start in starts] == [(0, False), (3, True)]
    rounds = commits(records)
    assert len(rounds) == 7
    assert [member["generation"] for member in rounds[4]["responded_members"]] == [2, 2]
    assert [pull.global_step for pull in pair_again[1].answered] == [4, 5, 6, 7]
    ledger = read_snapshot(cut / "state.ckpt").ledger
    assert {learner: entry.merges for learner, entry in ledger.items()} == {0: 7, 1: 7}

    calm = processes.syncer(*flags(whole))
    undisturbed = pair(calm, 1)
    undisturbed[0].initialize(initial(layout))
    train(undisturbed, WAIT)
    calm.finished()
    for learner in (*pair_again, *undisturbed):
        learner.close()
    for mine, expected in zip(
        read_final_state(cut / "final.bin"), read_final_state(whole / "final.bin"), strict=True
    ):
        assert mine.tobytes() == expected.tobytes(), "the kill has changed the result"


@pytest.mark.rule("syncer.late_joiner.joins")
def test_a_late_joiner_is_pulled_into_an_open_round_and_lets_it_close(
    processes: Processes, tmp_path: Path
) -> None:
    """Of the two learners that a round has captured one does not answer; a third one comes and does."""
    tape = tmp_path / "tape.jsonl"
    syncer = processes.syncer(
        *("--learners", "3", "--min-start-learners", "2", "--quorum", "2", "--total-steps", "4"),
        *(*ONE_BY_ONE, "--grace-ms", "50", "--quorum-timeout-s", "900", "--event-tape", str(tape)),
    )
    layout = small_layout()
    first = Trainer(syncer.port, hello(layout, 0), target=1.0)
    silent = Holding(syncer.port, hello(layout, 1), target=1.0)
    silent.held = (2,)
    first.initialize(initial(layout))
    drive([first, silent], lambda: silent.waiting is not None, "the pull of step 2", WAIT)
    late = Trainer(syncer.port, hello(layout, 2, streams=1), target=1.0)
    everybody = [first, silent, late]
    train(everybody, WAIT)
    for learner in everybody:
        learner.close()
    syncer.finished()

    assert late.answered[0].global_step == 2 and 2 not in [pull.global_step for pull in silent.answered]
    records = told(tape)
    [join] = of(records, "late_join")
    assert (join["id"], join["step"], join["attempt"]) == (2, 2, 1)
    second = commits(records)[2]
    assert (second["expected"], second["responded"], second["missed_grace"]) == ([0, 1, 2], [0, 2], [1])
    assert (second["attempt"], second["quorum"]) == (1, 2), "a join changes neither attempt nor quorum"
    assert second["quorum_ms"] <= second["ms"] < 900_000, "closed before the quorum timeout"
    assert of(records, "attempt_discarded") == []


def test_a_stalled_learner_is_skipped_after_the_grace_and_takes_part_again(
    processes: Processes, tmp_path: Path
) -> None:
    """A learner that is stopped in mid-run: connected, reading nothing, answering nothing."""
    tape = tmp_path / "tape.jsonl"
    syncer = processes.syncer(
        *("--learners", "2", "--quorum", "1", "--total-steps", "1000000", *ONE_BY_ONE),
        *("--grace-ms", "300", "--grace-gamma", "1", "--grace-tau", "100000", "--outer-momentum", "0"),
        *("--event-tape", str(tape), "--checkpoint-path", str(tmp_path / "state.ckpt")),
    )
    stalled = started(processes, syncer, 1)
    syncer.stderr.wait_for("learner connected learner=1", WAIT)
    layout = small_layout()
    first = Trainer(syncer.port, hello(layout, 0), target=1.0)
    first.initialize(initial(layout))

    def together(after: int) -> bool:
        return any(step > after and record["responded"] == [0, 1] for step, record in rounds().items())

    def rounds() -> dict[int, dict[str, Any]]:
        return commits(told(tape))

    def missed() -> list[int]:
        return [step for step, record in rounds().items() if record["missed_grace"] == [1]]

    drive([first], lambda: together(0), "a round with both", WAIT)
    stalled.signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(stalled.pid).status() == psutil.STATUS_STOPPED, "the stop", WAIT)
    before = max(rounds())
    # Its answers to two rounds may have been on the way.
    drive([first], lambda: len([step for step in missed() if step > before]) >= 3, "rounds without it", WAIT)
    skipped = [rounds()[step] for step in missed() if step > before]
    for record in skipped:
        assert record["responded"] == [0] and record["expected"] == [0, 1] and record["attempt"] == 1
        assert record["grace_ms"] > 0 and record["grace_waited_ms"] >= record["grace_ms"]
        assert record["quorum_ms"] + record["grace_waited_ms"] <= record["ms"] + 1
    stalled.signal(signal.SIGCONT)
    drive([first], lambda: together(max(missed())), "a later round with both", WAIT)
    late = [record for record in of(told(tape), "rejected") if record["id"] == 1]
    assert late and {record["reason"] for record in late} == {"OutOfRound"}
    assert of(told(tape), "learner_left") == [], "it was skipped, not dropped"
    syncer.signal(signal.SIGTERM)
    drive([first], lambda: first.ended, "the end", WAIT)
    first.close()
    syncer.finished()
    stalled.wait(WAIT)


@pytest.mark.rule("syncer.final.reconnect")
def test_a_learner_that_reconnects_before_its_ack_gets_the_whole_cut_again(
    processes: Processes, tmp_path: Path
) -> None:
    path, tape = tmp_path / "state.ckpt", tmp_path / "tape.jsonl"
    syncer = processes.syncer(
        *("--learners", "2", "--quorum", "2", "--total-steps", "5", *ONE_BY_ONE, "--event-tape", str(tape)),
        *("--checkpoint-path", str(path), "--mark-final-checkpoint", "--final-ack-timeout-s", "900"),
    )
    layout = small_layout()
    first = Trainer(syncer.port, hello(layout, 0), target=1.0)
    loser = Trainer(syncer.port, hello(layout, 1, streams=1), target=1.0)
    loser.finish = lambda: None  # type: ignore[method-assign]  # it is lost before it acknowledges
    first.initialize(initial(layout))

    def cut_here() -> bool:
        return loser.manifest is not None and len(loser.final) == len(layout.fragments)

    drive([first, loser], cut_here, "the final cut", WAIT)
    loser.close()
    syncer.stderr.wait_for("learner left.*learner=1 generation=1", WAIT)
    assert not first.shut_down, "SHUTDOWN before every ACK"
    back = Trainer(syncer.port, hello(layout, 1, generation=2, streams=2), target=1.0)
    train([first, back], WAIT)
    for learner in (first, back):
        learner.close()
    syncer.finished(0)

    assert [type(message) for _, message in back.seen].count(FinalFragment) == len(layout.fragments)
    assert not any(isinstance(message, BcastFragment | PullReq) for _, message in back.seen)
    assert digest(back) == digest(loser) == digest(first)
    assert path.with_name("state.ckpt.final").read_text() == "YETO_FINAL_V1\nglobal_step=5\n"
    records = told(tape)
    joined = [
        (record["id"], record["generation"], record["step"]) for record in of(records, "learner_joined")
    ]
    assert joined[-1] == (1, 2, 5)
    assert of(records, "recovery") == [], "an outage of the final cut is none of training"
    assert records[-1]["event"] == "run_ended" and records[-1]["code"] == 0
