"""Connection groups between a learner process and a syncer process, message by message.

A group is a control socket and some data sockets. What one socket carries arrives in order; a bulk message
that is dealt over several data sockets may overtake another one, and everything on control. A group ends by a
reset, which loses what is under way, or by a close, which does not; either side may notice late.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from tests.simulation.clock import Clock
from yeto_proto._generated.messages import DataHello, Hello, Message
from yeto_syncer.core.jobs import Link

__all__ = ["CONTROL", "End", "Line", "Network", "Server"]

CONTROL = 0  # the index of the control socket; data stream i is socket i + 1


class End(Protocol):
    """The learner's side of a group."""

    def arrived(self, line: Line, message: Message) -> None: ...

    def lost(self, line: Line) -> None: ...


class Server(Protocol):
    """The syncer's side of its groups. `book` has the digest of each (fragment, version) that it sends."""

    book: dict[tuple[int, int], bytes]

    def version(self, fragment: int) -> int | None: ...

    def opened(self, line: Line, socket: int) -> None: ...

    def greeted(self, line: Line, socket: int, greeting: Hello | DataHello) -> None: ...

    def arrived(self, line: Line, socket: int, message: Message) -> None: ...

    def ended(self, line: Line, socket: int) -> None: ...


class Network:
    """Delays of one world, and which learners it keeps from the syncer for a while."""

    def __init__(self, clock: Clock, rng: Random, latency: float, bulk: float) -> None:
        self.clock = clock
        self.rng = rng
        self.latency = latency
        self._bulk = bulk
        self.slow_until = 0.0
        self._cut_until: dict[int, float] = {}

    def cut_off(self, learner: int, until: float) -> None:
        """Nothing passes between this learner and the syncer; what is sent meanwhile comes afterwards."""
        self._cut_until[learner] = max(until, self._cut_until.get(learner, 0.0))

    def reachable(self, learner: int) -> bool:
        return self._cut_until.get(learner, 0.0) <= self.clock.now

    def arrival(self, learner: int) -> float:
        """When something that is sent now arrives, if nothing stands in its way on its socket."""
        now = self.clock.now
        delay = self.latency * (0.5 + self.rng.random())
        if now < self.slow_until:
            delay += self.rng.random() * 3.0
        cut = self._cut_until.get(learner, 0.0)
        return (cut if cut > now else now) + delay

    def bulk_time(self) -> float:
        """How long the bytes of one bulk message need to leave."""
        slow = 10.0 if self.clock.now < self.slow_until else 1.0
        return (self.latency + self._bulk) * slow * self.rng.random()


class Line:
    """One connection group. `generation` and `learner` are what its HELLO says."""

    def __init__(self, network: Network, end: End, server: Server, hello: Hello) -> None:
        self.network = network
        self.hello = hello
        self.link = Link(hello.learner_id, hello.connection_generation)
        self.streams = hello.num_streams
        self.up_open = True  # what the learner sends still arrives
        self.down_open = True  # what the syncer sends still arrives
        self.deaf_until = 0.0  # the learner reads nothing before
        self.held_until = 0.0  # what the learner sends comes no earlier
        self.conns: dict[int, int] = {}  # socket index: the syncer's number of it
        self.server = server
        self._end = end
        self._up_free = [0.0] * (self.streams + 1)
        self._down_free = [0.0] * (self.streams + 1)
        self._greeted_at = [0.0] * (self.streams + 1)

    # -- the learner's side ----------------------------------------------------------------------------------

    def greet(self) -> None:
        """Open all sockets and say hello on each. They arrive in any order."""
        learner, generation = self.link
        for socket in range(self.streams + 1):
            at = self.network.arrival(learner)
            self.network.clock.at(at, partial(self._opened, socket))
            greeting = self.hello if socket == CONTROL else DataHello(learner, generation, socket - 1)
            self._up_free[socket] = at + self.network.latency * self.network.rng.random()
            self._greeted_at[socket] = self._up_free[socket]
            self.network.clock.at(self._up_free[socket], partial(self._greeted, socket, greeting))

    def send(self, message: Message, *, bulk: bool = False) -> None:
        """A whole message has left the learner."""
        socket = self._socket(bulk)
        self._later(self._up_free, socket, bulk, partial(self._up, socket, message))

    def reset(self, notice: float, *, learner_notice: float = 0.0) -> None:
        """The network drops the group: what is under way is lost. The syncer notices after a while."""
        self.up_open = False
        self.down_open = False
        clock = self.network.clock
        clock.after(learner_notice, partial(self._end.lost, self))
        self._end_sockets(clock.now + notice)

    def fade(self, hold: float, learner_notice: float) -> None:
        """The learner gives the group up while its last words are held up somewhere: they still arrive."""
        clock = self.network.clock
        self.held_until = clock.now + hold
        clock.after(learner_notice, self._given_up)

    def close(self) -> None:
        """The learner closes all its sockets; what has left it before still arrives."""
        self.down_open = False
        self._end_sockets(max(self.network.arrival(self.link.learner_id), *self._up_free))

    def lose_stream(self, socket: int) -> None:
        """One data socket breaks: the syncer notices it, and the learner gives up the whole group."""
        clock = self.network.clock
        clock.after(self.network.latency, partial(self.server.ended, self, socket))
        clock.after(self.network.latency, partial(self._end.lost, self))
        self.down_open = False
        self._end_sockets(clock.now + 1.0 + 3 * self.network.latency)

    # -- the syncer's side -----------------------------------------------------------------------------------

    def deliver(self, message: Message, *, bulk: bool = False) -> None:
        """A whole message has left the syncer."""
        socket = self._socket(bulk)
        self._later(self._down_free, socket, bulk, partial(self._down, message))

    def hang_up(self) -> None:
        """The syncer has closed all sockets; the learner reads what was sent before."""
        self.up_open = False
        at = max(self.network.arrival(self.link.learner_id), *self._down_free)
        self.network.clock.at(at, self._hung_up)

    # -- inside ----------------------------------------------------------------------------------------------

    def _socket(self, bulk: bool) -> int:
        return self.network.rng.randint(1, self.streams) if bulk and self.streams else CONTROL

    def _later(self, free: list[float], socket: int, bulk: bool, action: Callable[[], None]) -> None:
        at = max(self.network.arrival(self.link.learner_id), self._greeted_at[socket])
        if bulk:
            at += self.network.bulk_time()  # what has left may still lie in buffers for a while
        if not (bulk and self.streams > 1):  # else its pieces went over all of them
            at = max(at, free[socket])
            free[socket] = at
        self.network.clock.at(at, action)

    def _opened(self, socket: int) -> None:
        if self.up_open:
            self.server.opened(self, socket)

    def _greeted(self, socket: int, greeting: Hello | DataHello) -> None:
        if self.up_open:
            self.server.greeted(self, socket, greeting)

    def _up(self, socket: int, message: Message) -> None:
        clock = self.network.clock
        if self.held_until > clock.now:
            clock.at(self.held_until, partial(self._up, socket, message))
        elif self.up_open:
            self.server.arrived(self, socket, message)

    def _down(self, message: Message) -> None:
        clock = self.network.clock
        if self.deaf_until > clock.now:
            clock.at(self.deaf_until, partial(self._down, message))
        elif self.down_open:
            self._end.arrived(self, message)

    def _hung_up(self) -> None:
        clock = self.network.clock
        if self.deaf_until > clock.now:
            clock.at(self.deaf_until, self._hung_up)
        elif self.down_open:
            self.down_open = False
            self._end.lost(self)

    def _given_up(self) -> None:
        if self.down_open:
            self.down_open = False
            self._end.lost(self)
            self._end_sockets(max(self.held_until, *self._up_free))

    def _end_sockets(self, at: float) -> None:
        order = list(range(self.streams + 1))
        self.network.rng.shuffle(order)
        for socket in order:
            at += self.network.latency * self.network.rng.random()
            self.network.clock.at(at, partial(self.server.ended, self, socket))
