"""What the example of the README takes as given: a model, a training step, and the other two learners."""

import threading

import numpy as np

from yeto_learner import Learner


def train_one_step(values):
    for array in values.values():
        array += 0.01 * (1 - array)
    return 16


def other(learner_id):
    mine = {"layers.0.weight": np.zeros((8, 4), np.float32), "layers.0.bias": np.zeros(4, np.float32)}
    with Learner(
        mine, "127.0.0.1:29400", learner_id=learner_id, num_fragments=2, session_contract="run 1"
    ) as one:
        while not one.done:
            one.step(tokens=train_one_step(mine))
        one.finish()


# No daemons: the process ends when these, too, have the final parameters.
others = [threading.Thread(target=other, args=(learner_id,)) for learner_id in (1, 2)]
for each in others:
    each.start()
weight, bias = np.zeros((8, 4), np.float32), np.zeros(4, np.float32)
