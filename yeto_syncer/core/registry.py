"""Who is connected: connection groups, the current generation of each learner, and which of them may be
captured.

Pure bookkeeping. Admission decides who enters, the coordinator what a departure means.
"""

from __future__ import annotations

from collections.abc import Iterator

from yeto_proto._generated.machines import LEARNER_GROUP, LearnerGroupInput, LearnerGroupState
from yeto_proto.machine import advance
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.steprate import StepRate


class Group:
    """One live connection group: a control socket and the data sockets attached to it."""

    __slots__ = (
        "attached",
        "broken",
        "caught_up_to",
        "conn",
        "data_conns",
        "heard_at",
        "link",
        "num_streams",
        "rate",
        "state",
        "token",
    )

    def __init__(self, link: Link, conn: int, num_streams: int) -> None:
        self.link = link
        self.conn = conn
        self.num_streams = num_streams
        # An index stays taken when its socket dies: a message never continues on another socket of that
        # number.
        self.attached: set[int] = set()
        self.data_conns: set[int] = set()
        # Data sockets that broke a rule. What the shell read on them before it closed them is not heard.
        self.broken: set[int] = set()
        self.rate = StepRate()
        self.heard_at = 0.0  # when its last message came
        self.state = LEARNER_GROUP.initial
        # The delivery of the initial cut or catch-up, and the versions that it brings.
        self.token: int | None = None
        self.caught_up_to: tuple[int, ...] | None = None

    @property
    def ready(self) -> bool:
        """True when it is current and its catch-up has left: only then may a round capture it (D14)."""
        return self.state is LearnerGroupState.READY

    def take(self, happened: LearnerGroupInput) -> None:
        """Go where the machine of the spec leads; no other way changes the state."""
        self.state = advance(LEARNER_GROUP, self.state, happened)


class Registry:
    """Live groups by link and by socket; `current` is the newest generation of a learner that is
    connected."""

    def __init__(self, observers: tuple[int, ...]) -> None:
        self._observers = frozenset(observers)
        self._groups: dict[Link, Group] = {}
        self._current: dict[int, Group] = {}
        self._by_conn: dict[int, Group] = {}
        # Superseded and still connected, the oldest first.
        self._superseded: dict[int, dict[Link, Group]] = {}
        self._used: dict[int, set[int]] = {}
        self._ready: tuple[Group, ...] | None = None

    def add(self, group: Group) -> Group | None:
        """Enter a group and make it current; return the generation that it supersedes, which stays
        connected."""
        link = group.link
        superseded = self._current.get(link.learner_id)
        if superseded is not None:
            superseded.take(LearnerGroupInput.REPLACED)
            self._superseded.setdefault(link.learner_id, {})[superseded.link] = superseded
        self._groups[link] = group
        self._current[link.learner_id] = group
        self._by_conn[group.conn] = group
        self._used.setdefault(link.learner_id, set()).add(link.generation)
        self._ready = None
        return superseded

    def remove(self, link: Link) -> Group | None:
        """Forget a group. A successor that became current meanwhile stays current."""
        group = self._groups.pop(link, None)
        if group is None:
            return None
        group.take(LearnerGroupInput.LEFT)
        if self._current.get(link.learner_id) is group:
            del self._current[link.learner_id]
        older = self._superseded.get(link.learner_id)
        if older is not None and older.pop(link, None) is not None and not older:
            del self._superseded[link.learner_id]
        del self._by_conn[group.conn]
        for conn in group.data_conns:
            del self._by_conn[conn]
        self._ready = None
        return group

    def attach(self, group: Group, conn: int, stream_idx: int) -> None:
        group.attached.add(stream_idx)
        group.data_conns.add(conn)
        self._by_conn[conn] = group

    def detach(self, group: Group, conn: int) -> None:
        """A data socket ended; its stream index stays taken."""
        group.data_conns.discard(conn)
        self._by_conn.pop(conn, None)

    def mark_ready(self, group: Group) -> None:
        """The whole catch-up of the group has left."""
        group.token = None
        group.take(LearnerGroupInput.CUT_LEFT)
        self._ready = None

    def mark_catching_up(self, group: Group, token: int, versions: tuple[int, ...]) -> None:
        """A cut is on its way to the group."""
        group.take(LearnerGroupInput.CUT_QUEUED)
        group.token = token
        group.caught_up_to = versions
        self._ready = None

    def get(self, link: Link) -> Group | None:
        return self._groups.get(link)

    def of_conn(self, conn: int) -> Group | None:
        return self._by_conn.get(conn)

    def current(self, learner_id: int) -> Group | None:
        return self._current.get(learner_id)

    def superseded(self, learner_id: int) -> list[Link]:
        """The older generations of a learner that are still connected, the last to be superseded at the
        end."""
        return list(self._superseded.get(learner_id, ()))

    def is_current(self, group: Group) -> bool:
        return self._current.get(group.link.learner_id) is group

    def is_live(self, link: Link) -> bool:
        return link in self._groups

    def was_used(self, link: Link) -> bool:
        """True when this process accepted that generation of that learner before, live or gone (D28)."""
        return link.generation in self._used.get(link.learner_id, ())

    def is_observer(self, learner_id: int) -> bool:
        return learner_id in self._observers

    def current_groups(self) -> Iterator[Group]:
        """The current group of every connected learner, observers included."""
        return iter(self._current.values())

    def current_links(self) -> tuple[Link, ...]:
        return tuple(group.link for group in self._current.values())

    def connected_participants(self) -> int:
        """How many learners that can be captured are connected."""
        return sum(1 for learner in self._current if learner not in self._observers)

    def ready(self) -> tuple[Group, ...]:
        """Who a launch captures: current, caught up, no observer; in ascending (id, generation)."""
        if self._ready is None:
            self._ready = tuple(
                sorted(
                    (
                        group
                        for learner, group in self._current.items()
                        if group.ready and learner not in self._observers
                    ),
                    key=lambda group: group.link,
                )
            )
        return self._ready
