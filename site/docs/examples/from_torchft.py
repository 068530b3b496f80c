"""What was a torchft DiLoCo loop.

yeto-syncer --learners 1 --quorum 1 --total-steps 10 --sync-interval-steps 10
python from_torchft.py 127.0.0.1:29400 0
"""

import sys

import torch
from torch import nn

from yeto_learner.torch import TorchLearner

address, replica_id = sys.argv[1], int(sys.argv[2])
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
inner_optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4)
learner = TorchLearner(
    model,
    address,
    learner_id=replica_id,
    num_fragments=4,
    pattern="strided",
    merge_alpha=0.5,  # fragment_update_alpha
    session_contract="from torchft, run 1",
)
with learner:
    while not learner.done:
        batch = torch.randn(32, 16)
        inner_optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), batch).backward()
        inner_optimizer.step()
        learner.step(tokens=len(batch))
    learner.finish()
print("finished at outer step", learner.global_step)
