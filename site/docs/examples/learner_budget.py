"""The learner-budget benchmark: every learner takes exactly so many local steps, and all of them are merged.

python learner_budget.py --learners 2 --budget 150 --folder budget-run

Two syncer processes on one port and a process for each learner, all on this machine. The first syncer ends
with the cutoff, the second consolidates what was left, and `yeto-tape check` judges the tape of both.
"""

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from yeto_learner import Learner
from yeto_proto.files import read_snapshot

FRAGMENTS = 4
WAIT_S = 120.0  # for anything that has to happen, on a busy machine


def learn(address: str, learner_id: int, budget: int, contract: str) -> None:
    """One learner: linear regression with an exact number of local steps."""
    random = np.random.default_rng(learner_id)
    truth = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
    parameters = {f"layers.{number}": np.zeros((8, 4), np.float32) for number in range(FRAGMENTS)}
    learner = Learner(
        *(parameters, address),
        learner_id=learner_id,
        num_fragments=FRAGMENTS,
        num_streams=2,
        session_contract=contract,
        budget_steps=budget,
        initial_cut_timeout_s=WAIT_S,
        finalization_timeout_s=WAIT_S,
    )
    with learner:
        while not learner.done:  # which means here: until the budget is used up
            x = random.standard_normal((16, 8), dtype=np.float32)
            error = x @ sum(parameters.values()) - x @ truth
            for weight in parameters.values():
                weight -= 0.01 * x.T @ error / len(x)
            time.sleep(0.01)  # a step of a real model takes its time
            learner.step(tokens=len(x))
        # Reports the budget, waits for the second syncer, answers each fragment once more, from parameters
        # that no longer change, and takes the final cut.
        learner.finish()
    print(f"learner {learner_id}: {learner.local_step} local steps, all merged", flush=True)


class Processes:
    """What this script has started. Whatever still runs at the end is ended."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()
            process.wait()

    def start(self, *command: object) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen([sys.executable, *map(str, command)]))
        return self.started[-1]

    def ended(self, process: subprocess.Popen[bytes], what: str) -> None:
        """Wait for a process that has to end well."""
        try:
            code = process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"error: not done in {WAIT_S:g} s; {what}; see what it says above") from None
        if code != 0:
            raise SystemExit(f"error: exit code {code}; {what}; see what it says above")


def benchmark(learners: int, budget: int, folder: Path) -> int:
    """Both syncers and all learners. Returns the exit code of `yeto-tape check`."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, tape, port_file = folder / "state.ckpt", folder / "tape.jsonl", folder / "port"
    marker = folder / "state.ckpt.final"
    for stale in (checkpoint, tape, port_file, marker):
        stale.unlink(missing_ok=True)
    # Both syncers ask everybody and wait for everybody, with two rounds in flight.
    syncer = ["-m", "yeto_syncer", "--log-level", "warning", "--learners", learners, "--quorum", learners]
    syncer += ["--pipeline", 2, "--sync-interval-steps", 0, "--event-tape", tape]
    syncer += ["--checkpoint-path", checkpoint, "--checkpoint-every", 0]

    with Processes() as processes:
        # 1. The cutoff process: as many rounds as the budget allows, and an end when all have reported it.
        flags = ["--port", 0, "--port-file", port_file, "--total-steps", 10**9]
        cutoff = processes.start(*syncer, *flags, "--learner-budget-steps", budget)
        while not port_file.exists() and cutoff.poll() is None:
            time.sleep(0.05)
        if not port_file.exists():
            raise SystemExit("error: it does not listen; the cutoff process; see what it says above")
        port = port_file.read_text().strip()
        contract = f"learner budget {time.time_ns()}"  # a new one for each run
        fleet = [
            processes.start(
                __file__, "--learn", number, "--port", port, "--contract", contract, "--budget", budget
            )
            for number in range(learners)
        ]
        processes.ended(cutoff, "the cutoff process")
        if marker.exists():
            raise SystemExit(f"error: a cutoff is never final; {marker}; the benchmark is void")

        # 2. The consolidation: from the cutoff's step C exactly one ordinary round for each fragment.
        cut = read_snapshot(checkpoint).global_step
        print(f"cutoff at step {cut}", flush=True)
        flags = ["--port", port, "--total-steps", cut + FRAGMENTS, "--resume", "--mark-final-checkpoint"]
        consolidation = processes.start(*syncer, *flags)
        for number, process in enumerate(fleet):
            processes.ended(process, f"learner {number}")
        processes.ended(consolidation, "the consolidation process")
        if not marker.exists():
            raise SystemExit(f"error: there is no final marker; {marker}; the benchmark is void")

    # 3. The tape must show every learner, with its whole budget, in every one of these rounds.
    check = ["check", "--learners", learners, "--budget", budget, "--from", cut, tape]
    command = [sys.executable, "-m", "yeto_syncer.tape_cli", *map(str, check)]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--learners", type=int, default=2, help="number of learners")
    parser.add_argument("--budget", type=int, default=150, help="local steps of each")
    parser.add_argument("--folder", type=Path, default=Path("budget-run"), help="for checkpoint and tape")
    parser.add_argument("--learn", type=int, metavar="ID", help=argparse.SUPPRESS)  # one learner's process
    parser.add_argument("--port", help=argparse.SUPPRESS)
    parser.add_argument("--contract", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing it started is left behind
    if options.learn is None:
        return benchmark(options.learners, options.budget, options.folder)
    learn(f"127.0.0.1:{options.port}", options.learn, options.budget, options.contract)
    return 0


if __name__ == "__main__":
    sys.exit(main())
