"""A fleet of learners on a Ray cluster, one actor for each.

yeto-syncer --learners 2 --quorum 2 --total-steps 40 --sync-interval-steps 50
RAY_ADDRESS=127.0.0.1:6379 python ray_fleet.py 127.0.0.1:29400
"""

import sys

import ray
import torch
from torch import nn

from yeto_learner.ray import Island, run_fleet
from yeto_learner.torch import TorchLearner

address = sys.argv[1]


def train(island: Island) -> float:
    """Runs on the machine that Ray chose; returns the last loss."""
    torch.manual_seed(100 * island.learner_id + island.attempt)
    truth = torch.arange(32, dtype=torch.float32).reshape(4, 8) / 32
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TorchLearner(
        model, address, learner_id=island.learner_id, session_contract="ray example, run 1"
    ) as learner:
        while not learner.done:
            x = torch.randn(64, 8)
            loss = nn.functional.mse_loss(model(x), x @ truth.T + 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            learner.step(tokens=len(x))
        learner.finish()
    return float((model.weight - truth).abs().max())


ray.init()  # joins the cluster of RAY_ADDRESS, or starts one on this machine
distances = run_fleet(train, islands=2, resources={"CPU": 1}, max_restarts=5)
print("distances from the truth:", " ".join(f"{distance:.4f}" for distance in distances))
