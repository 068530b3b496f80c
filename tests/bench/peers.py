"""Whole synchronisations of 64M parameters beside gloo and torchft, on this machine and in one run.

    make bench-peers

gloo: every process has the whole f32 tensor, `all_reduce`, one step of torch's Nesterov SGD. torchft: its
DiLoCo with four fragments and the gloo process group, as its own documentation sets it up. It is measured
when it can be imported, as it is after `make bench-peers`. All of it is loopback.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench import bench_sync  # noqa: E402
from tests.bench.common import Row, children, row  # noqa: E402

VALUES = 64 << 20
FRAGMENTS = 4
SYNCS = 5  # the first is not counted
LR, MU = 0.7, 0.9


def gloo(pipe: Connection, rank: int, size: int, store: str) -> None:
    """all_reduce of the whole tensor and the outer step."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    params = torch.nn.Parameter(torch.ones(VALUES))
    outer = torch.optim.SGD([params], lr=LR, momentum=MU, nesterov=True)
    delta = torch.full((VALUES,), 1e-6)
    taken = []
    for _ in range(SYNCS):
        dist.barrier()
        started = time.perf_counter()
        params.grad = delta.clone()
        dist.all_reduce(params.grad)
        params.grad /= size
        outer.step()
        taken.append(time.perf_counter() - started)
    pipe.send(taken[1:])
    pipe.recv()


def torchft(pipe: Connection, rank: int, size: int, lighthouse: str) -> None:
    """torchft's DiLoCo: each inner step synchronises one of the four fragments."""
    import torch
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fragments = [torch.nn.Module() for _ in range(FRAGMENTS)]
    for each in fragments:
        each.values = torch.nn.Parameter(torch.ones(VALUES // FRAGMENTS))
    model = torch.nn.ModuleList(fragments)
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    outer = [torch.optim.SGD(each.parameters(), lr=LR, momentum=MU, nesterov=True) for each in fragments]
    manager: Any = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=120)),
        load_state_dict=lambda state: None,
        state_dict=dict,
        min_replica_size=size,
        use_async_quorum=False,
        timeout=timedelta(seconds=120),
        quorum_timeout=timedelta(seconds=120),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica{rank}",
        hostname="127.0.0.1",
        init_sync=False,
    )
    taken = []
    with DiLoCo(manager, fragments, inner, outer, sync_every=FRAGMENTS, pin_memory=False):
        for _ in range(SYNCS):
            started = time.perf_counter()
            for _ in range(FRAGMENTS):
                inner.step()
            taken.append(time.perf_counter() - started)
    pipe.send(taken[1:])
    pipe.recv()


def seconds_of(work: Callable[..., None], learners: int, *arguments: Any) -> list[float]:
    """The slowest process of each synchronisation."""
    with children(*[(work, rank, learners, *arguments) for rank in range(learners)]) as started:
        each = [child.hear() for child in started]
    return [max(times) for times in zip(*each, strict=True)]


def with_gloo(learners: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        return seconds_of(gloo, learners, str(Path(folder) / "store"))


def with_torchft(learners: int) -> list[float]:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=learners, join_timeout_ms=10_000)
    try:
        port = server.address().rpartition(":")[2]
        return seconds_of(torchft, learners, f"http://127.0.0.1:{port}")
    finally:
        server.shutdown()


def rows(repeats: int) -> list[Row]:
    """A whole synchronisation with each, for two and four learners."""
    found: list[Row] = []
    torchft_there = importlib.util.find_spec("torchft") is not None
    for learners, target in ((2, 1.5), (4, 1.2)):
        mine: list[float] = []
        times: dict[str, list[float]] = {"gloo all_reduce + Nesterov": [], "a bare star": []}
        if torchft_there:
            times["torchft DiLoCo"] = []
        for _ in range(repeats):
            for name, kept in times.items():
                if name.startswith("gloo"):
                    kept += with_gloo(learners)
                elif name.startswith("torchft"):
                    kept += with_torchft(learners)
                else:
                    kept += bench_sync.star(learners)
            mine += bench_sync.product(learners)[0]
        taken = median(mine)
        for name, kept in times.items():
            most = target if name.startswith("gloo") else None
            text = f"whole synchronisation, M = {learners}, beside {name}"
            found.append(row(text, taken, "s", median(kept), None if most is None else round(1 / most, 2)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("build/bench-peers.json"))
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print(
            "error: torch is not installed; .venv; run `make bench-peers`, or pip install torch",
            file=sys.stderr,
        )
        return 1
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    os.environ.setdefault("RUST_LOG", "error")  # torchft's own log of every quorum
    found = rows(arguments.repeats)
    for one in found:
        more = "" if one["target"] is None else f", target {one['target']}"
        print(f"{one['work']}: {one['value']:.3f} s, {one['raw']:.3f} s (ratio {one['ratio']:.2f}{more})")
    if importlib.util.find_spec("torchft") is None:
        print("torchft is not installed: no row for it (pip install torchft)")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {arguments.output}")
    return 0


def loopback() -> str:
    """The name of the loopback interface."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


if __name__ == "__main__":
    sys.exit(main())
