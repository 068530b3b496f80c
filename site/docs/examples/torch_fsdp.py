"""One learner on several GPUs (or CPU processes): its ranks are the processes of `torchrun`.

yeto-syncer --learners 1 --quorum 1 --total-steps 20 --sync-interval-steps 20
torchrun --nproc-per-node 2 torch_fsdp.py 127.0.0.1:29400 0
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from yeto_learner.torch import TorchLearner

address, learner_id = sys.argv[1], int(sys.argv[2])
dist.init_process_group()
rank, device = dist.get_rank(), "cpu"
if torch.cuda.is_available():
    device = f"cuda:{rank % torch.cuda.device_count()}"
    torch.cuda.set_device(device)

torch.manual_seed(0)  # the ranks of one learner begin with the same model
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)).to(device)
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

# After wrapping and sharding.  Every rank makes the learner; only rank 0 talks to the syncer.
learner = TorchLearner(
    model, address, learner_id=learner_id, num_fragments=2, session_contract="fsdp example, run 1"
)
torch.manual_seed(1000 * learner_id + rank)  # but every rank sees other data
with learner:
    while not learner.done:
        x = torch.randn(64, 8, device=device)
        loss = nn.functional.mse_loss(model(x), x[:, :4] * 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.step(tokens=len(x))  # of this rank: the learner adds them up
    learner.finish()

if rank == 0:
    print(f"{learner.local_step} local steps, global step {learner.global_step}, loss {loss.item():.4f}")
dist.destroy_process_group()
