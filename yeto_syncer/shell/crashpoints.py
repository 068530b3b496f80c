"""Places where a test lets the process be killed, to see what a crash just there leaves behind.

The environment variable YETO_CRASH_AT names one: `NAME`, `NAME:N` or `NAME:N:SIGNALS`. The process then
sends itself SIGKILL, or these signals (`SIGTERM+SIGINT`), when it gets there for the N-th time (the first
without N). Without the variable nothing is watched: no wrapper stands around an effect or event, and the
functions here answer None.

Names: `checkpoint.STAGE`, `marker.STAGE` and `final-state.STAGE` inside the writing of a file, with the
stages of `yeto_proto.files` and `begun` and `half` for bytes of a checkpoint or final state;
`before EFFECT` and `after EFFECT` around an effect of the coordinator, `before EVENT` and `after EVENT`
around its step for an event. `Send` and `Received` are called by their message, as in `before PullReq`, and a
`Deliver` of the final cut is a `DeliverFinal`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final

from yeto_syncer.core.effects import Deliver, Effect, Send
from yeto_syncer.core.events import Event, Received
from yeto_syncer.shell.engine import Core

VARIABLE: Final = "YETO_CRASH_AT"


class CrashPoint:
    """The one place of this process, and how often it may still be passed."""

    def __init__(self, text: str) -> None:
        parts = text.split(":")
        self.name = parts[0]
        self._left = int(parts[1]) if len(parts) > 1 else 1
        names = parts[2] if len(parts) > 2 else "SIGKILL"
        self._signals = [signal.Signals[name] for name in names.split("+")]

    def __call__(self, name: str) -> None:
        """The process has come to a place."""
        if name != self.name:
            return
        self._left -= 1
        if self._left == 0:
            for number in self._signals:
                os.kill(os.getpid(), number)


def _armed() -> CrashPoint | None:
    text = os.environ.get(VARIABLE)
    return CrashPoint(text) if text else None


_POINT: Final = _armed()


def stages(what: str) -> Callable[[str], None] | None:
    """For `passed` of the writers of files; None when nothing is watched."""
    point = _POINT
    if point is None:
        return None
    return lambda stage: point(f"{what}.{stage}")


def bytes_of(what: str) -> Callable[[int, int], None] | None:
    """For `progress` of the writers of files: their first bytes and half of them; None when nothing is
    watched."""
    point = _POINT
    if point is None:
        return None
    told: set[str] = set()

    def progress(done: int, size: int) -> None:
        for stage in ("begun", *(["half"] if 2 * done >= size else [])):
            if stage not in told:
                told.add(stage)
                point(f"{what}.{stage}")

    return progress


def around_effects(perform: Callable[[Effect], bool]) -> Callable[[Effect], bool]:
    """`perform` with a place before and behind each effect; `perform` itself when nothing is watched."""
    point = _POINT
    if point is None:
        return perform

    def watched(effect: Effect) -> bool:
        name = _effect(effect)
        point(f"before {name}")
        held = perform(effect)
        point(f"after {name}")
        return held

    return watched


def around_events(core: Core) -> Core:
    """The coordinator with a place before and behind each step; itself when nothing is watched."""
    return core if _POINT is None else _Watched(core, _POINT)


class _Watched:
    def __init__(self, core: Core, point: CrashPoint) -> None:
        self._core = core
        self._point = point

    def step(self, now: float, event: Event) -> list[Effect]:
        name = type(event.message if isinstance(event, Received) else event).__name__
        self._point(f"before {name}")
        effects = self._core.step(now, event)
        self._point(f"after {name}")
        return effects


def _effect(effect: Any) -> str:
    if isinstance(effect, Send):
        return type(effect.message).__name__
    if isinstance(effect, Deliver) and effect.final:
        return "DeliverFinal"
    return type(effect).__name__
