"""Curves of a tape for TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.tape.tapes import eventful
from yeto_syncer.tape_cli import main
from yeto_syncer.tape_file import read
from yeto_syncer.tape_forward import scalars


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    path = tmp_path / "tape.jsonl"
    eventful(path)
    return path


def test_what_a_commit_has_for_curves(tape: Path) -> None:
    found = [(record["step"], scalars(record)) for record in read(tape) if scalars(record)]
    assert [step for step, _ in found] == list(range(1, 13))
    first = found[0][1]
    assert (first["round/answered"], first["round/asked"], first["round/attempt"]) == (3, 3, 1)
    assert first["contribution/learner_0"] == pytest.approx(1 / 3)
    assert first["seconds/round"] >= first["seconds/until_quorum"] >= 0
    assert found[3][1]["round/attempt"] == 2


class Recorded(ModuleType):
    """Stands in for wandb: what it is asked for."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.asked: dict[str, Any] = {}
        self.lines: list[dict[str, float]] = []
        self.finished = False

    def init(self, **asked: Any) -> Recorded:
        self.asked = asked
        return self

    def log(self, values: dict[str, float]) -> None:
        self.lines.append(values)

    def finish(self) -> None:
        self.finished = True


def test_weights_and_biases_gets_a_line_for_each_step(
    tape: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = Recorded()
    monkeypatch.setitem(sys.modules, "wandb", library)
    assert main(["forward", str(tape), "--wandb", "a project", "--follow"]) == 0
    assert capsys.readouterr().out == "forwarded 12 outer steps\n"
    assert main(["forward", str(tape), "--wandb", "a project", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"outer_steps": 12, "wandb": "a project"}
    library.lines = library.lines[:12]
    assert library.asked == {"project": "a project", "name": "tape"}
    assert [line["outer_step"] for line in library.lines] == list(range(1, 13))
    assert library.finished


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_library_that_is_not_there_is_named(
    tape: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in [name, *(each for each in sys.modules if each.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["forward", str(tape), f"--{name}", "x"]) == 1
    assert (
        capsys.readouterr().err == f"error: {name} is not installed; yeto-tape forward; pip install {name}\n"
    )


@pytest.mark.full
def test_tensorboard_reads_what_was_written(tape: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["forward", str(tape), "--tensorboard", str(tmp_path / "logs")]) == 0
    found = EventAccumulator(str(tmp_path / "logs"))
    found.Reload()
    events = found.Scalars("round/answered")
    assert [event.step for event in events] == list(range(1, 13))
    assert {"seconds/round", "staleness/learner_2", "round/gnorm"} <= set(found.Tags()["scalars"])
    assert events[0].wall_time == pytest.approx(
        next(r["time"] for r in read(tape) if "step" in r and "gnorm" in r)
    )
