"""When a checkpoint is written, and that never two writes run at once.

A blocking save holds the run until it is durable. A background save lets it go on; a save that comes due
meanwhile waits for it, and a failed background write shows at that wait. Only the last save of a run is tried
all the same: the disk may be well again, and the state would be lost.
"""

from __future__ import annotations

from collections.abc import Callable

from yeto_proto._generated.types import IsoBackend
from yeto_proto.files.model import Snapshot
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Drain, Save, SaveKind
from yeto_syncer.core.failure import RunError
from yeto_syncer.core.outbox import Outbox

# After these the process computes nothing more.
ENDING = (SaveKind.TERMINAL, SaveKind.CUTOFF, SaveKind.STOP)


class Checkpoints:
    """The writer's state. `take` makes a snapshot of the model as it is when a write starts."""

    def __init__(self, config: Config, outbox: Outbox, take: Callable[[], Snapshot]) -> None:
        self._config = config
        self._outbox = outbox
        self._take = take
        self._blocking: SaveKind | None = None
        self._background: SaveKind | None = None
        self._waiting: SaveKind | None = None
        self._periodic_due = False
        self._failure: str | None = None

    @property
    def holding(self) -> bool:
        """True while the run must not change or show its state: a blocking save runs or waits."""
        return self._blocking is not None or self._waiting is not None

    def save(self, kind: SaveKind) -> None:
        """Write now and hold the run; `saved` returns `kind` when it is durable."""
        if kind in ENDING:
            self._failure = None  # it was logged when it came; this save tells how the run ends
        else:
            self._raise_failure()
        # The state cannot change before this write, so it holds whatever the periodic one would have held.
        self._periodic_due = False
        if self._background is not None or self._blocking is not None:
            self._waiting = kind
            return
        self._blocking = kind
        if kind in ENDING and self._config.iso_backend_id is IsoBackend.TORCH_SVD:
            self._outbox.emit(Drain())
        self._outbox.emit(Save(self._take(), kind))

    def save_behind(self, kind: SaveKind) -> None:
        """Write on the background writer. While it is busy the newest cut waits, and only that one."""
        self._raise_failure()
        if self._background is not None:
            self._periodic_due = True
            return
        self._background = kind
        self._outbox.emit(Save(self._take(), kind, background=True))

    def on_start(self, resumed: bool) -> None:
        """Before the first round of a run that will make progress."""
        config = self._config
        if config.checkpoint_path is None or resumed:
            return
        if config.per_round_checkpoint:
            self.save(SaveKind.VERSION_ZERO)
        elif config.checkpoint_on_start:
            if config.background_checkpoint:
                self.save_behind(SaveKind.ON_START)
            else:
                self.save(SaveKind.ON_START)

    def after_commit(self, step: int) -> None:
        """The periodic rule. The last step is left to the terminal checkpoint (D20)."""
        config = self._config
        if config.checkpoint_path is None or config.checkpoint_every < 2 or step == config.total_steps:
            return
        if step % config.checkpoint_every == 0:
            if config.background_checkpoint:
                self.save_behind(SaveKind.PERIODIC)
            else:
                self.save(SaveKind.PERIODIC)

    def saved(self, kind: SaveKind) -> SaveKind | None:
        """A write is durable; return its kind if it held the run."""
        ended = None
        if self._blocking is kind:
            self._blocking = None
            ended = kind
        else:
            self._background = None
        self._next()
        return ended

    def failed(self, kind: SaveKind, step: int, reason: str) -> None:
        """A write failed. Raises RunError if the run waits for it or for the writer."""
        text = (
            f"{kind.value} checkpoint of step {step} failed: {reason}; {self._config.checkpoint_path}; "
            "free space or fix the folder, then restart from the last good checkpoint with --resume"
        )
        if self._blocking is kind:
            raise RunError(text)
        self._background = None
        self._failure = text
        self._outbox.log("error", "background checkpoint failed", step=step, reason=reason)
        self._next()

    def _next(self) -> None:
        if self._waiting is not None:
            kind, self._waiting = self._waiting, None
            self.save(kind)
        elif self._periodic_due:
            self._periodic_due = False
            self.save_behind(SaveKind.PERIODIC)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RunError(self._failure)
