"""Connections that are refused: other sessions, used generations, streams that do not exist, silence."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Protocol

from tests.simulation.clock import Clock
from tests.simulation.setup import Setup
from tests.simulation.syncer_process import SyncerProcess
from tests.simulation.wire import CONTROL, Line, Network
from yeto_proto._generated.errors import BadMagic, VersionMismatch
from yeto_proto._generated.messages import DataHello, Error, Hello, Message
from yeto_syncer.core.jobs import Link

KINDS = (
    "another contract",
    "another profile",
    "no profile",
    "an id outside the launch set",
    "a live generation again",
    "a retired generation again",
    "a stream of nobody",
    "a stream of a retired generation",
    "a stream beyond the announced",
    "a stream a second time",
    "a stream before its HELLO, which never comes",
    "silence",
    "silence that hangs up",
    "another protocol",
    "another version",
)


class World(Protocol):
    """What a stranger needs of the world."""

    clock: Clock
    network: Network
    setup: Setup
    syncer: SyncerProcess | None


class Stranger:
    """One connection that gives a wrong greeting, or none. `answer` is the ERROR that it got."""

    def __init__(self, world: World, rng: Random, kind: str) -> None:
        self.answer: str | None = None
        self.over = False
        self._world = world
        self._rng = rng
        self._kind = kind

    def call(self) -> bool:
        """Dial; False when there is nobody to dial, or nothing to be wrong about."""
        syncer = self._world.syncer
        if syncer is None:
            return False
        hello = self._hello(syncer)
        if hello is None:
            return False
        line = Line(self._world.network, self, syncer, hello)
        match self._kind:
            case "silence" | "silence that hangs up":
                syncer.opened(line, CONTROL)
                if self._kind.endswith("up"):
                    self._world.clock.after(1.0, line.close)
            case "another protocol" | "another version":
                syncer.opened(line, CONTROL)
                error = BadMagic() if self._kind == "another protocol" else VersionMismatch()
                self._world.clock.after(0.5, partial(syncer.garbage, line, CONTROL, error))
            case kind if kind.startswith("a stream"):
                self._data(syncer, line)
            case _:
                line.streams = 0
                line.greet()
        return True

    def join(self, line: Line) -> None:
        """Say that one more stream belongs to a group whose HELLO is still on its way."""
        syncer = self._world.syncer
        if syncer is not None:
            self._data(syncer, Line(self._world.network, self, syncer, line.hello))

    def _data(self, syncer: SyncerProcess, line: Line) -> None:
        learner, generation = line.link
        index = {"a stream beyond the announced": line.hello.num_streams}.get(self._kind, 0)
        syncer.opened(line, CONTROL)
        greeting = DataHello(learner, generation, index)
        self._world.clock.after(0.0, partial(syncer.greeted, line, CONTROL, greeting))
        if self._kind.endswith("never comes") and self._rng.random() < 0.6:
            self._world.clock.after(2.0, line.close)

    def _hello(self, syncer: SyncerProcess) -> Hello | None:
        session, rng = self._world.setup.session, self._rng
        hello = Hello(
            rng.randrange(self._world.setup.config.learners),
            rng.getrandbits(64) | 1,
            session.dtype,
            session.layout,
            session.fingerprint,
            session.contract,
            session.profile,
            0,
        )
        live = [line for line in syncer.lines if line.streams and syncer.whole(line)]
        if not syncer.lines and self._kind in ("another contract", "no profile"):
            return None  # as the first one it would be right, and fix the session
        match self._kind:
            case "another contract":
                return replace(hello, session_contract_hash=bytes(32))
            case "another profile":
                return replace(hello, syncer_profile_hash=bytes(32))
            case "no profile":
                return None if session.profile is None else replace(hello, syncer_profile_hash=None)
            case "an id outside the launch set":
                return replace(hello, learner_id=self._world.setup.config.learners + rng.randrange(3))
            case "a live generation again":
                return _as(hello, rng.choice(syncer.lines).link) if syncer.lines else None
            case "a retired generation again" | "a stream of a retired generation":
                live_links = {line.link for line in syncer.lines}
                retired = [link for link in syncer.accepted if link not in live_links]
                return _as(hello, rng.choice(retired)) if retired else None
            case "a stream beyond the announced" | "a stream a second time":
                if not live:
                    return None
                line = rng.choice(live)
                return replace(_as(hello, line.link), num_streams=line.streams)
            case _:
                return hello

    def arrived(self, line: Line, message: Message) -> None:
        if isinstance(message, Error):
            self.answer = message.text

    def lost(self, line: Line) -> None:
        self.over = True


def _as(hello: Hello, link: Link) -> Hello:
    return replace(hello, learner_id=link.learner_id, connection_generation=link.generation)
