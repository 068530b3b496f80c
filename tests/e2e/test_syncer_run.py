"""A whole run of the real server with learners made of plain sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.processes import Processes
from tests.e2e.raw import CONTROL, F32, Trainer, drive, hello, train
from yeto_proto import dtypes
from yeto_proto._generated.messages import BcastFragment, FinalFragment, FinalManifest, PullReq, Shutdown
from yeto_proto._generated.types import Dtype
from yeto_proto.files import read_final_state, read_snapshot
from yeto_proto.layout import Layout, build_layout

STEPS = 8
QUICK = ("--grace-ms", "600000", "--sync-interval-steps", "0", "--quorum", "2")
"""Every round waits for both learners, and for nothing else."""


def small_layout() -> Layout:
    """Four fragments: one avg, three rda."""
    return build_layout(
        {"embed": 300, "a.weight": (40, 20), "b.weight": (30, 21), "c.weight": (17, 11), "d.bias": 13}, 4
    )


def initial(layout: Layout, seed: int = 1) -> list[F32]:
    """Values for every fragment that bf16 holds exactly, so that a bf16 INIT loses nothing."""
    generator = np.random.default_rng(seed)
    return [
        generator.integers(-64, 64, fragment.numel).astype(np.float32) / np.float32(32)
        for fragment in layout.fragments
    ]


def tape_records(path: Path) -> list[dict[str, Any]]:
    """The merge records of a tape, after checking that every line is one object."""
    text = path.read_text()
    assert text.endswith("\n")
    return [record for record in map(json.loads, text.splitlines()) if "step" in record and "gnorm" in record]


def files(folder: Path) -> list[str]:
    """Flags for everything that a run can write."""
    return [
        *("--checkpoint-path", str(folder / "state.ckpt"), "--mark-final-checkpoint"),
        *("--final-state", str(folder / "final.bin"), "--event-tape", str(folder / "tape.jsonl")),
    ]


@pytest.mark.rule("chunk.streams.either")
@pytest.mark.rule("syncer.checkpoint.terminal_once")
@pytest.mark.parametrize(
    ("dtype", "streams"),
    [
        (Dtype.F32, 0),
        pytest.param(Dtype.F32, 2, marks=pytest.mark.full),
        pytest.param(Dtype.BF16, 0, marks=pytest.mark.full),
        (Dtype.BF16, 2),
        pytest.param(Dtype.Q4, 0, marks=pytest.mark.full),
        (Dtype.Q4, 2),
    ],
    ids=lambda each: each.name if isinstance(each, Dtype) else str(each),
)
def test_two_learners_train_to_the_end(
    processes: Processes, tmp_path: Path, dtype: Dtype, streams: int
) -> None:
    layout = small_layout()
    port_file = tmp_path / "port"
    syncer = processes.syncer(
        "--learners",
        "2",
        "--total-steps",
        str(STEPS),
        *QUICK,
        *files(tmp_path),
        "--port-file",
        str(port_file),
    )
    assert int(port_file.read_text()) == syncer.port
    learners = [
        Trainer(syncer.port, hello(layout, number, dtype=dtype, streams=streams), target=1.0)
        for number in range(2)
    ]
    values = initial(layout)
    learners[0].initialize(values)
    train(learners)
    for learner in learners:
        learner.close()
    stderr = syncer.finished()
    assert "training complete" in stderr
    assert not port_file.exists()

    snapshot = read_snapshot(tmp_path / "state.ckpt")
    assert snapshot.global_step == STEPS
    assert [fragment.version for fragment in snapshot.fragments] == [5, 6, 7, 8]
    assert snapshot.fingerprint == layout.fingerprint()
    assert (tmp_path / "state.ckpt.final").read_text() == f"YETO_FINAL_V1\nglobal_step={STEPS}\n"
    final_state = read_final_state(tmp_path / "final.bin")
    for number, fragment in enumerate(snapshot.fragments):
        assert np.array_equal(final_state[number], fragment.params)
        for learner in learners:
            assert learner.final[number][0] == fragment.version
            assert np.array_equal(learner.final[number][1], fragment.params)
        # Both learners pull to 1.0; two outer steps per fragment cannot leave it where it was.
        assert np.abs(fragment.params - 1).mean() < np.abs(values[number] - 1).mean()
    assert {number: entry.merges for number, entry in snapshot.ledger.items()} == {0: STEPS, 1: STEPS}

    records = tape_records(tmp_path / "tape.jsonl")
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert all(record["responded"] == [0, 1] and record["quorum"] == 2 for record in records)
    assert all(record["fragment"] == (record["step"] - 1) % 4 for record in records)


@pytest.mark.rule("chunk.streams.round_robin")
def test_bulk_goes_over_the_data_streams_and_small_frames_over_control(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer("--learners", "1", "--total-steps", "4", "--sync-interval-steps", "0")
    learner = Trainer(syncer.port, hello(layout, 0, streams=2), target=0.0)
    learner.initialize(initial(layout))
    train([learner])
    learner.close()
    syncer.finished()
    by_stream: dict[int, set[type]] = {}
    for stream, message in learner.seen:
        by_stream.setdefault(stream, set()).add(type(message))
    assert by_stream[CONTROL] == {PullReq, FinalManifest, Shutdown}
    assert by_stream[0] | by_stream[1] == {BcastFragment, FinalFragment}
    assert by_stream[0] and by_stream[1]


def test_the_outer_step_is_nesterov_on_the_mean(processes: Processes) -> None:
    layout = build_layout({"embed": 64}, 1)
    syncer = processes.syncer(
        *("--learners", "2", "--total-steps", "6", *QUICK),
        *("--delta-correction", "none", "--outer-lr", "0.5", "--outer-momentum", "0.75"),
    )
    learners = [
        Trainer(syncer.port, hello(layout, number), target=target) for number, target in ((0, 1.0), (1, 3.0))
    ]
    (expected,) = initial(layout)
    learners[0].initialize([expected], chunked=False)
    train(learners)
    momentum = np.zeros_like(expected)
    for _ in range(6):
        # Equal weights: the mean of the two outer gradients -0.5 * (target - value).
        gradient = np.float32(0.5) * (expected - np.float32(2.0))
        momentum = np.float32(0.75) * momentum + gradient
        expected = expected - np.float32(0.5) * (gradient + np.float32(0.75) * momentum)
    for learner in learners:
        np.testing.assert_allclose(learner.final[0][1], expected, rtol=1e-5, atol=1e-6)
        learner.close()
    syncer.finished()


def test_a_model_of_several_chunks_arrives_whole(processes: Processes, tmp_path: Path) -> None:
    # 3.1 M values: f32 fragments of more than two chunks, checked and encoded off the event loop.
    layout = build_layout({"embed": 1_600_001, "a": 1_500_000}, 2)
    values = initial(layout)
    for dtype in (Dtype.F32, Dtype.BF16):
        syncer = processes.syncer(
            *("--learners", "2", "--total-steps", "2", *QUICK),
            *("--final-state", str(tmp_path / "final.bin"), "--checkpoint-path", str(tmp_path / dtype.name)),
        )
        learners = [
            Trainer(syncer.port, hello(layout, number, dtype=dtype, streams=2), target=1.0)
            for number in range(2)
        ]
        learners[0].initialize(values)
        train(learners, 300.0)
        for learner in learners:
            learner.close()
        syncer.finished()
        first_cut = [m for _, m in learners[1].seen if isinstance(m, BcastFragment)][:2]
        for message in first_cut:
            held = dtypes.decode(dtype, message.tensor, layout.fragments[message.fragment_id].numel)
            assert np.array_equal(held, values[message.fragment_id])
        for number, params in enumerate(read_final_state(tmp_path / "final.bin")):
            assert all(np.array_equal(learner.final[number][1], params) for learner in learners)


def test_zero_steps_finalize_right_after_init(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer("--learners", "1", "--total-steps", "0")
    learner = Trainer(syncer.port, hello(layout, 0), target=0.0)
    values = initial(layout)
    learner.initialize(values)
    train([learner])
    learner.close()
    syncer.finished()
    assert not any(isinstance(message, BcastFragment) for _, message in learner.seen)
    assert all(np.array_equal(learner.final[number][1], values[number]) for number in range(4))


@pytest.mark.rule("data_hello.before_hello")
def test_a_data_hello_may_come_before_its_hello(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer("--learners", "1", "--total-steps", "4", "--sync-interval-steps", "0")
    learner = Trainer(syncer.port, hello(layout, 0, streams=2), target=0.0, early=[1])
    learner.initialize(initial(layout))
    train([learner])
    learner.close()
    syncer.finished()
    assert {stream for stream, _ in learner.seen} == {CONTROL, 0, 1}


def test_a_learner_that_dies_in_mid_run_comes_back_and_is_caught_up(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer("--learners", "2", "--total-steps", "40", *QUICK, "--quorum-timeout-s", "2")
    first = Trainer(syncer.port, hello(layout, 0, streams=1), target=1.0)
    victim = Trainer(syncer.port, hello(layout, 1, streams=1), target=1.0)
    first.initialize(initial(layout))
    drive([first, victim], lambda: len(victim.answered) >= 6, "six answers")
    victim.close()
    syncer.stderr.wait_for("learner left.*learner=1 generation=1")
    back = Trainer(syncer.port, hello(layout, 1, generation=2, streams=1), target=1.0)
    syncer.stderr.wait_for("learner connected learner=1 generation=2")
    train([first, back])
    catch_up = [m for _, m in back.seen if isinstance(m, BcastFragment)][:4]
    assert sorted(message.fragment_id for message in catch_up) == [0, 1, 2, 3]
    assert max(message.version for message in catch_up) >= 5
    for number in range(4):
        assert np.array_equal(first.final[number][1], back.final[number][1])
    first.close()
    back.close()
    syncer.finished()


@pytest.mark.rule("syncer.observers.apart")
def test_an_observer_gets_everything_and_is_asked_for_nothing(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer(
        *("--learners", "2", "--total-steps", "8", "--sync-interval-steps", "0", "--observers", "1"),
        *("--quorum", "1", "--log-format", "json"),
    )
    observer = Trainer(syncer.port, hello(layout, 1, streams=1), target=1.0)
    syncer.stderr.wait_for("learner connected")
    learner = Trainer(syncer.port, hello(layout, 0, streams=1), target=1.0)
    learner.initialize(initial(layout))
    observer.finish = lambda: None  # type: ignore[method-assign]  # it need not acknowledge
    drive(
        [learner, observer], lambda: learner.shut_down and len(observer.final) == 4, "the final cut for both"
    )
    assert not observer.answered and not observer.pending
    assert {m.fragment_id for _, m in observer.seen if isinstance(m, BcastFragment)} == {0, 1, 2, 3}
    assert all(np.array_equal(observer.final[n][1], learner.final[n][1]) for n in range(4))
    learner.close()
    observer.close()
    records = [json.loads(line) for line in syncer.finished().splitlines()]
    assert {"level", "message", "time"} <= set(records[0])


@pytest.mark.rule("syncer.bind.authenticated")
def test_an_open_address_needs_to_be_asked_for(processes: Processes) -> None:
    flags = ("--learners", "1", "--total-steps", "1", "--host", "0.0.0.0", "--port", "0")
    refused = processes.syncer_command(*flags)
    assert "--allow-unauthenticated" in refused.finished(1)
    allowed = processes.syncer_command(*flags, "--allow-unauthenticated")
    allowed.stdout.wait_for(r"^listening on 0\.0\.0\.0:\d+$")
    allowed.stderr.wait_for("anybody who reaches this address can join")
    keyed = processes.syncer_command(*flags, environ={"YETO_ISLAND_HMAC_KEY": "k3y"})
    keyed.stdout.wait_for(r"^listening on 0\.0\.0\.0:\d+$")
    allowed.kill()
    keyed.kill()
