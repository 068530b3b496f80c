"""Who may enter: HELLO and DATA_HELLO, the session that the first HELLO fixes, and the handshake deadline.

A refusal ends that one socket and nothing else (D9).
"""

from __future__ import annotations

from yeto_proto._generated import rules
from yeto_proto._generated.errors import (
    HandshakeTimeout,
    SessionMismatch,
    UnknownGroup,
)
from yeto_proto._generated.messages import DataHello, Hello
from yeto_proto._generated.types import FrameType
from yeto_proto.errors_base import YetoError
from yeto_proto.files.model import Snapshot
from yeto_proto.probe import NOBODY
from yeto_proto.session import Session
from yeto_syncer.core import resume
from yeto_syncer.core.config import Config
from yeto_syncer.core.effects import Accept, Attach, Refuse
from yeto_syncer.core.facts import HistoryFacts, ServerFacts
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.outbox import Outbox
from yeto_syncer.core.registry import Group, Registry


class Admission:
    """The sockets that are not admitted yet, and the rules for letting them in."""

    def __init__(
        self,
        config: Config,
        facts: ServerFacts,
        registry: Registry,
        outbox: Outbox,
        resumed: Snapshot | None,
    ) -> None:
        self._patience = config.handshake_timeout_s
        self._facts = facts
        self._registry = registry
        self._outbox = outbox
        self._resumed = resumed
        self.session: Session | None = None
        # All deadlines are equally long, so the dict is in order of time.
        self._deadlines: dict[int, float] = {}
        self._waiting: dict[Link, dict[int, DataHello]] = {}
        self._waits_for: dict[int, Link] = {}

    def opened(self, now: float, conn: int) -> None:
        """A socket was accepted; from here it has the handshake time."""
        self._deadlines[conn] = now + self._patience

    def hello(self, conn: int, hello: Hello) -> Group | None:
        """Admit the group, or refuse the socket. The first HELLO that gets as far as the session fixes it."""
        if conn not in self._deadlines:
            return None  # its time was over when these bytes came
        link = Link(hello.learner_id, hello.connection_generation)
        error = self._judge(hello, link)
        if error is not None:
            self.refuse(conn, error, probe=hello.learner_id == NOBODY)
            return None
        self._forget(conn)
        group = Group(link, conn, hello.num_streams)
        superseded = self._registry.add(group)
        assert self.session is not None
        self._outbox.emit(Accept(conn, link, self.session, hello.num_streams))
        self._outbox.count("learners_joined")
        self._outbox.log(
            "info",
            "learner connected",
            learner=link.learner_id,
            generation=link.generation,
            streams=hello.num_streams,
            fragments=self.session.num_fragments,
        )
        if superseded is not None:
            # A redial looks like this too. Two processes with one id do it over and over; none is told.
            self._outbox.log(
                "warning",
                "superseded by a newer connection of the same learner id",
                learner=link.learner_id,
                generation=superseded.link.generation,
            )
        for waiting, data_hello in self._waiting.pop(link, {}).items():
            del self._waits_for[waiting]
            self._attach(group, waiting, data_hello)
        return group

    def data_hello(self, conn: int, data_hello: DataHello) -> None:
        """Attach the socket to its group, or keep it waiting for the HELLO until its handshake time is
        over."""
        if conn not in self._deadlines:
            return
        error = rules.first_broken(FrameType.DATA_HELLO, "link", data_hello, server=self._facts, group=None)
        if error is not None:
            self.refuse(conn, error)
            return
        link = Link(data_hello.learner_id, data_hello.connection_generation)
        group = self._registry.get(link)
        if group is not None:
            self._attach(group, conn, data_hello)
        elif self._registry.was_used(link):
            # A generation never comes back (D28): nothing to wait for.
            self.refuse(conn, UnknownGroup(frame="DATA_HELLO", detail=f"{link} is gone"))
        else:
            self._waiting.setdefault(link, {})[conn] = data_hello
            self._waits_for[conn] = link

    def refuse(self, conn: int, error: YetoError, *, probe: bool = False) -> None:
        """Answer a socket that is not admitted and close it. A `probe` wanted no more than the answer."""
        self._forget(conn)
        self._outbox.count("connections_refused", reason=type(error).__name__)
        what = "probe answered" if probe else "connection refused"
        self._outbox.log("info" if probe else "warning", what, conn=conn, reason=str(error))
        self._outbox.emit(Refuse(conn, error))

    def pending(self, conn: int) -> bool:
        """True while the socket is neither admitted nor refused nor gone."""
        return conn in self._deadlines

    def closed(self, conn: int) -> None:
        """A socket ended before it was admitted."""
        self._forget(conn)

    def next_deadline(self) -> float | None:
        for deadline in self._deadlines.values():
            return deadline
        return None

    def expire(self, now: float) -> None:
        """Refuse the sockets whose handshake time is over (D6)."""
        while self._deadlines:
            conn, deadline = next(iter(self._deadlines.items()))
            if now < deadline:
                return
            link = self._waits_for.get(conn)
            if link is None:
                detail = f"nothing complete within {self._patience:g} s"
                self.refuse(conn, HandshakeTimeout(detail=detail))
            else:
                detail = f"no HELLO of {link} within {self._patience:g} s"
                self.refuse(conn, UnknownGroup(frame="DATA_HELLO", detail=detail))

    def _judge(self, hello: Hello, link: Link) -> YetoError | None:
        """Range and profile, then the session or the checkpoint, then the generation; in this order."""
        error = rules.first_broken(
            FrameType.HELLO, "link", hello, server=self._facts, session=None, history=None
        )
        if error is not None:
            return error
        if self.session is not None:
            difference = self.session.difference(hello)
            if difference is not None:
                return SessionMismatch(rule="session.same", frame="HELLO", detail=difference)
        else:
            if self._resumed is not None:
                error = resume.difference(self._resumed, hello)
                if error is not None:
                    return error
            self.session = Session.from_hello(hello)
            # Its arrays belong to the model from here on; a second reference would keep the old ones alive.
            self._resumed = None
        if not self._registry.was_used(link):
            return None
        generation = frozenset((link.generation,))
        live = self._registry.is_live(link)
        history = HistoryFacts(connected=generation) if live else HistoryFacts(retired=generation)
        return rules.first_broken(FrameType.HELLO, "link", hello, history=history, server=None, session=None)

    def _attach(self, group: Group, conn: int, data_hello: DataHello) -> None:
        error = rules.first_broken(FrameType.DATA_HELLO, "link", data_hello, group=group, server=None)
        if error is not None:
            self.refuse(conn, error)
            return
        self._forget(conn)
        self._registry.attach(group, conn, data_hello.stream_idx)
        self._outbox.emit(Attach(conn, group.link, data_hello.stream_idx))

    def _forget(self, conn: int) -> None:
        self._deadlines.pop(conn, None)
        link = self._waits_for.pop(conn, None)
        if link is not None:
            del self._waiting[link][conn]
            if not self._waiting[link]:
                del self._waiting[link]
