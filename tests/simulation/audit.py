"""What must hold after every effect of a syncer process, whatever learners, network and disk do.

The audit sees what goes into the coordinator and what comes out, and nothing inside. Its parts keep books of
their own: `rounds` on members, answers, merges and the ledger, `files` on checkpoints and what may be seen
when, `links` on sockets and generations, `finals` on the terminal exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.clock import Clock
from yeto_proto._generated.messages import PushFragment
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Count, Effect, Exit, Save
from yeto_syncer.core.events import Event
from yeto_syncer.core.jobs import Link

__all__ = ["Audit", "Broken", "Context", "Part", "Sent"]

Tally = Counter[str]


class Broken(AssertionError):  # noqa: N818 - it reads as what it says: a promise is broken
    """An invariant does not hold."""


def require(holds: object, what: str) -> None:
    """Raise Broken when it does not hold."""
    if not holds:
        raise Broken(what)


@dataclass(frozen=True, slots=True)
class Sent:
    """A push on its way: who sent it, and the optimizer steps that its delta holds."""

    push: PushFragment
    learner: int
    works: tuple[int, ...]


@dataclass
class Context:
    """What the parts of one audit share. `sent` knows every push of the world by the id of its delta."""

    config: Config
    clock: Clock
    tally: Tally
    sent: dict[int, Sent]
    observers: frozenset[int] = frozenset()
    live: set[Link] = field(default_factory=set)
    current: dict[int, Link] = field(default_factory=dict)
    ready: set[Link] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)  # sockets
    over: bool = False  # the coordinator has decided to end

    def of(self, push: PushFragment) -> Sent:
        return self.sent[id(push.delta)]


Handlers = dict[type, Callable[[Any], None]]


class Part:
    """A part of the audit: what it does at an event, at an effect that was decided, at one that is performed.

    Within one step of the coordinator the event comes first, then all decided effects in order, then
    `settle`.
    """

    def events(self) -> Handlers:
        return {}

    def decided(self) -> Handlers:
        return {}

    def performed(self) -> Handlers:
        return {}

    def settle(self, event: Event) -> None:
        """After a step."""


class Audit:
    """All parts over one process."""

    def __init__(self, tally: Tally, parts: Iterable[Part], landed: Iterable[Callable[[Save], None]]) -> None:
        self._tally = tally
        self._landed = tuple(landed)
        self._events: dict[type, list[Callable[[Any], None]]] = {}
        self._decided: dict[type, list[Callable[[Any], None]]] = {}
        self._performed: dict[type, list[Callable[[Any], None]]] = {}
        self._settle = []
        self._exited = False
        for part in parts:
            for table, handlers in (
                (self._events, part.events()),
                (self._decided, part.decided()),
                (self._performed, part.performed()),
            ):
                for kind, handler in handlers.items():
                    table.setdefault(kind, []).append(handler)
            if type(part).settle is not Part.settle:
                self._settle.append(part.settle)

    def stepped(self, event: Event, effects: list[Effect]) -> None:
        """The coordinator has taken an event and answered."""
        for handler in self._events.get(type(event), ()):
            handler(event)
        decided = self._decided
        for effect in effects:
            if type(effect) is Count:
                self._tally[" ".join((effect.name, *effect.labels.values()))] += 1
            for handler in decided.get(type(effect), ()):
                handler(effect)
        for settle in self._settle:
            settle(event)

    def performed(self, effect: Effect) -> None:
        """An effect is about to be performed."""
        if self._exited:  # putting each effect into words would take longer than all the checks
            raise Broken(f"{effect} after the exit")
        self._exited = type(effect) is Exit
        for handler in self._performed.get(type(effect), ()):
            handler(effect)

    def landed(self, save: Save) -> None:
        """A checkpoint is durable."""
        for handler in self._landed:
            handler(save)
