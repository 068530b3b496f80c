"""The user's numpy arrays as the values of a learner: checked at the start and at every step, changed in
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .arguments import require
from .core.values import F32, LocalValues

__all__ = ["ArrayParameters", "Parameters", "as_parameters"]

Array = npt.NDArray[Any]

FLOATS = ("float16", "float32", "float64", "bfloat16")  # the last comes with the package ml_dtypes


class Parameters(LocalValues, Protocol):
    """What a `Learner` trains: named float tensors, read as f32 and written back in their own dtype."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor, in any order."""
        ...

    def check(self) -> None:
        """Raise ValueError when a tensor is missing or no longer fits; called at every step, so it must be
        quick.
        """
        ...

    def flush(self) -> None:
        """Nobody reads or writes for now: bring what was written to its place, and let copies go."""
        ...


class ArrayParameters:
    """A mapping of name to writable float numpy array.

    The mapping is looked up at every use, so replacing an array by another of the same shape and dtype is
    fine. Raises ValueError, with the name, for what cannot be trained in place.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        require(
            isinstance(arrays, Mapping),
            f"parameters must be a mapping of name to numpy array, not a {type(arrays).__name__}",
        )
        require(len(arrays) > 0, "parameters is empty: there is nothing to train")
        for name, array in arrays.items():
            _check_array(name, array)
        _check_aliases(arrays)
        self._arrays = arrays
        self._known = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        self._flat: dict[str, tuple[Array, Array]] = {}  # the array last seen under a name, and its flat view

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, (shape, _) in self._known.items()}

    def check(self) -> None:
        arrays = self._arrays
        for name, (shape, dtype) in self._known.items():
            array = arrays.get(name)
            if array is None:
                raise ValueError(
                    f"parameter {name!r} is gone; the set of tensors is fixed when a Learner is made"
                )
            if getattr(array, "shape", None) != shape or array.dtype != dtype:
                raise ValueError(
                    f"parameter {name!r} was {dtype} of shape {shape} and is now {_describe(array)}; keep "
                    f"shape and dtype, or make a new Learner with a new session contract"
                )
        if len(arrays) != len(self._known):
            extra = sorted(set(arrays) - set(self._known))
            raise ValueError(
                f"unknown parameter {extra[0]!r}: the set of tensors is fixed when a Learner is made"
            )

    def flush(self) -> None:
        pass  # blocks are read and written in place

    def read(self, name: str, start: int, stop: int) -> F32:
        with np.errstate(
            over="ignore"
        ):  # a float64 beyond the f32 range shows as an infinity, which is refused
            values: F32 = self._view(name)[start:stop].astype(np.float32, copy=False)
        return values

    def write(self, name: str, start: int, values: F32) -> None:
        with np.errstate(over="ignore"):
            self._view(name)[start : start + len(values)] = values

    def _view(self, name: str) -> Any:
        """The array in one dimension: a view, or a flat iterator over memory that is not contiguous."""
        array = self._arrays[name]
        known = self._flat.get(name)
        if known is not None and known[0] is array:
            return known[1]
        if not array.flags.writeable:
            raise ValueError(f"parameter {name!r} is read-only; the learner updates it in place")
        if not array.flags.c_contiguous:
            return _Strided(array)
        flat = array.reshape(-1)
        self._flat[name] = (array, flat)
        return flat


def as_parameters(given: Mapping[str, Array] | Parameters) -> Parameters:
    """What the user gave, as the values of a learner. Raises ValueError for what is neither kind."""
    if isinstance(given, Mapping):
        return ArrayParameters(given)
    require(
        hasattr(given, "shapes"),
        f"parameters must be a mapping of name to numpy array, not a {type(given).__name__}; for a PyTorch "
        "module use yeto_learner.torch.TorchLearner",
    )
    return given


class _Strided:
    """Flat access to an array whose memory is not contiguous."""

    def __init__(self, array: Array) -> None:
        self._flat = array.flat

    def __getitem__(self, part: slice) -> Array:
        values: Array = self._flat[part]
        return values

    def __setitem__(self, part: slice, values: F32) -> None:
        self._flat[part] = values


def _describe(array: object) -> str:
    if isinstance(array, np.ndarray):
        return f"{array.dtype} of shape {array.shape}"
    return f"a {type(array).__name__}"


def _check_array(name: object, array: object) -> None:
    require(isinstance(name, str) and bool(name), f"parameter names are non-empty strings, not {name!r}")
    if not isinstance(array, np.ndarray):
        raise ValueError(f"parameter {name!r} must be a numpy array, not {type(array).__name__}")
    require(
        array.dtype.name in FLOATS and array.dtype.isnative,
        f"parameter {name!r} is {array.dtype}; trained tensors are {', '.join(FLOATS)}",
    )
    require(array.flags.writeable, f"parameter {name!r} is read-only; the learner updates it in place")
    require(array.size > 0, f"parameter {name!r} is empty (shape {array.shape}); leave it out")


def _check_aliases(arrays: Mapping[str, Array]) -> None:
    # Two names for one memory would be updated twice.  Overlap of the byte ranges is exact for contiguous
    # arrays; for strided ones a share of an address range is no proof, so they are only compared by start.
    spans = []
    for name, array in arrays.items():
        start = array.__array_interface__["data"][0]
        spans.append((start, start + array.nbytes if array.flags.c_contiguous else start + 1, name))
    spans.sort()
    for (_, end, name), (start, _, other) in pairwise(spans):
        require(
            start >= end,
            f"parameters {name!r} and {other!r} share memory (tied weights?); pass only one of the two",
        )
