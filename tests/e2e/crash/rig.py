"""Runs that may be killed at any moment, and what must hold of their files then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.processes import Processes, Syncer
from tests.e2e.raw import Trainer, drive, hello
from tests.e2e.test_syncer_run import QUICK, initial, small_layout
from yeto_proto._generated.messages import BcastFragment, Message
from yeto_proto._generated.types import Dtype
from yeto_proto.chunks import slices
from yeto_proto.codec import encode
from yeto_proto.files import marker_path, read_checkpoint_step, read_marker
from yeto_syncer.checkpoint.verify import Wanted, verify

LEARNERS = 2
PATIENCE_S = 120.0


class Mortal(Trainer):
    """A learner that takes it well when the syncer dies while it is speaking."""

    def send(self, message: Message, stream: int = -1) -> None:
        self._say([bytes(buffer) for buffer in encode(message)], stream)

    def send_bulk(self, message: Message) -> None:
        for buffers in slices(message, self._msg_id):
            self._say([bytes(buffer) for buffer in buffers], -1)
        self._msg_id += 1

    def _say(self, buffers: list[bytes], stream: int) -> None:
        if self.ended:
            return
        try:
            self.sockets[stream].sendall(b"".join(buffers))
        except ConnectionError:
            self.ended = True


@dataclass(frozen=True)
class Files:
    """The files of one run, with an event tape or without."""

    folder: Path
    taped: bool = True

    @property
    def checkpoint(self) -> Path:
        return self.folder / "state.ckpt"

    @property
    def final_state(self) -> Path:
        return self.folder / "final.bin"

    @property
    def tape(self) -> Path:
        return self.folder / "tape.jsonl"

    def flags(self) -> list[str]:
        """All that a syncer can write, and that it continues."""
        return [
            *("--checkpoint-path", str(self.checkpoint), "--mark-final-checkpoint", "--resume-if-exists"),
            *("--final-state", str(self.final_state)),
            *(("--event-tape", str(self.tape)) if self.taped else ()),
        ]

    def check(self, finished: set[int]) -> int | None:
        """What holds at every moment: the checkpoint is whole or not there yet, and a marker stands only
        beside one of a finished step. Returns the step of the checkpoint."""
        marker = marker_path(self.checkpoint)
        if not self.checkpoint.exists():
            assert not marker.exists()
            return None
        verdict = verify(self.checkpoint, Wanted())
        assert not verdict.faults, verdict.faults
        step = read_checkpoint_step(self.checkpoint)
        if marker.exists():
            assert read_marker(self.checkpoint) == step and step in finished
        return step


def start(
    processes: Processes, files: Files, *flags: str, crash: str | None = None, under: Sequence[str] = ()
) -> Syncer:
    """A syncer for two learners whose every round waits for both; `crash` is where it is killed, `under` a
    command that runs it."""
    environ = {} if crash is None else {"YETO_CRASH_AT": crash}
    arguments = ("--port", "0", "--learners", str(LEARNERS), *QUICK, *files.flags(), *flags)
    return processes.syncer_command(*arguments, environ=environ, under=under).listening(PATIENCE_S)


def join(syncer: Syncer, generation: int, dtype: Dtype = Dtype.F32) -> list[Mortal]:
    """Both learners; fewer when the syncer is gone before they have come. Learner 0 sends the first
    parameters, which a resumed syncer does not need."""
    layout = small_layout()
    learners: list[Mortal] = []
    try:
        for number in range(LEARNERS):
            greeting = hello(layout, number, generation=generation, dtype=dtype)
            learners.append(Mortal(syncer.port, greeting, target=1.0 + number))
    except ConnectionError:
        return learners
    learners[0].initialize(initial(layout))
    return learners


def serve(syncer: Syncer, generation: int = 1, dtype: Dtype = Dtype.F32) -> list[Mortal]:
    """Train until the learners were let go or the syncer is gone."""
    learners = join(syncer, generation, dtype)
    # One that could speak no more still hears what had been sent to it, and then the end.
    drive(learners, lambda: all(each.shut_down or each.ended for each in learners), "an end", PATIENCE_S)
    for each in learners:
        each.close()
    return learners


def newest(learners: list[Mortal]) -> int:
    """The newest version that anybody was shown."""
    return max(
        (m.version for each in learners for _, m in each.seen if isinstance(m, BcastFragment)), default=0
    )
