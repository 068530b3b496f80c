"""A look at the running server for those who only want to know: the status page and the metrics.

Everything here runs on the event loop, between two steps, so that a look never sees half of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from yeto_syncer.board import Board, LearnerRow, learner_state, state, warnings
from yeto_syncer.core.effects import SaveKind
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.view import LearnerView, RoundView, RunView

if TYPE_CHECKING:
    from yeto_syncer.shell.metrics import Metrics

SLOW_QUORUM_S = 60.0
"""A round below its quorum for longer is worth a warning."""

QUIET_S = 60.0
"""So is a learner that says nothing for longer; a heartbeat comes every 30 s."""


@dataclass(frozen=True, slots=True)
class Depths:
    """What waits in the server now."""

    connections: int
    pending: int
    bulk_messages: int
    control_bytes: int
    checks: int
    effects: int


@dataclass(frozen=True, slots=True)
class SavedAt:
    """The last checkpoint that became durable, and how long it took."""

    step: int
    age_s: float
    seconds: float


class Server(Protocol):
    """What is asked of the sockets."""

    def depths(self, effects: int) -> Depths: ...

    def catch_up_left(self, link: Link, token: int) -> int | None:
        """Fragments of a delivery that have not left yet; None for one that is over."""


class Watch:
    """Takes the records of the tape and the ends of checkpoints, and tells how the run stands.

    `now` is the clock of the coordinator, `clock` the Unix time; `durable` says whether there is a checkpoint
    path at all.
    """

    def __init__(
        self,
        look: Callable[[float], RunView],
        server: Server,
        effects: Callable[[], int],
        now: Callable[[], float],
        clock: Callable[[], float],
        metrics: Metrics | None,
        *,
        durable: bool,
    ) -> None:
        self.board = Board()
        self._look = look
        self._server = server
        self._effects = effects
        self._now = now
        self._clock = clock
        self._metrics = metrics
        self._durable = durable
        self._saved: tuple[int, float, float] | None = None
        if metrics is not None:
            metrics.connect(self)

    # -- what happens

    def record(self, record: Mapping[str, Any]) -> None:
        """A record for the tape."""
        self.board.add({**record, "time": round(self._clock(), 3)})
        if self._metrics is not None:
            self._metrics.record(dict(record))

    def saved(self, kind: SaveKind, step: int, seconds: float) -> None:
        """A checkpoint is durable."""
        self._saved = (step, self._now(), seconds)
        if self._metrics is not None:
            self._metrics.saved(kind.value, seconds)

    # -- what is told

    def view(self) -> RunView:
        return self._look(self._now())

    def depths(self) -> Depths:
        return self._server.depths(self._effects())

    @property
    def saved_at(self) -> SavedAt | None:
        if self._saved is None:
            return None
        step, at, seconds = self._saved
        return SavedAt(step, self._now() - at, seconds)

    def state(self) -> dict[str, Any]:
        """What the status page shows, as JSON values."""
        run, depths, saved = self.view(), self.depths(), self.saved_at
        now = self._clock()
        told = state(self.board)
        told["warnings"] = self._warnings(run)
        known = {each.learner_id: each for each in run.connections}
        rows = {row["id"]: row for row in told["learners"]}
        for learner, each in known.items():
            self._join(
                rows.setdefault(learner, learner_state(learner, LearnerRow())), each, now, len(run.versions)
            )
        return {
            **told,
            "live": True,
            "now": now,
            "phase": run.phase,
            "step": run.step,
            "total_steps": run.total_steps,
            "rate": self.board.rate(now),
            "quorum": run.quorum,
            "expected": run.learners,
            "fragments": list(run.versions),
            "learners": [rows[learner] for learner in sorted(rows)],
            "flight": [_flight(each) for each in run.rounds],
            "acks_missing": list(run.acks_missing),
            "checkpoint": None
            if saved is None
            else {"step": saved.step, "age_s": saved.age_s, "seconds": saved.seconds},
            "memory": resident_bytes(),
            "connections": depths.connections,
            "pending": depths.pending,
        }

    def _join(self, row: dict[str, Any], each: LearnerView, now: float, fragments: int) -> None:
        row["state"] = each.state.replace("_", " ") + (" (observer)" if each.observer else "")
        row["generation"] = str(each.generation)
        row["quiet_s"] = each.quiet_s
        if each.step_s:
            row["rate"] = 1.0 / each.step_s
        if each.token is not None:
            left = self._server.catch_up_left(Link(each.learner_id, each.generation), each.token)
            row["catch_up"] = {"done": fragments - (left or 0), "of": fragments}

    def _warnings(self, run: RunView) -> list[str]:
        found = warnings(self.board, run.observers)
        if not self._durable:
            found.append("There is no --checkpoint-path: if this process ends early, the run is lost.")
        if run.phase == "waiting" and len(run.connections) < run.learners:
            found.append(f"{len(run.connections)} of {run.learners} learners are here.")
        if run.phase == "training" and not any(
            each.state == "ready" and not each.observer for each in run.connections
        ):
            found.append("No learner is ready: nothing moves until one has caught up.")
        for each in run.rounds:
            if each.quorum_s is None and each.age_s > SLOW_QUORUM_S:
                waits = ", ".join(map(str, each.missing)) or "anybody"
                found.append(
                    f"Step {each.step} has {len(each.answered)} of {each.quorum} answers after "
                    f"{each.age_s:.0f} s; it waits for {waits}."
                )
        for connection in run.connections:
            # An observer has nothing to say.
            if connection.quiet_s > QUIET_S and run.phase == "training" and not connection.observer:
                found.append(
                    f"Nothing came from learner {connection.learner_id} for {connection.quiet_s:.0f} s."
                )
        return found


def _flight(each: RoundView) -> dict[str, Any]:
    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1000)

    return {
        "step": each.step,
        "fragment": each.fragment,
        "attempt": each.attempt,
        "state": each.state,
        "quorum": each.quorum,
        "answered": list(each.answered),
        "missing": list(each.missing),
        "age_ms": ms(each.age_s),
        "quorum_ms": ms(each.quorum_s),
        "grace_ms": ms(each.grace_s),
        "closed_ms": ms(each.closed_s),
    }


def resident_bytes() -> int | None:
    """Memory of this process in use, where the system tells it in /proc."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None
