"""The processes of one learner: rank 0 talks to the syncer, and the others do what it says.

At a step boundary rank 0 runs the step of a plain `Learner`.  Wherever that needs the values of a tensor that
lies on several ranks, it sends a command first, and all ranks then take part in the same collective.  The
commands travel over a gloo group of their own, so that a long wait of rank 0 (for the first broadcasts, or
for the final cut) occupies no accelerator and no timeout of the training's group.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

from yeto_learner.arguments import require

from .tensors import ModuleTensors

__all__ = ["OtherRankError", "Ranks", "Status"]

T = TypeVar("T")

LEADER: Final = 0


class OtherRankError(RuntimeError):
    """Another rank of this learner failed; its own error tells why, this one says what is known of it."""


class Status(NamedTuple):
    """What every rank knows after a boundary."""

    done: int = 0  # 1 once the run is over
    global_step: int = 0
    local_step: int = 0
    rounds_answered: int = 0


class _Command(IntEnum):
    GATHER = 1  # all ranks: gather tensor `index`; rank 0 keeps it
    STORE = 2  # all ranks: take tensor `index` from rank 0
    END = 3  # the boundary is over
    FAIL = 4  # rank 0 failed, a text follows


class Ranks:
    """The ranks of the default process group, or this process alone.

    timeout: seconds that rank 0 may keep the others waiting.  Raises ValueError on all ranks when they do not
    hold the same parameters.
    """

    def __init__(self, tensors: ModuleTensors, timeout: float) -> None:
        self._tensors = list(tensors.by_name.values())
        self.rank, self.size = 0, 1
        self._group: Any = None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
        else:
            launched = os.environ.get("WORLD_SIZE", "1")
            require(
                launched == "1" or "LOCAL_RANK" not in os.environ,
                f"this is one of {launched} processes of torchrun, and torch.distributed is not initialized: "
                f"each would join as a learner of its own; call torch.distributed.init_process_group() first "
                f"(with Accelerate on CPUs: Accelerator(cpu=True))",
            )
        if self.size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
            self._compare(repr(tensors.describe()))

    @property
    def leads(self) -> bool:
        return self.rank == LEADER

    def _compare(self, description: str) -> None:
        own = _as_tensor(hashlib.sha256(description.encode()).digest())
        digests = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(digests, own, group=self._group)
        others = [rank for rank, digest in enumerate(digests) if not torch.equal(digest, digests[LEADER])]
        if others:
            raise ValueError(
                f"ranks {others} hold other parameters than rank 0 (names, shapes or dtypes); every rank of "
                f"a learner holds the whole model, sharded by FSDP2 or replicated; no pipeline stages"
            )

    # -- one boundary

    def add(self, amount: int, *, failed: bool) -> int:
        """The sum of `amount` over all ranks.  Raises OtherRankError when any other rank has failed."""
        if self.size == 1:
            return amount
        numbers = torch.tensor([amount, int(failed)], dtype=torch.int64)
        dist.all_reduce(numbers, group=self._group)
        if int(numbers[1]) and not failed:
            raise OtherRankError("another rank of this learner refused the step; its own error says why")
        return int(numbers[0])

    def lead(self, action: Callable[[], T], status: Callable[[], Status]) -> tuple[T, Status]:
        """Rank 0: run an action whose reads and writes the others follow, then tell them the status."""
        try:
            result = action()
        except BaseException as error:
            # A rank that is gone cannot be told either; the first error is the one to raise.
            with contextlib.suppress(RuntimeError):
                self._command(_Command.FAIL)
                self._tell(f"rank 0 failed: {type(error).__name__}: {error}")
            raise
        now = status()
        self._command(_Command.END, 0, now)
        return result, now

    def follow(self) -> Status:
        """Any other rank: do what rank 0 says until its action is over.  Raises OtherRankError."""
        while True:
            numbers = torch.zeros(2 + len(Status()), dtype=torch.int64)
            dist.broadcast(numbers, LEADER, group=self._group)
            command, index, *status = (int(number) for number in numbers)
            match _Command(command):
                case _Command.GATHER:
                    self._gather(index)
                case _Command.STORE:
                    tensor = self._tensors[index]
                    self._store(tensor, torch.empty(tensor.shape, dtype=tensor.dtype))
                case _Command.END:
                    return Status(*status)
                case _Command.FAIL:
                    raise OtherRankError(self._tell(None))

    def _command(self, command: _Command, index: int = 0, status: Status | None = None) -> None:
        if self.size > 1:
            numbers = torch.tensor([command, index, *(status or Status())], dtype=torch.int64)
            dist.broadcast(numbers, LEADER, group=self._group)

    def _tell(self, text: str | None) -> str:
        if self.size == 1:
            return text or ""
        # As numbers and not as objects, which would be pickled.
        data = _as_tensor(b"" if text is None else text.encode(errors="backslashreplace"))
        length = torch.tensor([len(data)], dtype=torch.int64)
        dist.broadcast(length, LEADER, group=self._group)
        if text is None:
            data = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(data, LEADER, group=self._group)
        return bytes(data.tolist()).decode()

    # -- tensors, on rank 0

    def load(self, index: int) -> torch.Tensor:
        """The whole tensor in its own dtype, flat, on the CPU: its own memory where that is possible."""
        tensor = self._tensors[index]
        if isinstance(tensor, DTensor):
            self._command(_Command.GATHER, index)
            full = self._gather(index)
        else:
            full = tensor.detach()
        return full.to("cpu").reshape(-1)

    def save(self, index: int, values: torch.Tensor) -> None:
        """Write what `load` gave, changed since, into the tensor of every rank."""
        tensor = self._tensors[index]
        self._command(_Command.STORE, index)
        self._store(tensor, values.view(tensor.shape))

    # -- collectives, on all ranks

    def _gather(self, index: int) -> torch.Tensor:
        tensor = self._tensors[index]
        with torch.no_grad():
            # With CPU offload the shards are not where the mesh communicates.
            full: torch.Tensor = tensor.detach().to(tensor.device_mesh.device_type).full_tensor()
        return full

    def _store(self, tensor: torch.Tensor, full: torch.Tensor) -> None:
        with torch.no_grad():
            if self.size > 1:
                # As torch's own state-dict loading does: everyone gets the whole tensor and keeps its part.
                sharded = isinstance(tensor, DTensor)
                device = tensor.device_mesh.device_type if sharded else tensor.device.type
                full = full.to(device)
                dist.broadcast(full, LEADER, group=self._group if device == "cpu" else None)
            if isinstance(tensor, DTensor):
                full = distribute_tensor(
                    full, tensor.device_mesh, tensor.placements, src_data_rank=None
                ).to_local()
                tensor = tensor.to_local()
            if tensor.data_ptr() != full.data_ptr():
                tensor.copy_(full)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)
