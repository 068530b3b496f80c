"""A learner that saves its state every 20 steps and continues from it when it is started again.

yeto-syncer --learners 1 --quorum 1 --total-steps 30 --sync-interval-steps 20
python resume_learner.py 127.0.0.1:29400 0 folder
"""

import sys
from pathlib import Path

import torch
from torch import nn

from yeto_learner.torch import TorchLearner

address, learner_id, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
folder.mkdir(exist_ok=True)
state = folder / "state.pt"

model = nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=2000)
record = None
if state.exists():
    saved = torch.load(state)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    record = folder / saved["record"]

learner = TorchLearner(
    model,
    address,
    learner_id=learner_id,
    session_contract="resume example, run 1",
    resume=record,
    scheduler=scheduler,  # not saved here: the learner brings it to the resumed step
)
with learner:
    while not learner.done:
        x = torch.randn(64, 8)
        loss = nn.functional.mse_loss(model(x), x[:, :4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        learner.step(tokens=len(x))
        if learner.local_step % 20 == 0:
            # Two names in turn: the record that the saved state names is never the one being written.
            name = f"record{learner.local_step // 20 % 2}.npz"
            learner.save_state(folder / name)
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "record": name}
            torch.save(parts, folder / "state.tmp")
            (folder / "state.tmp").replace(state)
    learner.finish()
print(f"{learner.local_step} local steps, rate {scheduler.get_last_lr()[0]:g}")
