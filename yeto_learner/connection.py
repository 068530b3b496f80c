"""The connection of a learner through all its generations: dialling, redialling, and the one lock over what
arrived.

A supervisor thread owns every group of sockets.  When one is lost it stops the group as a whole, waits 1, 2,
4 ... 30 seconds between tries, and comes back with a fresh generation.  A broken protocol rule or an ERROR
frame is final.
"""

from __future__ import annotations

import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from yeto_proto import hello_mac
from yeto_proto._generated import messages as wire
from yeto_proto._generated.errors import BadText, SessionRejected, WrongState, YetoError
from yeto_proto._generated.messages import Buffer, Message
from yeto_proto._generated.types import Role
from yeto_proto.reader import FrameReader
from yeto_proto.writer import frame

from .channel import Address, Channel, address_text, dial
from .core.link import Link
from .core.redial import FIRST_DIAL_TIMEOUT, FIRST_DIAL_WAIT, REDIAL_TIMEOUT, redial_waits
from .errors import ProtocolError, SessionRejectedError
from .group import ClosedByPeerError, Group
from .hashing import BlockHasher, SharedReassembler
from .reception import ReceptionMemory

__all__ = ["Connection"]

log = logging.getLogger(__name__)

PAUSE_NOTICE: Final = 30.0  # seconds of paused reading after which the log says so


class Connection:
    """Everything between a `Link` and its sockets.

    `changed` guards the link and this object's state, and is notified after every change.
    `greeting(generation)` gives the HELLO of a generation.  Reading of bulk pauses while broadcasts of
    `receive_budget` bytes or more wait to be taken.
    """

    def __init__(
        self,
        address: Address,
        link: Link,
        greeting: Callable[[int], wire.Hello],
        *,
        connect_timeout: float,
        max_reconnects: int | None,
        receive_budget: int,
        hmac_key: bytes | None,
        tls: ssl.SSLContext | None,
        received: Callable[[], None],
    ) -> None:
        self.address = address
        self.link = link
        self.changed = threading.Condition()
        self.group: Group | None = None  # the one that may send; None while disconnected
        self.failure: BaseException | None = None  # final
        self.closed = threading.Event()
        self.reconnects = 0
        self.unlimited = False  # while the final cut is waited for, reading never pauses
        self._greeting = greeting
        self._connect_timeout, self._max_reconnects = connect_timeout, max_reconnects
        self._receive_budget = receive_budget
        self._hmac_key, self._tls = hmac_key, tls
        self._received = received
        self._lost: Group | None = None  # a group whose threads have to be stopped
        self._greeted: list[Channel] = []  # sockets of the group that is being made
        self._renewals = 0  # redials that were asked for here, which no limit counts
        self._supervisor: threading.Thread | None = None
        self._hasher = BlockHasher()
        self._memory = ReceptionMemory()
        self._pause_noted = False
        self._bytes = [0, 0]  # received and sent by earlier groups

    # -- life

    def start(self) -> None:
        """Connect patiently: each socket is dialled until `connect_timeout`, then ConnectionError."""
        with self.changed:
            if self._supervisor is not None or self.closed.is_set():
                raise WrongState(detail="a client is started once")
            self._supervisor = threading.Thread(target=self._supervise, name="yeto-supervisor", daemon=True)
        self._connect(self._dial_patiently)
        self._supervisor.start()

    def close(self) -> None:
        """Give everything back: sockets, threads, queues.  Final; may be called twice."""
        with self.changed:
            self.closed.set()
            for channel in self._greeted:
                channel.shutdown()  # a peer that does not read may hold up the greeting
            self.changed.notify_all()
        supervisor = self._supervisor
        if supervisor is not None and supervisor.ident is not None:
            supervisor.join()
        self._hasher.close()

    def check(self) -> None:
        """Raise what ended the connection for good; silent during an outage."""
        failure = self.failure
        if isinstance(failure, SessionRejectedError) and failure.metric is not None:
            raise failure
        if failure is not None:
            raise RuntimeError(f"syncer connection failed: {failure}") from failure

    def drop(self, group: Group, cause: OSError) -> None:
        """Give up this group, as if its network had failed; the supervisor dials a new one."""
        self._ended(group, cause)

    def renew(self, group: Group, why: str) -> None:
        """Replace this group by a new one, for the catch-up that comes with it.  `max_reconnects` does not
        count that.
        """
        with self.changed:
            if self.group is not group:
                return
            self._renewals += 1
        self._ended(group, OSError(why))

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes received and sent on all sockets since the start."""
        with self.changed:
            group = self.group or self._lost
            received, sent = self._bytes
            return (
                received + (group.bytes_received if group else 0),
                sent + (group.bytes_sent if group else 0),
            )

    # -- connecting

    def _connect(self, dial_one: Callable[[], Channel]) -> None:
        """Dial all sockets, say HELLO on each, start their threads."""
        generation = self._new_generation()
        hello = self._greeting(generation)
        channels: list[Channel] = []
        try:
            for index in range(1 + hello.num_streams):
                channel = dial_one()
                with self.changed:
                    channels.append(channel)
                    if self.closed.is_set():
                        raise ConnectionAbortedError("the client was closed while it was connecting")
                    self._greeted = channels
                channel.send_all(self._hello_frame(hello, index))
        except BaseException:
            with self.changed:
                self._greeted = []
            for channel in channels:
                channel.close()
            raise
        with self.changed:
            self._greeted = []
            epoch = self.link.connect(generation)
            allocate = self._memory.take
            reassembler = SharedReassembler(self.link.session, self._hasher, allocate)
            readers = [
                FrameReader(Role.LEARNER, self.link.session, reassembler=reassembler, allocate=allocate)
                for _ in channels
            ]
            group = Group(
                epoch,
                generation,
                channels,
                readers,
                handle=self._handle,
                ended=self._ended,
                gate=self._wait_for_room,
            )
            self.group = group
            self.changed.notify_all()
        group.start()

    def _new_generation(self) -> int:
        while True:
            generation = secrets.randbits(64)
            if generation not in (0, self.link.generation):
                return generation

    def _hello_frame(self, hello: wire.Hello, index: int) -> list[Buffer]:
        if index > 0:
            return frame(wire.DataHello(hello.learner_id, hello.connection_generation, index - 1))
        return hello_mac.hello_frame(hello, self._hmac_key)

    def _dial(self, timeout: float) -> Channel:
        return dial(self.address, timeout, self._tls, self.closed.is_set)

    def _dial_patiently(self) -> Channel:
        deadline = time.monotonic() + self._connect_timeout
        told = False
        while True:
            left = deadline - time.monotonic()
            try:
                return self._dial(min(FIRST_DIAL_TIMEOUT, max(left, 0.1)))
            except ssl.SSLCertVerificationError:
                raise  # trying again does not change a certificate
            except OSError as error:
                left = deadline - time.monotonic()
                if not told:  # once: a start that waits in silence looks like one that hangs
                    told = True
                    log.warning(
                        "no syncer at %s yet (%s); trying for %.0f s more",
                        address_text(self.address),
                        error,
                        max(left, 0.0),
                    )
                if self.closed.wait(min(FIRST_DIAL_WAIT, max(left, 0.0))):
                    raise ConnectionAbortedError("the client was closed while it was connecting") from error
                if left <= 0:
                    raise ConnectionError(
                        f"no syncer at {address_text(self.address)} within {self._connect_timeout:g} s: "
                        f"{error}; is yeto-syncer running, and is this its host and port?"
                    ) from error

    # -- receiving, on the threads of a group

    def _handle(self, group: Group, message: Message) -> None:
        digest = b""
        if isinstance(message, wire.BcastFragment | wire.FinalFragment):
            digest = self._hasher.digest(message)
        with self.changed:
            self.link.receive(group.epoch, message, digest, time.monotonic())
            self._received()
            self.changed.notify_all()

    def _wait_for_room(self, group: Group) -> None:
        with self.changed:
            if self._has_room(group):
                return
            if not self.changed.wait_for(lambda: self._has_room(group), PAUSE_NOTICE):
                if not self._pause_noted:  # by the thread of another socket
                    self._pause_noted = True
                    log.warning(
                        "reading is paused: %d bytes of broadcasts wait for the next step; when steps are "
                        "this long, a larger receive_budget keeps the syncer from giving up on this learner",
                        self.link.update_bytes,
                    )
                self.changed.wait_for(lambda: self._has_room(group))
            self._pause_noted = False

    def _has_room(self, group: Group) -> bool:
        return self.unlimited or self.link.update_bytes < self._receive_budget or self.group is not group

    def _ended(self, group: Group, cause: BaseException) -> None:
        failure: BaseException | None
        if isinstance(cause, OSError):
            failure = None
        elif isinstance(cause, SessionRejected | BadText):  # an ERROR frame, the second with broken UTF-8
            failure = SessionRejectedError(cause.detail, cause)
        elif isinstance(cause, YetoError):
            failure = ProtocolError(str(cause), cause)
        else:
            failure = cause
        with self.changed:
            if failure is not None and self.failure is None:
                self.failure = failure
            if self.group is group:
                self.group = None
                self._lost = group
                if not self.closed.is_set() and not self.link.shutdown and failure is None:
                    self._tell_lost(cause)
            self.changed.notify_all()
        # Not under the lock: a ticket that is settled here may ask for it.
        group.close_sending()

    def _tell_lost(self, cause: BaseException) -> None:
        address = address_text(self.address)
        if isinstance(cause, ClosedByPeerError):
            what = f"the syncer at {address} closed the connection"
        else:
            what = f"the connection to the syncer at {address} is lost ({cause})"
        if self._max_reconnects is None:
            patience = "until it is back"
        else:
            patience = f"at most {self._max_reconnects - self._counted} times more"
        log.warning("%s; it is dialled again %s", what, patience)

    # -- the supervisor

    def _supervise(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._lost is not None or self.closed.is_set())
            self._stop_lost()
            if self._over() or not self._redial():
                break
        self._retire()  # a group that was dialled while the client was being closed

    def _retire(self) -> None:
        with self.changed:
            if self.group is not None:
                self._lost, self.group = self.group, None
            self.changed.notify_all()
        self._stop_lost()

    @property
    def _counted(self) -> int:
        return self.reconnects - self._renewals

    def _over(self) -> bool:
        return self.closed.is_set() or self.failure is not None or self.link.shutdown

    def _stop_lost(self) -> None:
        with self.changed:
            lost = self._lost
        if lost is None:
            return
        lost.stop(linger=not self._over())
        with self.changed:
            self._lost = None
            self._bytes[0] += lost.bytes_received
            self._bytes[1] += lost.bytes_sent
            self.link.disconnect(lost.epoch)
            self.changed.notify_all()

    def _redial(self) -> bool:
        """Try until connected; False when the client is over."""
        begun, told = time.monotonic(), False
        for wait in redial_waits():
            if self._max_reconnects is not None and self._counted >= self._max_reconnects:
                with self.changed:
                    self.failure = ConnectionError(
                        f"the syncer at {address_text(self.address)} is lost and all {self._max_reconnects} "
                        f"reconnects are used"
                    )
                    self.changed.notify_all()
                return False
            if self.closed.wait(wait):
                return False
            self.reconnects += 1
            try:
                self._connect(lambda: self._dial(REDIAL_TIMEOUT))
            except ssl.SSLCertVerificationError as error:
                with self.changed:
                    self.failure = error
                    self.changed.notify_all()
                return False
            except OSError as error:
                # One line an outage: it may last for days.
                level = logging.DEBUG if told else logging.INFO
                told = True
                log.log(level, "no syncer at %s yet (%s); trying on", address_text(self.address), error)
            else:
                seconds = time.monotonic() - begun
                log.info("connected again to %s after %.0f s", address_text(self.address), seconds)
                return True
        return False
