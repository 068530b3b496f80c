"""What a learner process of a simulated world is made of: states, checkpoint, parameters, and its host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tests.simulation.clock import Clock
from tests.simulation.setup import Setup
from tests.simulation.wire import Line, Network, Server
from yeto_learner.core.boundary import RecordedFragment
from yeto_learner.core.records import BcastFragment
from yeto_learner.core.values import F32
from yeto_learner.record import SavedAnchor
from yeto_proto._generated.messages import PushFragment

if TYPE_CHECKING:
    from tests.simulation.learner_process import LearnerProcess


class State(Enum):
    CUT = "waits for its first broadcasts"
    TRAIN = "trains"
    FINAL = "waits for the final cut"
    ACKED = "has acknowledged the final cut"
    REPORTED = "has used up its budget"
    FROZEN = "consolidates"
    DONE = "was let go"
    DEAD = "is dead"


class Host(Protocol):
    """The world, as a learner sees it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def network(self) -> Network: ...

    def server(self) -> Server | None: ...

    def next_work(self) -> int: ...

    def pushes(
        self, process: LearnerProcess, push: PushFragment, works: tuple[int, ...]
    ) -> list[PushFragment]: ...

    def installed(self, process: LearnerProcess, line: Line, update: BcastFragment) -> None: ...

    def dialled(self, process: LearnerProcess, line: Line) -> None: ...

    def failed(self, process: LearnerProcess, error: Exception) -> None: ...

    def finished(self, process: LearnerProcess) -> None: ...


@dataclass(frozen=True)
class Saved:
    """A learner's own checkpoint: parameters, resume record and what was computed for it."""

    params: dict[str, F32]
    steps: int
    tokens: int
    global_step: int
    fragments: tuple[RecordedFragment | None, ...]
    anchors: dict[int, SavedAnchor]
    works: tuple[tuple[int, ...], ...]  # of each fragment
    tainted: bool
    # Fragments of which a delta was pushed afterwards, and the lowest version that it was based on.
    pushed_later: dict[int, int] = field(default_factory=dict)

    def known(self) -> tuple[RecordedFragment | None, ...]:
        """The fragments with what the journal adds to the record."""
        return tuple(
            each
            if each is None or number not in self.pushed_later
            else replace(
                each,
                pushed=each.pushed or self.pushed_later[number] <= each.version,
                pushed_from=self.pushed_later[number],
            )
            for number, each in enumerate(self.fragments)
        )


class Local:
    """Parameters of a few values, read and written as the SDK does; `flat` holds all of them."""

    def __init__(self, arrays: dict[str, F32]) -> None:
        self.flat = np.concatenate(list(arrays.values()))
        self.arrays: dict[str, F32] = {}
        start = 0
        for name, array in arrays.items():
            self.arrays[name] = self.flat[start : start + array.size]
            start += array.size

    def train(self, target: np.float32) -> None:
        """One optimizer step."""
        self.flat += (target - self.flat) * np.float32(0.05)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.arrays.items()}

    def check(self) -> None:
        """They never change their shape here."""

    def flush(self) -> None:
        """Blocks are read and written in place."""

    def read(self, name: str, start: int, stop: int) -> F32:
        return self.arrays[name][start:stop]

    def write(self, name: str, start: int, values: F32) -> None:
        self.arrays[name][start : start + len(values)] = values


def initial_values(setup: Setup) -> dict[str, F32]:
    """What every learner starts from."""
    return {
        tensor.name: np.linspace(-1, 1, tensor.numel, dtype=np.float32)
        for fragment in setup.layout.fragments
        for tensor in fragment.tensors
    }
