"""The real server under a streaming fold, with late carry, and with a capacity quorum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.processes import Processes
from tests.e2e.raw import F32, Trainer, drive, hello, train
from tests.e2e.test_syncer_run import QUICK, initial, small_layout, tape_records
from yeto_proto import dtypes
from yeto_proto._generated.messages import PullReq
from yeto_proto._generated.types import Dtype
from yeto_proto.files import read_final_state
from yeto_proto.layout import Layout, build_layout
from yeto_proto.session import Session
from yeto_syncer.core.jobs import Accumulator, Answer, FoldJob, Link, MergeJob, MergeTensors
from yeto_syncer.core.merge import fold, run
from yeto_syncer.shell.performer import INLINE_MERGE

LR, MU = 0.7, 0.9


class Recording(Trainer):
    """A learner that remembers what it has sent, by step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sent: dict[int, bytes] = {}
        self.step = 0

    def answer(self, pull: PullReq) -> None:
        self.step = pull.global_step
        super().answer(pull)

    def delta(self, anchor: F32) -> F32:
        moved = super().delta(anchor)
        self.sent[self.step] = bytes(dtypes.encode(self.session.dtype, moved))
        return moved


def replayed(layout: Layout, records: list[dict[str, Any]], learners: list[Recording]) -> list[F32]:
    """The final parameters, from the initial ones and the pushes, folded in the order that the tape tells."""
    session: Session = learners[0].session
    params = initial(layout)
    momentum = [np.zeros_like(values) for values in params]
    for record in records:
        fragment, step = record["fragment"], record["step"]
        wire = session.layout
        tensors = MergeTensors(wire.merge_mode(fragment), wire.numels(fragment), wire.shapes(fragment))
        sums = Accumulator(tensors)
        for each in sorted(record["responders"], key=lambda one: one["order"]):
            delta = learners[each["id"]].sent[step]
            answer = Answer(Link(each["id"], each["generation"]), each["weight"], session.dtype, delta)
            fold(FoldJob(step, 1, fragment, momentum[fragment], tensors, answer, True, sums))
        job = MergeJob(
            step, 1, fragment, params[fragment], momentum[fragment], tensors, (), LR, MU, True, sums
        )
        result = run(job)
        assert result is not None and result.gnorm == record["gnorm"]
        params[fragment], momentum[fragment] = result.params, result.momentum
    return params


@pytest.mark.rule("syncer.fold.on_arrival")
@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        ("inline", Dtype.Q4),
        ("pool", Dtype.F32),
        pytest.param("inline", Dtype.F32, marks=pytest.mark.full),
        pytest.param("pool", Dtype.Q4, marks=pytest.mark.full),
    ],
    ids=lambda each: each.name if isinstance(each, Dtype) else each,
)
def test_replaying_the_tape_of_a_streaming_run_gives_its_final_state(
    processes: Processes, tmp_path: Path, dtype: Dtype, size: str
) -> None:
    layout = small_layout() if size == "inline" else build_layout({"a.weight": (INLINE_MERGE, 2), "b": 40}, 2)
    tape, final = tmp_path / "tape.jsonl", tmp_path / "final.bin"
    syncer = processes.syncer(
        *("--learners", "3", "--total-steps", "10", *QUICK, "--quorum", "3", "--fold", "on-arrival"),
        *("--event-tape", str(tape), "--final-state", str(final), "--merge-threads", "2"),
    )
    learners = [
        Recording(
            syncer.port, hello(layout, number, dtype=dtype), target=1.0 + number, rate=0.1 + 0.2 * number
        )
        for number in range(3)
    ]
    learners[0].initialize(initial(layout))
    train(learners)
    for learner in learners:
        learner.close()
    syncer.finished()
    records = tape_records(tape)
    assert len(records) == 10 and all(record["fold"] == "on-arrival" for record in records)
    expected = replayed(layout, records, learners)
    for values, seen in zip(expected, read_final_state(final), strict=True):
        assert seen.tobytes() == values.tobytes()


@pytest.mark.rule("syncer.carry.late")
def test_an_answer_that_is_too_late_is_carried_into_the_next_round(
    processes: Processes, tmp_path: Path
) -> None:
    layout = build_layout({"embed": 40}, 1)
    tape = tmp_path / "tape.jsonl"
    syncer = processes.syncer(
        *("--learners", "2", "--total-steps", "4", "--sync-interval-steps", "0", "--quorum", "1"),
        *("--grace-ms", "0", "--fold", "on-arrival", "--late-carry", "--carry-decay", "0.25"),
        *("--learner-weight", "equal", "--event-tape", str(tape)),
    )
    fast = Trainer(syncer.port, hello(layout, 0), target=1.0)
    slow = Trainer(syncer.port, hello(layout, 1), target=1.0)
    answer: list[PullReq] = []
    slow.answer = answer.append  # type: ignore[method-assign]  # it holds its answers back
    hold: list[PullReq] = []
    prompt, fast.answer = fast.answer, hold.append  # type: ignore[method-assign]
    fast.initialize(initial(layout))
    drive([fast, slow], lambda: bool(hold) and bool(answer), "the first pulls")
    late = slow.anchors[0]
    prompt(hold.pop())
    drive([fast, slow], lambda: bool(hold), "the pull of step 2: step 1 has closed without the slow one")
    slow.anchors[0] = late
    Trainer.answer(slow, answer[0])
    syncer.stderr.wait_for("late delta carried.*learner=1 step=1 into=2")
    fast.answer = prompt  # type: ignore[method-assign]
    slow.answer = lambda pull: None  # type: ignore[method-assign]
    prompt(hold.pop())
    train([fast, slow])
    fast.close()
    slow.close()
    syncer.finished()
    first, second, *_ = tape_records(tape)
    assert [each["id"] for each in first["responders"]] == [0]
    assert [(each["id"], each["lag"], each["weight"]) for each in second["responders"]] == [
        (0, 0, 1.0),
        (1, 1, 0.25),
    ]
    assert second["responded"] == [0] and second["missed_grace"] == [1]


@pytest.mark.rule("syncer.quorum.capacity")
def test_a_round_below_its_capacity_quorum_closes_at_the_soft_deadline(
    processes: Processes, tmp_path: Path
) -> None:
    layout = small_layout()
    tape = tmp_path / "tape.jsonl"
    syncer = processes.syncer(
        *("--learners", "2", "--total-steps", "4", "--sync-interval-steps", "0", "--grace-ms", "0"),
        *("--quorum-capacity", "1", "--soft-deadline-s", "0.3", "--event-tape", str(tape)),
    )
    active = Trainer(syncer.port, hello(layout, 0), target=1.0)
    silent = Trainer(syncer.port, hello(layout, 1), target=1.0)
    silent.answer = lambda pull: None  # type: ignore[method-assign]
    active.initialize(initial(layout))
    train([active, silent])
    active.close()
    silent.close()
    syncer.finished()
    for record in tape_records(tape):
        assert record["responded"] == [0] and record["missed_grace"] == [1]
        assert record["ms"] >= 300 and record["quorum_ms"] is None
        assert 0 < record["capacity_share"] < 1
