"""A PyTorch learner: the training loop as it was, and four lines around it.

yeto-syncer --learners 2 --quorum 2 --total-steps 40 --sync-interval-steps 50
python torch_learner.py 127.0.0.1:29400 0
python torch_learner.py 127.0.0.1:29400 1
"""

import sys

import torch
from torch import nn

from yeto_learner.torch import TorchLearner

address, learner_id = sys.argv[1], int(sys.argv[2])
torch.manual_seed(learner_id)  # every learner sees other data
truth = torch.arange(32, dtype=torch.float32).reshape(4, 8) / 32

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
learner = TorchLearner(model, address, learner_id=learner_id, session_contract="torch example, run 1")
with learner:  # connects; learner 0 sends the first parameters; everyone receives them
    while not learner.done:
        x = torch.randn(64, 8)
        loss = nn.functional.mse_loss(model(x), x @ truth.T + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.step(tokens=len(x))  # never waits for the network
    learner.finish()  # the final parameters, the same bits in every learner

print(f"distance from the truth: {(model.weight - truth).abs().max():.4f}")
