"""Events in, effects out, strictly in order.

`post` hands an event to the coordinator and performs what it answers. An effect that must be durable before
anything later becomes visible holds back the rest of the line until `resume` is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from yeto_syncer.core.effects import Effect, Exit
from yeto_syncer.core.events import Event

BACKLOG = 4096
"""Effects that may wait behind a blocking save before the sockets are no longer read."""


class Core(Protocol):
    """The coordinator."""

    def step(self, now: float, event: Event) -> list[Effect]: ...


class Engine:
    """The only place where the coordinator is called.

    `perform(effect)` answers whether it holds back the effects behind it. `settle()` is called when nothing
    more can be done now; it may post further events.
    """

    def __init__(
        self,
        core: Core,
        now: Callable[[], float],
        perform: Callable[[Effect], bool],
        settle: Callable[[], None],
    ) -> None:
        self._core = core
        self._now = now
        self._perform = perform
        self._settle = settle
        self._events: deque[Event] = deque()
        self._effects: deque[Effect] = deque()
        self._running = False
        self._held = False
        self._ended = False

    @property
    def congested(self) -> bool:
        """Whether the sockets should be left alone until a blocking effect is done."""
        return len(self._effects) > BACKLOG

    @property
    def waiting(self) -> int:
        """Effects that wait behind a blocking one."""
        return len(self._effects)

    def post(self, event: Event) -> None:
        """Give an event to the coordinator, now or, from inside a step, right after that step."""
        self._events.append(event)
        self._run()

    def resume(self, event: Event | None, failed: bool = False) -> None:
        """The effect that held back the others is done, and this is what the coordinator hears of it. After a
        failure none of the effects behind it is performed, but for an exit: a coordinator that has ended
        answers nothing more."""
        self._held = False
        if failed:
            self._effects = deque(effect for effect in self._effects if isinstance(effect, Exit))
        if event is not None:
            self._events.append(event)
        self._run()

    def _run(self) -> None:
        if self._running:
            return
        self._running = True
        try:
            self._perform_line()
            while not self._ended:
                while self._events and not self._ended:
                    self._step(self._events.popleft())
                if self._ended:
                    return
                self._settle()
                if not self._events:
                    return
        finally:
            self._running = False

    def _step(self, event: Event) -> None:
        effects = self._core.step(self._now(), event)
        if self._held and any(isinstance(effect, Exit) and effect.at_once for effect in effects):
            # What waits is dropped. What belongs to the end itself, a line on the tape and a marker that has
            # to go, is not; the shell's answer whether to wait does not count any more.
            self._held = False
            self._effects.clear()
            self._ended = True
            for effect in effects:
                self._perform(effect)
            return
        self._effects.extend(effects)
        self._perform_line()

    def _perform_line(self) -> None:
        while self._effects and not self._held and not self._ended:
            effect = self._effects.popleft()
            if isinstance(effect, Exit):
                self._ended = True
            self._held = self._perform(effect)
