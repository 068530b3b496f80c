"""`TorchLearner` in one process: which tensors take part, how they are written, what is refused."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.e2e.learner.rig import Initializer, arrived, catch_up, send_cut
from tests.e2e.scripted_syncer import WAIT, Peer, ScriptedSyncer
from yeto_learner.torch import TorchLearner
from yeto_learner.torch.schedule import rebuild_schedule
from yeto_proto import dtypes
from yeto_proto._generated import messages as wire
from yeto_proto._generated.types import Dtype

pytestmark = pytest.mark.full

OPTIONS: dict[str, Any] = {
    "num_fragments": 2,
    "dtype": "f32",
    "num_streams": 1,
    "session_contract": "test",
    "connect_timeout_s": WAIT,
    "initial_cut_timeout_s": WAIT,
}


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))


@contextmanager
def running(module: nn.Module, **options: Any) -> Iterator[tuple[TorchLearner, Peer]]:
    with ScriptedSyncer(Initializer()) as syncer:
        learner = TorchLearner(module, syncer.address, **{**OPTIONS, **options})
        with learner:
            yield learner, syncer.next_peer()


def shift(module: nn.Module, amount: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter += amount


def flat(learner: TorchLearner, module: nn.Module, fragment: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    named = dict(module.named_parameters())
    parts = [
        named[tensor.name].detach().float().reshape(-1)
        for tensor in learner.layout.fragments[fragment].tensors
    ]
    return torch.cat(parts).numpy()


def formats() -> list[nn.Module]:
    """Memory that is not in one piece, and other dtypes than f32."""
    torch.manual_seed(2)
    strided = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    assert not strided.weight.is_contiguous()
    return [strided, nn.Linear(5, 3).to(torch.bfloat16), nn.Linear(5, 3).half(), nn.Linear(5, 3).double()]


@pytest.mark.parametrize("module", formats(), ids=["channels-last", "bf16", "f16", "f64"])
def test_every_memory_format_and_dtype_is_read_and_written_in_place(module: nn.Module) -> None:
    kinds = {name: parameter.dtype for name, parameter in module.named_parameters()}
    with running(module, merge_alpha=0.0) as (learner, peer):
        anchor = flat(learner, module, 0).copy()
        shift(module, 0.5)
        peer.send(wire.PullReq(0, 1, 1))
        arrived(learner.learner, pulls=1)
        learner.step(tokens=3)
        push = peer.expect(wire.PushFragment)
        np.testing.assert_array_equal(
            np.frombuffer(push.delta, np.float32), flat(learner, module, 0) - anchor
        )
        raw = np.random.default_rng(3).normal(size=learner.layout.fragments[0].numel).astype(np.float32)
        peer.broadcast(0, 1, raw.tobytes())
        arrived(learner.learner, updates=1)
        learner.step()
        start = 0
        for tensor in learner.layout.fragments[0].tensors:
            parameter = dict(module.named_parameters())[tensor.name]
            expected = torch.from_numpy(raw[start : start + tensor.numel]).to(parameter.dtype)
            assert torch.equal(parameter.detach().reshape(-1), expected)
            start += tensor.numel
        cut = send_cut(learner.learner, peer, 9)
        assert learner.client.finalizing.wait(WAIT)
        assert not learner.done  # as of the last boundary
        assert learner.step() is True
        peer.send(wire.FinalManifest(9, (9, 8)))  # once more: no harm
        finish(learner, peer)
        dtype = next(iter(kinds.values()))
        np.testing.assert_array_equal(
            flat(learner, module, 0), torch.from_numpy(cut[0]).to(dtype).float().numpy()
        )
    assert {name: parameter.dtype for name, parameter in module.named_parameters()} == kinds


def finish(learner: TorchLearner, peer: Peer) -> None:
    """The syncer's last words come when the acknowledgement is there."""

    def close() -> None:
        peer.expect(wire.FinalAck)
        peer.send(wire.Shutdown())

    closer = threading.Thread(target=close)
    closer.start()
    learner.finish(WAIT)
    closer.join(WAIT)


def test_names_do_not_depend_on_wrappers() -> None:
    plain = model()
    names = {"0.weight", "0.bias", "1.weight", "1.bias"}
    compiled = torch.compile(model())
    for module in (plain, compiled, nn.DataParallel(model())):
        learner = TorchLearner(module, "127.0.0.1:1", **OPTIONS)
        assert {tensor.name for each in learner.layout.fragments for tensor in each.tensors} == names


@pytest.mark.parametrize("name_filter", ["weight", lambda name: name.endswith("weight")])
def test_only_chosen_and_trainable_parameters_take_part(name_filter: Any) -> None:
    module = model()
    module[1].requires_grad_(False)
    learner = TorchLearner(module, "127.0.0.1:1", name_filter=name_filter, **OPTIONS)
    assert [tensor.name for each in learner.layout.fragments for tensor in each.tensors] == ["0.weight"]


def test_modules_that_cannot_be_trained_are_refused_with_the_way_out() -> None:
    frozen = model().requires_grad_(False)
    with pytest.raises(ValueError, match=r"4 are frozen \(requires_grad=False\), 0 are left out"):
        TorchLearner(frozen, "127.0.0.1:1", **OPTIONS)
    with pytest.raises(ValueError, match="no regular expression"):
        TorchLearner(model(), "127.0.0.1:1", name_filter="(", **OPTIONS)
    with pytest.raises(ValueError, match="meta device"):
        TorchLearner(nn.Linear(2, 2, device="meta"), "127.0.0.1:1", **OPTIONS)
    with pytest.raises(ValueError, match=r"must be a torch.nn.Module, not dict"):
        TorchLearner({"w": np.zeros(3)}, "127.0.0.1:1", **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_fragments must be a whole number"):
        TorchLearner(model(), "127.0.0.1:1", **{**OPTIONS, "num_fragments": 1.5})


def test_a_process_of_torchrun_without_torch_distributed_is_no_learner_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="init_process_group"):
        TorchLearner(model(), "127.0.0.1:1", **OPTIONS)


def test_a_parameter_that_was_replaced_or_reshaped_is_named_at_the_next_step() -> None:
    module = model()
    with running(module) as (learner, _):
        keep = module[0].weight
        module[0].weight = nn.Parameter(torch.zeros(6, 4))
        with pytest.raises(ValueError, match=r"'0.weight' was replaced"):
            learner.step()
        module[0].weight = keep
        values = keep.data
        keep.data = torch.zeros(6, 5)
        with pytest.raises(ValueError, match=r"'0.weight' was torch.float32 of shape \(6, 4\) and is now"):
            learner.step()
        keep.data = values
        with pytest.raises(ValueError, match="tokens"):
            learner.step(tokens=-1)
        assert learner.step() is False


def test_progress_that_is_not_finite_is_named() -> None:
    module = model()
    with running(module) as (learner, peer):
        for number in range(2):
            peer.send(wire.PullReq(number, number + 1, 1))
        arrived(learner.learner, pulls=2)
        with torch.no_grad():
            module[1].bias[2] = torch.nan
        with pytest.raises(ValueError, match=r"parameter '1.bias'"):
            learner.step()


def schedule(module: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)


def test_a_resumed_learner_keeps_its_progress_and_its_schedule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module, path = model(), tmp_path / "resume.npz"
    optimizer, scheduler = schedule(module)
    with running(module) as (learner, peer):
        initial = {number: (0, bytes(flat(learner, module, number).tobytes())) for number in range(2)}
        for _ in range(7):
            shift(module, 0.25)
            optimizer.step()
            scheduler.step()
            learner.step(tokens=10)
        record = learner.save_state(path)
        assert record is not None
        assert record.steps == 7
    saved = {name: value.clone() for name, value in module.state_dict().items()}

    again = model()
    again.load_state_dict(saved)
    _, fresh = schedule(again)
    with (
        caplog.at_level(logging.WARNING),
        ScriptedSyncer(admit=catch_up(initial)) as syncer,
        TorchLearner(again, syncer.address, resume=path, scheduler=fresh, **OPTIONS) as learner,
    ):
        peer = syncer.next_peer()
        assert learner.local_step == 7
        for name, value in again.state_dict().items():
            assert torch.equal(value, saved[name])
        assert fresh.get_last_lr() == scheduler.get_last_lr()
        assert "rebuilt for local step 7" in caplog.text
        peer.send(wire.PullReq(0, 1, 1))
        arrived(learner.learner, pulls=1)
        learner.step(tokens=10)
        push = peer.expect(wire.PushFragment)
        assert (push.local_step, push.c_steps, push.c_tokens) == (8, 8, 80)
        expected = flat(learner, again, 0) - dtypes.decode(Dtype.F32, initial[0][1], push_numel(learner))
        np.testing.assert_array_equal(np.frombuffer(push.delta, np.float32), expected)


def push_numel(learner: TorchLearner) -> int:
    return learner.layout.fragments[0].numel


def test_schedules_that_need_nothing_or_cannot_be_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    _, cold = schedule(model())
    rebuild_schedule(cold, 0)
    assert cold.last_epoch == 0
    _, restored = schedule(model())
    with caplog.at_level(logging.WARNING):
        rebuild_schedule(restored, 5)
        assert restored.last_epoch == 5
        caplog.clear()
        rebuild_schedule(restored, 5)
        assert restored.last_epoch == 5
        assert caplog.text == ""
        rebuild_schedule(restored, 9)
        assert restored.last_epoch == 5
        assert "restored at its step 5, the learner at local step 9" in caplog.text
        rebuild_schedule(None, 9)
        assert "resumed at local step 9 without a scheduler" in caplog.text
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(model().parameters(), lr=1.0))
        rebuild_schedule(plateau, 9)
        assert "ReduceLROnPlateau cannot be rebuilt" in caplog.text
        caplog.clear()
        rebuild_schedule(None, 9, quiet=True)
        assert caplog.text == ""


def chained(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    parts = [lr_scheduler.ConstantLR(optimizer, 0.1, 20), lr_scheduler.ExponentialLR(optimizer, 0.99)]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


def sequence(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    parts = [lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 30), lr_scheduler.CosineAnnealingLR(optimizer, 300)]
    return lr_scheduler.SequentialLR(optimizer, parts, [30])


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.25, 0.1, 200),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 200),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.999),
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 30, 0.5),
    "milestones": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [10, 90], 0.1),
    "polynomial": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 200, 2.0),
    "multiplicative": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.99),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, 200),
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.001, 0.1, 20),
    "chained": chained,
    "sequence": sequence,
}


@pytest.mark.parametrize("order", ["no optimizer state", "loaded after", "loaded before"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_rebuilt_schedule_has_the_rates_of_one_that_was_never_stopped(kind: str, order: str) -> None:
    def made(rate: float) -> torch.optim.Optimizer:
        layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        groups = [{"params": layers[0].parameters()}, {"params": layers[1].parameters(), "lr": rate * 2}]
        return torch.optim.SGD(groups, lr=rate, momentum=0.9)

    def states(optimizer: torch.optim.Optimizer) -> list[tuple[float, float]]:
        return [(group["lr"], group["momentum"]) for group in optimizer.param_groups]

    optimizer = made(0.01)
    scheduler = SCHEDULERS[kind](optimizer)
    for _ in range(100):
        optimizer.step()
        scheduler.step()
    saved = copy.deepcopy(optimizer.state_dict())

    again = made(0.01)
    if order == "loaded before":
        again.load_state_dict(saved)
    fresh = SCHEDULERS[kind](again)
    if order == "loaded after":
        again.load_state_dict(saved)
    rebuild_schedule(fresh, 100)
    assert states(again) == states(optimizer)
    for _ in range(50):
        for each in (optimizer, scheduler, again, fresh):
            each.step()
        assert states(again) == states(optimizer)


def test_a_rate_that_is_a_tensor_keeps_its_memory() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=torch.tensor(0.5))
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    rate = optimizer.param_groups[0]["lr"]
    rate.fill_(0.125)  # as a loaded state has it
    rebuild_schedule(scheduler, 3)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.0625
