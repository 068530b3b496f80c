"""What the tests of the PyTorch side share."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.processes import Processes, Running

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "site" / "docs" / "examples"
WAIT = 180.0
SLOW = 600.0  # seconds for whole processes that import torch on a busy machine

# One thread each, loopback only, no look at a hub.
ENVIRON = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "ACCELERATE_USE_CPU": "true",  # as `accelerate launch --cpu` sets it
}


def torchrun(processes: Processes, ranks: int, *arguments: str) -> Running:
    """Start a script as `torchrun` does, on this machine, whatever its name resolves to."""
    return processes.run(
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", str(ranks), *arguments),
        environ=ENVIRON,
    )


def script(processes: Processes, *arguments: str) -> Running:
    """Start a script in one process."""
    return processes.run(sys.executable, *arguments, environ=ENVIRON)


def succeeded(running: Running, timeout: float = SLOW) -> str:
    """Wait for its end; what it printed."""
    code = running.wait(timeout)
    assert code == 0, f"exit code {code}; stderr:\n{running.stderr.text}"
    return running.stdout.text
