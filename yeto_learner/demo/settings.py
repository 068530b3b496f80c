"""What a demo run does: everything that is chosen, in one place, and nothing that is measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from yeto_learner.demo.model import ByteModel


@dataclass(frozen=True)
class Settings:
    """Sizes and rates of a run. The number of rounds is fixed, never the time: a slow machine gets the same
    result.

    A fragment is merged every `fragments` rounds, and the syncer launches a round every `inner_steps /
    fragments` local steps, so a learner makes about `rounds * inner_steps / fragments` steps.
    """

    seed: int = 0
    learners: int = 3
    quorum: int = 2
    fragments: int = 4
    streams: int = 2
    dtype: str = "bf16"
    rounds: int = 160
    inner_steps: int = 20
    outer_rate: float = 0.5
    outer_momentum: float = 0.8
    batch: int = 256
    rate: float = 2e-3
    victim: int = 1
    """The learner that is killed."""
    kill_at: int = 60
    """The round after which it is killed."""
    evaluate_every: int = 50
    """Local steps between two held-out losses of the curves, which look at `evaluate_windows` places."""
    evaluate_windows: int = 2048
    measure_windows: int | None = None
    """Places of the held-out text that the four final losses look at; None for all (about 45,000)."""
    backend: Literal["numpy", "torch"] = "numpy"

    @property
    def model(self) -> ByteModel:
        return ByteModel()

    @property
    def min_local_steps(self) -> int:
        """Steps that a learner wants between two answers for one fragment, whatever the syncer's pace."""
        return self.inner_steps // 2

    def quick(self) -> Settings:
        """The same run, shorter: for tests and the impatient."""
        return replace(
            self,
            rounds=96,
            inner_steps=12,
            kill_at=20,
            batch=160,
            evaluate_every=30,
            evaluate_windows=1024,
            measure_windows=16384,
        )


@dataclass(frozen=True)
class Task:
    """What one worker process is told: JSON on its command line.

    `role` "learner" joins the syncer at `address` until the run ends; "alone" makes `steps` steps and stops.
    `text` is the number of a shard, or -1 for all of them.
    """

    role: Literal["learner", "alone"]
    text: int
    output: Path
    settings: Settings
    address: str = ""
    learner_id: int = 0
    contract: str = ""
    life: int = 0
    steps: int = 0

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "output": str(self.output)})

    @classmethod
    def from_json(cls, text: str) -> Task:
        fields: dict[str, Any] = json.loads(text)
        fields["settings"] = Settings(**fields["settings"])
        fields["output"] = Path(fields["output"])
        return cls(**fields)
