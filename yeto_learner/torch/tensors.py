"""Which tensors of a module take part, under which names, and whether they are still the ones that did.

A plain module, the same module under DDP, sharded by FSDP2 or compiled gives the same names and shapes, so
that learners of different kinds share one session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from yeto_learner.arguments import require

__all__ = ["ModuleTensors", "NameFilter"]

NameFilter = str | Callable[[str], bool]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# Parts of a name that a wrapper puts in.
WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})


class ModuleTensors:
    """The trained tensors of a module, held like an optimizer holds them.

    Those that require a gradient take part, of these the ones that `name_filter` takes: a regular expression
    that is found anywhere in the name, or a function of the name.  Raises ValueError for a module that cannot
    be trained this way, with what to do instead.
    """

    def __init__(self, module: torch.nn.Module, name_filter: NameFilter | None) -> None:
        require(
            isinstance(module, torch.nn.Module),
            f"module must be a torch.nn.Module, not {type(module).__name__}",
        )
        while isinstance(module, DistributedDataParallel | DataParallel):
            module = module.module
        self._sharded = []
        for part in module.modules():
            require(
                not isinstance(part, FullyShardedDataParallel),
                "the module is wrapped in FullyShardedDataParallel (FSDP1), which hides its parameters; "
                "shard it with torch.distributed.fsdp.fully_shard (FSDP2)",
            )
            if isinstance(part, FSDPModule):
                self._sharded.append(part)
        self._tensors: dict[str, torch.Tensor] = {}
        self._owners: dict[str, tuple[torch.nn.Module, str]] = {}
        takes = _test(name_filter)
        frozen = left_out = 0
        for path, tensor in module.named_parameters():
            name = _clean(path)
            if not tensor.requires_grad:
                frozen += 1
            elif not takes(name):
                left_out += 1
            else:
                _check_tensor(name, tensor)
                require(name not in self._tensors, f"two parameters have the name {name!r}")
                self._tensors[name] = tensor
                owner, _, attribute = path.rpartition(".")
                self._owners[name] = (module.get_submodule(owner), attribute)
        require(
            bool(self._tensors),
            f"no parameter is left to train: {frozen} are frozen (requires_grad=False), {left_out} are "
            f"left out by name_filter",
        )
        self._known = {name: (tensor.shape, tensor.dtype) for name, tensor in self._tensors.items()}

    def reshard(self) -> None:
        """Give the gathered copies of FSDP2 back, which evaluation may leave and no update would reach."""
        for part in self._sharded:
            part.reshard()

    def check(self) -> None:
        """Raise ValueError for a tensor that was replaced, or that changed its shape or dtype."""
        for name, tensor in self._tensors.items():
            owner, attribute = self._owners[name]
            now = owner._parameters.get(attribute)
            if now is not tensor:
                raise ValueError(
                    f"parameter {name!r} was {'removed' if now is None else 'replaced'} after the learner "
                    f"was made; change it in place (`with torch.no_grad(): p.copy_(...)`), and wrap, shard "
                    f"or move a module before the learner is made"
                )
            shape, dtype = self._known[name]
            if tensor.shape != shape or tensor.dtype != dtype:
                raise ValueError(
                    f"parameter {name!r} was {dtype} of shape {tuple(shape)} and is now {tensor.dtype} of "
                    f"shape {tuple(tensor.shape)}; keep shape and dtype, or make a new learner with a new "
                    f"session contract"
                )

    @property
    def by_name(self) -> Mapping[str, torch.Tensor]:
        return self._tensors

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and full shape, of sharded tensors too."""
        return {name: tuple(shape) for name, (shape, _) in self._known.items()}

    def describe(self) -> list[tuple[str, tuple[int, ...], str]]:
        """What must be equal on all ranks of a learner."""
        return [(name, tuple(shape), str(dtype)) for name, (shape, dtype) in self._known.items()]


def _test(name_filter: NameFilter | None) -> Callable[[str], bool]:
    if name_filter is None:
        return lambda name: True
    if isinstance(name_filter, str):
        try:
            pattern = re.compile(name_filter)
        except re.error as error:
            raise ValueError(f"name_filter {name_filter!r} is no regular expression: {error}") from error
        return lambda name: pattern.search(name) is not None
    require(
        callable(name_filter), f"name_filter must be a regular expression or a function, not {name_filter!r}"
    )
    return name_filter


def _clean(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    require(
        not hasattr(tensor, "ds_id"),
        f"parameter {name!r} is partitioned by DeepSpeed ZeRO-3, which is not supported; use FSDP2 or DDP",
    )
    require(tensor.device.type != "meta", f"parameter {name!r} is on the meta device; give it values first")
    require(
        tensor.dtype in DTYPES,
        f"parameter {name!r} is {tensor.dtype}; trained tensors are {', '.join(map(str, DTYPES))}",
    )
    require(tensor.numel() > 0, f"parameter {name!r} is empty (shape {tuple(tensor.shape)}); leave it out")
