"""What was one DDP job over several machines: now one for each machine, with its own learner id.

yeto-syncer --learners 1 --quorum 1 --total-steps 10 --sync-interval-steps 10
torchrun --nproc-per-node 2 from_ddp.py 127.0.0.1:29400 0
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from yeto_learner.torch import TorchLearner

address, machine = sys.argv[1], int(sys.argv[2])
dist.init_process_group()
rank = dist.get_rank()
device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"

torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(16, 16).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4)
everything = TensorDataset(torch.randn(4096, 16))
shard = torch.utils.data.Subset(everything, range(machine % 2, 4096, 2))  # new: this machine's part
sampler = DistributedSampler(shard)
data = DataLoader(shard, batch_size=32, sampler=sampler)

learner = TorchLearner(model, address, learner_id=machine, session_contract="from ddp, run 1")  # new
epoch = 0
with learner:
    while not learner.done:  # was: for epoch in range(epochs)
        sampler.set_epoch(epoch)
        for (batch,) in data:
            batch = batch.to(device)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch), batch).backward()
            optimizer.step()
            if learner.step(tokens=len(batch)):  # new, on every rank
                break
        epoch += 1
    learner.finish()  # new
if rank == 0:
    print("finished at outer step", learner.global_step)
dist.destroy_process_group()
