"""A learner in ten lines: linear regression in numpy, trained by several processes through one syncer.

yeto-syncer --learners 2 --quorum 2 --total-steps 40
python numpy_learner.py 127.0.0.1:29400 0
python numpy_learner.py 127.0.0.1:29400 1
"""

import sys

import numpy as np

from yeto_learner import Learner

address, learner_id = sys.argv[1], int(sys.argv[2])
random = np.random.default_rng(learner_id)  # every learner sees other data
truth = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
parameters = {"layers.0.weight": np.zeros((8, 4), np.float32), "layers.0.bias": np.zeros(4, np.float32)}

learner = Learner(
    parameters, address, learner_id=learner_id, num_fragments=2, session_contract="numpy example, run 1"
)
with learner:  # connects; learner 0 sends the first parameters; everyone receives them
    while not learner.done:
        x = random.standard_normal((64, 8), dtype=np.float32)
        error = x @ parameters["layers.0.weight"] + parameters["layers.0.bias"] - (x @ truth + 1)
        parameters["layers.0.weight"] -= 0.02 * x.T @ error / len(x)
        parameters["layers.0.bias"] -= 0.02 * error.mean(axis=0)
        learner.step(tokens=len(x))  # never waits: hands over what was asked for, takes what has arrived
    learner.finish()  # the final parameters, the same bits in every learner

print(f"distance from the truth: {abs(parameters['layers.0.weight'] - truth).max():.4f}")
