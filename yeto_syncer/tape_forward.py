"""The curves of an event tape for TensorBoard or Weights & Biases. Both libraries are optional, and imported
only when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from yeto_syncer.tape_file import Record, kind_of

__all__ = ["MissingLibraryError", "Sink", "forward", "scalars", "tensorboard", "wandb"]

SPANS = {"ms": "round", "quorum_ms": "until_quorum", "grace_waited_ms": "grace", "sync_ms": "commit"}


class MissingLibraryError(Exception):
    """A library that is not installed: its name."""


class Sink(Protocol):
    """Where curves go."""

    def put(self, values: Mapping[str, float], step: int, time: float | None) -> None: ...


def scalars(record: Record) -> dict[str, float]:
    """What a record has for curves, by name; nothing for records that are no commit. Spans are in seconds."""
    if kind_of(record) != "commit":
        return {}
    found = {
        f"seconds/{name}": record[key] / 1000 for key, name in SPANS.items() if record.get(key) is not None
    }
    answers = record["responders"]
    found["round/gnorm"] = record["gnorm"]
    found["round/attempt"] = record["attempt"]
    found["round/answered"] = len(answers)
    found["round/asked"] = len(record["expected_members"])
    if answers:
        found["round/staleness_mean"] = sum(answer["staleness"] for answer in answers) / len(answers)
        found["round/tokens"] = sum(answer["c_tokens"] for answer in answers)
    for answer in answers:
        found[f"staleness/learner_{answer['id']}"] = answer["staleness"]
        found[f"contribution/learner_{answer['id']}"] = answer["contribution"]
        found[f"steps/learner_{answer['id']}"] = answer["c_steps"]
    return found


def forward(records: Iterator[Record | None], sink: Sink, *, follow: bool) -> Iterator[int | None]:
    """Put the curves of every record; yields the step of each commit that went out, and None while it waits.
    With `follow` it ends with the run, else with the tape."""
    ended = False
    for record in records:
        if record is None:
            if not follow or ended:
                return
            yield None
            continue
        ended = kind_of(record) == "run_ended"
        values = scalars(record)
        if values:
            sink.put(values, record["step"], record.get("time"))
            yield record["step"]


@contextmanager
def tensorboard(folder: Path) -> Iterator[Sink]:
    """Event files in a folder. Raises MissingLibraryError."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise MissingLibraryError("tensorboard") from None
    writer = EventFileWriter(str(folder))

    class Files:
        """One event for each record."""

        def put(self, values: Mapping[str, float], step: int, time: float | None) -> None:
            summary = Summary(
                value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            )
            writer.add_event(Event(wall_time=time or 0.0, step=step, summary=summary))

    try:
        yield Files()
    finally:
        writer.close()


@contextmanager
def wandb(project: str, name: str) -> Iterator[Sink]:
    """A run of Weights & Biases. Raises MissingLibraryError."""
    try:
        import wandb as library
    except ImportError:
        raise MissingLibraryError("wandb") from None
    run: Any = library.init(project=project, name=name)

    class Run:
        """One line of history for each record. A resumed process tells some outer steps again, so the step is
        a value of its own and not theirs, which may not go back."""

        def put(self, values: Mapping[str, float], step: int, time: float | None) -> None:
            run.log({**values, "outer_step": step})

    try:
        yield Run()
    finally:
        run.finish()
