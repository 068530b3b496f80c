"""A learner of plain sockets in a process of its own, for tests that kill or stop it.

python -m tests.e2e.lone_learner PORT ID [--generation N] [--hold-at STEP]

It tells on standard output what it answers, where it holds, and at the end the digest of its final cut.
"""

from __future__ import annotations

import argparse
import hashlib

from tests.e2e.raw import Trainer, hello, train
from tests.e2e.test_syncer_run import small_layout
from yeto_proto._generated.messages import PullReq

LIFE_S = 300.0


class Telling(Trainer):
    """Answers every pull below `hold_at`, and says so."""

    hold_at = 2**63

    def answer(self, pull: PullReq) -> None:
        if pull.global_step >= self.hold_at:
            print(f"holding {pull.global_step}", flush=True)
            return
        super().answer(pull)
        print(f"answered {pull.global_step}", flush=True)


def digest(learner: Trainer) -> str:
    """What the final cut of a learner holds."""
    return hashlib.sha256(b"".join(learner.final[n][1].tobytes() for n in sorted(learner.final))).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("id", type=int)
    parser.add_argument("--generation", type=int, default=1)
    parser.add_argument("--hold-at", type=int, default=Telling.hold_at)
    options = parser.parse_args()
    greeting = hello(small_layout(), options.id, generation=options.generation, streams=1)
    learner = Telling(options.port, greeting, target=1.0)
    learner.hold_at = options.hold_at
    train([learner], LIFE_S)
    print(f"final {digest(learner)}", flush=True)
    learner.close()


if __name__ == "__main__":
    main()
