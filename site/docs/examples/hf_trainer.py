"""A learner whose loop is the Hugging Face Trainer's: one callback.

yeto-syncer --learners 2 --quorum 2 --total-steps 20 --sync-interval-steps 10
python hf_trainer.py 127.0.0.1:29400 0 out0
python hf_trainer.py 127.0.0.1:29400 1 out1
"""

import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from yeto_learner.hf import LearnerCallback

address, learner_id, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]


class Counting(Dataset):
    """Sequences that count up, modulo 64: each learner sees other ones."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + 2 * index + learner_id) % 64
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)
arguments = TrainingArguments(
    output_dir=folder,
    max_steps=1_000_000,  # the syncer ends the run long before
    per_device_train_batch_size=16,
    learning_rate=1e-3,
    lr_scheduler_type="constant",
    include_num_input_tokens_seen="all",  # so that progress is weighed by tokens
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    logging_strategy="no",
)
callback = LearnerCallback(address, learner_id=learner_id, session_contract="trainer example, run 1")
trainer = Trainer(model, arguments, train_dataset=Counting(), callbacks=[callback])
trainer.train()
trainer.save_model()  # the final parameters, the same bits in every learner

checksum = sum(parameter.detach().double().abs().sum().item() for parameter in model.parameters())
print(f"checksum {checksum!r}")
