"""Sockets and generations of one process, walked along the machine of the specification."""

from __future__ import annotations

from tests.simulation.audit import Context, Handlers, Part, require
from yeto_proto._generated.errors import HandshakeTimeout
from yeto_proto._generated.machines import LINK, LinkInput, LinkState
from yeto_proto.machine import advance
from yeto_syncer.core.effects import Accept, Attach, CloseConn, CloseLink, Deliver, Refuse, Send
from yeto_syncer.core.events import (
    DataHelloReceived,
    Delivered,
    Disconnected,
    Event,
    HelloReceived,
    Opened,
    Received,
    Refused,
)
from yeto_syncer.core.jobs import Link


class Links(Part):
    """Every socket goes where the machine leads. Keeps who is live, current and caught up, for the others."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._states: dict[int, LinkState] = {}
        self._group: dict[int, Link] = {}
        self._tokens: dict[Link, int] = {}
        self._used: set[Link] = set()
        self._culprit: int | None = None  # the socket that the event of this step came on

    def events(self) -> Handlers:
        return {
            Opened: self._on_opened,
            HelloReceived: self._on_greeting,
            DataHelloReceived: self._on_greeting,
            Received: self._on_bytes,
            Refused: self._on_bytes,
            Disconnected: self._on_disconnected,
            Delivered: self._on_delivered,
        }

    def decided(self) -> Handlers:
        return {
            Accept: self._on_accept,
            Attach: self._on_attach,
            Refuse: self._on_refuse,
            CloseLink: self._on_close_link,
            CloseConn: self._on_close_conn,
            Deliver: self._on_deliver,
            Send: self._on_send,
        }

    def settle(self, event: Event) -> None:
        if isinstance(event, DataHelloReceived) and self._states.get(event.conn) is LinkState.OPENED:
            self._take(event.conn, LinkInput.GROUP_MISSING)
        self._culprit = None

    def _take(self, conn: int, happened: LinkInput) -> None:
        state = self._states[conn]
        self._states[conn] = advance(LINK, state, happened)
        if self._states[conn] in LINK.final:
            self._context.closed.add(conn)
        self._context.tally[f"link: {state.value} + {happened.value}"] += 1

    def _open(self, conn: int) -> bool:
        return self._states.get(conn, LinkState.CLOSED) is not LinkState.CLOSED

    # -- events ----------------------------------------------------------------------------------------------

    def _on_opened(self, event: Opened) -> None:
        self._states[event.conn] = LINK.initial

    def _on_greeting(self, event: HelloReceived | DataHelloReceived) -> None:
        self._culprit = event.conn

    def _on_bytes(self, event: Received | Refused) -> None:
        self._culprit = event.conn

    def _on_disconnected(self, event: Disconnected) -> None:
        if self._open(event.conn):
            self._take(event.conn, LinkInput.ENDED)

    def _on_delivered(self, event: Delivered) -> None:
        context, link = self._context, event.link
        if self._tokens.get(link) == event.token and link in context.live:
            del self._tokens[link]
            if context.current.get(link.learner_id) == link:
                context.ready.add(link)

    # -- effects ---------------------------------------------------------------------------------------------

    def _on_accept(self, effect: Accept) -> None:
        context, link = self._context, effect.link
        require(link not in self._used, f"{link} was accepted a second time")
        require(link.learner_id < context.config.learners, f"{link} is outside the launch set")
        self._used.add(link)
        self._take(effect.conn, LinkInput.HELLO_ACCEPTED)
        self._group[effect.conn] = link
        context.live.add(link)
        before = context.current.get(link.learner_id)
        if before is not None:
            context.ready.discard(before)
        context.current[link.learner_id] = link

    def _on_attach(self, effect: Attach) -> None:
        require(effect.link in self._context.live, f"a stream of {effect.link}, which is gone")
        self._take(effect.conn, LinkInput.STREAM_ATTACHED)
        self._group[effect.conn] = effect.link

    def _on_refuse(self, effect: Refuse) -> None:
        late = isinstance(effect.error, HandshakeTimeout) or (
            effect.conn != self._culprit
            and self._states[effect.conn] is LinkState.WAITING
            and "within" in effect.error.detail
        )
        self._take(effect.conn, LinkInput.TIMED_OUT if late else LinkInput.REFUSED)

    def _on_close_link(self, effect: CloseLink) -> None:
        context, link = self._context, effect.link
        require(link in context.live, f"{link} is closed and was gone")
        context.live.discard(link)
        context.ready.discard(link)
        self._tokens.pop(link, None)
        if context.current.get(link.learner_id) == link:
            del context.current[link.learner_id]
        for conn in [conn for conn, group in self._group.items() if group == link]:
            del self._group[conn]
            if not self._open(conn):
                continue
            guilty = effect.error is not None and conn == self._culprit
            self._take(conn, LinkInput.REFUSED if guilty else LinkInput.GROUP_ENDED)

    def _on_close_conn(self, effect: CloseConn) -> None:
        self._take(effect.conn, LinkInput.REFUSED)
        self._group.pop(effect.conn, None)

    def _on_deliver(self, effect: Deliver) -> None:
        for link in effect.links:
            require(link in self._context.live, f"a delivery to {link}, which is gone")
            if effect.token is not None and not effect.final:
                self._tokens[link] = effect.token

    def _on_send(self, effect: Send) -> None:
        require(effect.link in self._context.live, f"{effect.message} to {effect.link}, which is gone")
