"""What was an OpenDiLoCo loop on hivemind.

yeto-syncer --learners 1 --quorum 1 --total-steps 10 --sync-interval-steps 10
python from_opendiloco.py 127.0.0.1:29400 0
"""

import sys

import torch
from torch import nn

from yeto_learner.torch import TorchLearner

address, peer = sys.argv[1], int(sys.argv[2])
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
inner_optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(inner_optimizer, T_max=88_000)
learner = TorchLearner(
    model,
    address,
    learner_id=peer,
    num_fragments=2,
    merge_alpha=0.0,  # as there: the outer step replaces the local values
    scheduler=scheduler,
    session_contract="from opendiloco, run 1",
)
with learner:
    while not learner.done:
        batch = torch.randn(32, 16)
        nn.functional.mse_loss(model(batch), batch).backward()
        inner_optimizer.step()
        scheduler.step()
        inner_optimizer.zero_grad()
        learner.step(tokens=len(batch))
    learner.finish()
print("finished at outer step", learner.global_step)
