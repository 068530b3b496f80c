"""A LoRA adapter (peft) through a whole run: only the adapter travels, the base stays bit for bit."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from tests.e2e.processes import Processes
from tests.torch.rig import WAIT
from yeto_learner.torch import TorchLearner
from yeto_proto.files import read_snapshot

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


def lora_model() -> nn.Module:
    """The same in every learner: a tiny GPT-2 with adapters on its attention."""
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    module: nn.Module = get_peft_model(
        base, LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM")
    )
    return module


def train(module: nn.Module, address: str, number: int, ended: list[int]) -> None:
    learner = TorchLearner(
        *(module, address),
        learner_id=number,
        num_fragments=2,
        num_streams=1,
        session_contract="lora",
        connect_timeout_s=WAIT,
        initial_cut_timeout_s=WAIT,
        finalization_timeout_s=WAIT,
    )
    optimizer = torch.optim.AdamW([each for each in module.parameters() if each.requires_grad], lr=1e-2)
    batch = (torch.arange(16) + torch.arange(8)[:, None] + number) % 64
    with learner:
        while not learner.done:
            loss = module(input_ids=batch, labels=batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            learner.step(tokens=batch.numel())
        learner.finish()
    ended.append(number)


def test_only_the_adapter_travels_and_the_base_is_unchanged(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "state.ckpt"
    syncer = processes.syncer(
        *("--learners", "2", "--quorum", "2", "--total-steps", "12", "--sync-interval-steps", "2"),
        *("--grace-ms", "20000", "--checkpoint-path", str(path)),
    )
    modules = [lora_model() for _ in range(2)]
    before = {name: value.clone() for name, value in modules[0].state_dict().items()}
    ended: list[int] = []
    threads = [
        threading.Thread(target=train, args=(module, f"127.0.0.1:{syncer.port}", number, ended))
        for number, module in enumerate(modules)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT)
    assert sorted(ended) == [0, 1]
    syncer.finished(0)

    adapter = {name for name, each in modules[0].named_parameters() if each.requires_grad}
    assert len(adapter) == 4
    assert all("lora_" in name for name in adapter)
    for name, value in modules[0].state_dict().items():
        assert torch.equal(value, modules[1].state_dict()[name]), name
        assert torch.equal(value, before[name]) == (name not in adapter), name
    snapshot = read_snapshot(path)
    sent = sum(each.numel() for each in modules[0].parameters() if each.requires_grad)
    assert sum(len(each.params) for each in snapshot.fragments) == sent
    assert sent < 0.1 * sum(each.numel() for each in modules[0].parameters())
