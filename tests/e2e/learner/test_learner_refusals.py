"""`Learner`: what a caller does wrong reaches it within a second, with what to do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.e2e.learner.rig import SMALL, arrived, parameters, running, settle
from tests.e2e.processes import Processes
from tests.e2e.scripted_syncer import WAIT
from yeto_learner import (
    Learner,
    LearnerIdInUseError,
    NonFiniteParameterError,
    SessionRejectedError,
    Subscriber,
    SyncerClient,
    identity,
)
from yeto_proto._generated import messages as wire
from yeto_proto._generated.errors import BadArgument
from yeto_proto.layout import build_layout


@contextmanager
def within_a_second() -> Iterator[None]:
    """Processor time of this thread, so that a busy machine does not matter, and no wait of a minute."""
    begun, waited = time.thread_time(), time.monotonic()
    yield
    assert time.thread_time() - begun < 1.0
    assert time.monotonic() - waited < WAIT


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_fragments", 1.5),
        ("num_fragments", "4"),
        ("num_fragments", 0),
        ("num_fragments", True),
        ("learner_id", 0.0),
        ("learner_id", -1),
        ("num_streams", 2.5),
        ("num_streams", 257),
        ("min_local_steps", 1.5),
        ("budget_steps", 0),
        ("max_reconnects", 0.5),
        ("receive_budget", 1e9),
        ("heartbeat_s", -1),
        ("heartbeat_s", float("nan")),
        ("connect_timeout_s", "30"),
    ],
)
def test_numbers_that_are_not_what_they_should_be_are_named(option: str, value: Any) -> None:
    with within_a_second(), pytest.raises(ValueError, match=option):
        Learner(parameters(), "127.0.0.1:1", session_contract="t", **{option: value})


def test_numpy_integers_are_whole_numbers() -> None:
    made = Learner(parameters(), "127.0.0.1:1", session_contract="t", num_fragments=np.int64(2))
    assert made.layout.num_fragments == 2


def test_a_layout_has_a_whole_number_of_fragments() -> None:
    with pytest.raises(BadArgument, match="a whole number of fragments"):
        build_layout({"w": 3}, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_fragments"):
        Subscriber(parameters(), "127.0.0.1:1", observer_id=7, num_fragments=1.5)  # type: ignore[arg-type]


def test_a_delta_of_another_size_is_refused_with_both_sizes() -> None:
    client = SyncerClient("127.0.0.1:1", 0, SMALL, "f32")
    numel = SMALL.fragments[0].numel
    said = f"has 8 bytes; its {numel} values take {4 * numel}"
    with within_a_second(), pytest.raises(ValueError, match=said):
        client.push_fragment(0, 1, 1, 0, 1, 1, 1, b"12345678")


def test_an_unknown_and_a_missing_name_are_named_at_the_next_step() -> None:
    arrays = parameters()
    with running(arrays) as (made, _, _), within_a_second():
        arrays["extra"] = np.zeros(3, np.float32)
        with pytest.raises(ValueError, match="unknown parameter 'extra'"):
            made.step()
        del arrays["extra"]
        kept = arrays.pop("embed")
        with pytest.raises(ValueError, match="'embed' is gone"):
            made.step()
        arrays["embed"] = kept.astype(np.float64)
        with pytest.raises(ValueError, match=r"'embed' was float32 of shape \(5, 3\) and is now float64"):
            made.step()
        arrays["embed"] = kept
        assert made.step() is False


@pytest.mark.parametrize("bad", [{"w": np.zeros(3, np.int32)}, {"w": [1.0, 2.0]}, {}, {3: np.zeros(3)}])
def test_what_cannot_be_trained_is_refused(bad: Any) -> None:
    with within_a_second(), pytest.raises(ValueError, match=r"parameter|there is nothing to train"):
        Learner(bad, "127.0.0.1:1", session_contract="t")


@pytest.mark.parametrize("dtype", ["bf16", "q4", "f32"])
def test_progress_that_overflows_on_the_wire_is_refused_before_anything_is_sent(dtype: str) -> None:
    """The largest f32 is finite and has no finite bf16."""
    arrays = parameters()
    with running(arrays, dtype=dtype) as (made, peer, _):
        for fragment in range(2):
            peer.send(wire.PullReq(fragment, fragment + 1, 1))
        arrived(made, pulls=2)
        keep = arrays["layers.1.mlp"][0, 0]
        arrays["layers.1.mlp"][0, 0] = np.finfo(np.float32).max
        if dtype == "bf16":
            with within_a_second(), pytest.raises(NonFiniteParameterError, match="sent as bf16") as caught:
                made.step()
            assert caught.value.name == "layers.1.mlp"
            arrays["layers.1.mlp"][0, 0] = keep
        made.step()
        assert {peer.expect(wire.PushFragment).fragment_id for _ in range(2)} == {0, 1}
        settle(made)
        made.client.check_health()


def test_initial_values_that_overflow_on_the_wire_are_refused() -> None:
    arrays = parameters()
    arrays["layers.0.mlp"][1, 1] = np.finfo(np.float32).max
    with (
        pytest.raises(NonFiniteParameterError, match=r"'layers.0.mlp': a value sent as bf16"),
        running(arrays, dtype="bf16"),
    ):
        pass


def open_learner(address: str, **options: Any) -> Learner:
    arguments: dict[str, Any] = {
        "num_fragments": 2,
        "dtype": "f32",
        "num_streams": 1,
        "session_contract": "test",
        "connect_timeout_s": WAIT,
        "initial_cut_timeout_s": WAIT,
        **options,
    }
    made = Learner(arguments.pop("arrays", parameters()), address, **arguments)
    made.open()
    return made


def test_a_session_that_differs_is_refused_while_the_other_learner_goes_on(processes: Processes) -> None:
    syncer = processes.syncer("--learners", "2", "--min-start-learners", "1", "--total-steps", "1000000")
    address = f"127.0.0.1:{syncer.port}"
    first = open_learner(address)
    try:
        for options, said in (
            ({"dtype": "bf16"}, "dtype: the session has f32, this HELLO has bf16"),
            ({"session_contract": "another"}, "contract"),
            ({"num_fragments": 3}, "num_fragments|fragments"),
            ({"arrays": {**parameters(), "embed": np.zeros((5, 4), np.float32)}}, "numel"),
        ):
            with within_a_second(), pytest.raises(SessionRejectedError, match=said):
                open_learner(address, learner_id=1, **options)
        with within_a_second(), pytest.raises(RuntimeError, match="learner id outside configured range"):
            open_learner(address, learner_id=2)
        assert first.step(1) is False
    finally:
        first.close()
        syncer.kill()


HOLDER = """
import signal, sys
from yeto_learner.identity import IdentityLock
lock = IdentityLock(("127.0.0.1", 1), 0, bytes.fromhex(sys.argv[1]))
lock.take()
print("holds", flush=True)
signal.pause()
"""


def test_two_learners_with_one_id() -> None:
    with running() as (made, _, syncer):
        with within_a_second(), pytest.raises(LearnerIdInUseError, match="give each process a learner_id"):
            open_learner(syncer.address)
        assert made.step(1) is False, "the first one goes on"
        assert syncer.accepted == 3, "the second one never dialled"


def test_an_id_is_free_again_after_its_process_whatever_ended_it(processes: Processes) -> None:
    contract = os.urandom(32)  # the locks are the whole machine's, another run of this test's as well
    lock = identity.IdentityLock(("127.0.0.1", 1), 0, contract)
    other = identity.IdentityLock(("127.0.0.1", 1), 1, contract)
    holder = processes.run(sys.executable, "-c", HOLDER, contract.hex())
    holder.stdout.wait_for("holds")
    with pytest.raises(LearnerIdInUseError, match=f"in process {holder.pid}"):
        lock.take()
    other.take()
    other.release()
    holder.kill()
    lock.take()
    with pytest.raises(LearnerIdInUseError, match="this one"):
        identity.IdentityLock(("127.0.0.1", 1), 0, contract).take()
    lock.release()
    lock.release()
    lock.take()
    lock.release()
