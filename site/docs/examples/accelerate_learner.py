"""A learner whose loop is Hugging Face Accelerate's, on one process or many.

yeto-syncer --learners 2 --quorum 2 --total-steps 40 --sync-interval-steps 50
python accelerate_learner.py 127.0.0.1:29400 0
accelerate launch --multi_gpu --num_processes 2 accelerate_learner.py 127.0.0.1:29400 1
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from yeto_learner.torch import TorchLearner

address, learner_id = sys.argv[1], int(sys.argv[2])
accelerator = Accelerator()
torch.manual_seed(0)
truth = torch.arange(32, dtype=torch.float32).reshape(4, 8) / 32
inputs = torch.randn(4096, 8)[learner_id::2]  # the shard of this learner
data = DataLoader(TensorDataset(inputs, inputs @ truth.T + 1), batch_size=64, shuffle=True)

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, data = accelerator.prepare(model, optimizer, data)


def batches():
    while True:  # the syncer says when it is enough
        yield from data


# After prepare(): the module may be wrapped or sharded now, and the learner wants it so.
learner = TorchLearner(model, address, learner_id=learner_id, session_contract="accelerate example, run 1")
with learner:
    for x, y in batches():
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if learner.step(tokens=len(x)):  # on all processes, once for each optimizer step
            break
    learner.finish()

weight = accelerator.unwrap_model(model).weight.detach().cpu()
accelerator.print(f"distance from the truth: {(weight - truth).abs().max():.4f}")
accelerator.end_training()
