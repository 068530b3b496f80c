"""What a syncer process of a simulated world is made of: who watches it, its disk, its outgoing bulk."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tests.simulation.wire import Line
from yeto_proto._generated.messages import BcastFragment, FinalFragment
from yeto_proto.files.model import Snapshot
from yeto_syncer.core.effects import Effect, Save, Versioned
from yeto_syncer.core.events import Delivered, Event
from yeto_syncer.core.jobs import F32

if TYPE_CHECKING:
    from tests.simulation.syncer_process import SyncerProcess


class Audit(Protocol):
    """Who watches a process: every step before its effects are performed, and every effect as it is."""

    def stepped(self, event: Event, effects: list[Effect]) -> None: ...

    def performed(self, effect: Effect) -> None: ...

    def landed(self, save: Save) -> None: ...


@dataclass
class Disk:
    """What outlives the processes of a world."""

    snapshot: Snapshot | None = None
    marker: int | None = None
    final_state: tuple[F32, ...] | None = None
    tape: list[dict[str, Any]] = field(default_factory=list)


@dataclass(eq=False)
class Ticket:
    """A delivery, and how many of its messages have not left yet."""

    token: int | None
    left: int


@dataclass(eq=False)
class Parcel:
    """A bulk message that waits. A newer version of a broadcast takes over the place of an older one."""

    fragment: Versioned
    final: bool
    tickets: list[Ticket]


class Outgoing:
    """The bulk of one group: one message leaves at a time."""

    def __init__(self, process: SyncerProcess, line: Line) -> None:
        self._process = process
        self._line = line
        self._waiting: deque[Parcel] = deque()
        self._busy = False
        self._checked = False

    def put(self, fragments: tuple[Versioned, ...], final: bool, token: int | None) -> None:
        ticket = Ticket(token, len(fragments))
        for fragment in fragments:
            older = None if final else self._unsent(fragment.fragment_id)
            if older is None:
                self._waiting.append(Parcel(fragment, final, [ticket]))
                continue
            older.tickets.append(ticket)
            if fragment.version >= older.fragment.version:
                older.fragment = fragment
        self._pump()

    def _unsent(self, fragment_id: int) -> Parcel | None:
        for parcel in self._waiting:
            if not parcel.final and parcel.fragment.fragment_id == fragment_id:
                return parcel
        return None

    def _pump(self) -> None:
        if self._busy or not self._waiting or not self._process.has(self._line):
            return
        clock = self._process.clock
        deaf = self._line.deaf_until
        if deaf > clock.now:
            if not self._checked:  # once: nothing leaves while the learner does not read
                self._checked = True
                patience = clock.now + self._process.setup.write_timeout
                clock.at(min(deaf, patience), self._look)
            return
        self._busy = True
        clock.after(self._line.network.bulk_time(), partial(self._left, self._waiting.popleft()))

    def _look(self) -> None:
        self._checked = False
        if not self._process.has(self._line):
            return
        if self._line.deaf_until > self._process.clock.now:
            self._process.drop(self._line, "no byte went out")
        else:
            self._pump()

    def _left(self, parcel: Parcel) -> None:
        self._busy = False
        if not self._process.has(self._line):
            return
        each = parcel.fragment
        data = self._process.encoded(each, parcel.final)
        message = (FinalFragment if parcel.final else BcastFragment)(each.fragment_id, each.version, data)
        self._line.deliver(message, bulk=True)
        for ticket in parcel.tickets:
            ticket.left -= 1
            if ticket.left == 0 and ticket.token is not None:
                self._process.post(Delivered(self._line.link, ticket.token))
        self._pump()
