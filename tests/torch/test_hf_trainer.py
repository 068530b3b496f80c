"""`LearnerCallback` in a Trainer that is broken off and resumed."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from tests.e2e.learner.rig import Initializer, send_cut
from tests.e2e.scripted_syncer import WAIT, Peer, ScriptedSyncer
from yeto_learner.hf import RECORD_NAME, LearnerCallback
from yeto_proto._generated import messages as wire

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

STEPS, SAVE = 5, 3


class Sequences(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(8) + index) % 32
        return {"input_ids": tokens, "labels": tokens}


class BrokenOffError(RuntimeError):
    pass


class BreakOff(TrainerCallback):
    """The machine fails after so many steps."""

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if state.global_step == STEPS:
            raise BrokenOffError


class Watch(TrainerCallback):
    """Learning rates as they were used."""

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.rates[state.global_step] = parts["optimizer"].param_groups[0]["lr"]


def trainer(folder: Path, callbacks: list[TrainerCallback], max_steps: int) -> Trainer:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=max_steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        lr_scheduler_type="linear",
        save_strategy="steps",
        save_steps=SAVE,
        save_only_model=True,  # neither optimizer nor scheduler: the schedule would start again from step 0
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    return Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Sequences(), callbacks=callbacks)


def callback(address: str) -> LearnerCallback:
    return LearnerCallback(
        address,
        num_fragments=2,
        dtype="f32",
        num_streams=1,
        session_contract="test",
        connect_timeout_s=WAIT,
        initial_cut_timeout_s=WAIT,
        finalization_timeout_s=WAIT,
    )


def end_of_run(learner: LearnerCallback, peer: Peer, cut: list[np.ndarray[Any, Any]]) -> None:
    assert learner.learner is not None
    cut += send_cut(learner.learner.learner, peer, 9)
    peer.expect(wire.FinalAck, 2 * WAIT)
    peer.send(wire.Shutdown())


def test_a_trainer_is_resumed_from_its_checkpoint_and_ends_with_the_final_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    initializer, watch = Initializer(), Watch()
    with ScriptedSyncer(initializer) as syncer:
        first = callback(syncer.address)
        broken = trainer(tmp_path, [first, watch, BreakOff()], 100)
        with pytest.raises(BrokenOffError):
            broken.train()
        peer = syncer.next_peer()
        assert all(isinstance(each, wire.Heartbeat) for each in peer.inbox.queue)
        first.close()
    checkpoint = tmp_path / f"checkpoint-{SAVE}"
    assert (checkpoint / RECORD_NAME).is_file()

    admitted: list[Peer] = []

    def admit(peer: Peer) -> None:
        admitted.append(peer)
        for number, tensor in initializer.tensors.items():
            peer.broadcast(number, 0, tensor)  # the syncer still is where it was
        peer.send(wire.PullReq(0, 1, 1))

    again, cut, tail = Watch(), [], {}

    def answer(peer: Peer, message: Any) -> bool:
        if isinstance(message, wire.PushFragment) and not tail:
            tail["push"] = message
            tail["thread"] = threading.Thread(target=end_of_run, args=(second, peer, cut))
            tail["thread"].start()
            return True
        return False

    with caplog.at_level(logging.WARNING), ScriptedSyncer(answer, admit=admit) as syncer:
        second = callback(syncer.address)
        resumed = trainer(tmp_path, [second, again], 100)
        resumed.train(resume_from_checkpoint=True)
        tail["thread"].join(WAIT)
    push = tail["push"]
    assert push.local_step == push.c_steps > SAVE, "the steps before the checkpoint count"
    assert push.c_tokens == 8 * push.c_steps  # sequences: 4 in a batch, 2 batches for an update
    assert again.rates[SAVE] == watch.rates[SAVE] < watch.rates[0]
    assert "rebuilt for local step 3" in caplog.text
    assert second.learner is not None
    named = dict(resumed.model.named_parameters())
    for number, fragment in enumerate(second.learner.layout.fragments):
        got = torch.cat([named[tensor.name].detach().reshape(-1) for tensor in fragment.tensors])
        np.testing.assert_array_equal(got.numpy(), cut[number])
    assert not [each.name for each in threading.enumerate() if each.name.startswith("yeto-")]


def test_a_trainer_that_stops_early_waits_for_the_final_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut: list[np.ndarray[Any, Any]] = []
    with caplog.at_level(logging.WARNING), ScriptedSyncer(Initializer()) as syncer:
        learner = callback(syncer.address)

        class Ended(TrainerCallback):
            """Stands before the learner in the list of callbacks, so it sees the end first."""

            def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
                self.thread = threading.Thread(target=end_of_run, args=(learner, syncer.next_peer(), cut))
                self.thread.start()

        ended = Ended()
        short = trainer(tmp_path, [ended, learner], 2)
        short.train()
        ended.thread.join(WAIT)
    assert "the Trainer stopped at step 2, before the end of the run" in caplog.text
    named = dict(short.model.named_parameters())
    assert learner.learner is not None
    for number, fragment in enumerate(learner.learner.layout.fragments):
        got = torch.cat([named[tensor.name].detach().reshape(-1) for tensor in fragment.tensors])
        np.testing.assert_array_equal(got.numpy(), cut[number])
