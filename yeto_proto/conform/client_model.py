"""What a learner under test must push: its case file says every update in advance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from yeto_proto import dtypes
from yeto_proto._generated.types import Dtype

from .trace import ramp

__all__ = ["Model"]

F32 = npt.NDArray[np.float32]


class _Fragment:
    """One fragment: its raw globals by version, and the local value at the step of the last install."""

    def __init__(self) -> None:
        self.raw: dict[int, F32] = {}
        self.base: int | None = None
        self.local: F32 | None = None
        self.at = 0


class Model:
    """Follows the local values of a learner from its case file and the broadcasts that it was sent."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self._case = case
        self._dtype = Dtype[case["dtype"].upper()]
        self._alpha = np.float32(case["merge_alpha"])
        self._fragments = [_Fragment() for _ in case["fragments"]]
        self._tensors: list[list[tuple[int, Mapping[str, Any]]]] = []
        number = 0
        for fragment in case["fragments"]:
            self._tensors.append([])
            for tensor in fragment["tensors"]:
                self._tensors[-1].append((number, tensor))
                number += 1

    @property
    def bulk_dtype(self) -> Dtype:
        return Dtype.F32 if self._dtype is Dtype.F32 else Dtype.BF16

    def initial(self, fragment: int) -> bytes:
        """The bulk of this fragment's INIT_PARAMS."""
        return bytes(dtypes.encode(self.bulk_dtype, self._initial(fragment)))

    def _initial(self, fragment: int) -> F32:
        return self._joined(fragment, lambda number, tensor: tensor["initial"]["seed"], None)

    def _joined(self, fragment: int, seed: Any, scale: float | None) -> F32:
        parts = []
        for number, tensor in self._tensors[fragment]:
            numel = int(np.prod(tensor["shape"], dtype=np.int64))
            own = float(tensor["initial"]["scale"]) if scale is None else scale
            parts.append(ramp(int(seed(number, tensor)), own, numel))
        return np.concatenate(parts)

    def update(self, fragment: int, step: int) -> F32:
        """What local step `step` adds, from 0."""
        recipe = self._case["update"]
        return self._joined(
            fragment, lambda number, tensor: recipe["seed"] + 1000 * step + number, float(recipe["scale"])
        )

    def broadcast(self, fragment: int, version: int, tensor: bytes) -> None:
        """The runner has sent this; what a learner must refuse changes nothing."""
        if fragment >= len(self._fragments):
            return
        each = self._fragments[fragment]
        numel = sum(int(np.prod(tensor["shape"], dtype=np.int64)) for _, tensor in self._tensors[fragment])
        if len(tensor) != dtypes.encoded_bytes(self.bulk_dtype, numel):
            return
        raw = np.array(dtypes.decode(self.bulk_dtype, tensor, numel))
        each.raw.setdefault(version, raw)
        if each.base is None:
            each.base, each.local = version, raw.copy()

    def delta(self, fragment: int, base: int, local_step: int, steps: int) -> bytes:
        """The bulk of the push of that base, `steps` steps after its install."""
        each = self._fragments[fragment]
        if base not in each.raw or each.local is None:
            return b""
        if each.base != base:
            before = self._advance(fragment, local_step - steps)
            raw = each.raw[base]
            each.local = self._alpha * before + (np.float32(1) - self._alpha) * raw
            each.base, each.at = base, local_step - steps
        local = each.local.copy()
        for step in range(each.at, local_step):
            local += self.update(fragment, step)
        return bytes(dtypes.encode(self._dtype, local - each.raw[base]))

    def _advance(self, fragment: int, step: int) -> F32:
        each = self._fragments[fragment]
        assert each.local is not None
        for number in range(each.at, step):
            each.local = each.local + self.update(fragment, number)
        each.at = max(each.at, step)
        return each.local
