"""Learners made of plain sockets, without the SDK: what a foreign implementation of the protocol would
send.

`Raw` is one connection group that a test drives frame by frame. `Trainer` answers like a learner: it keeps
anchors, answers pulls, takes the final cut and acknowledges it. `drive` serves any number of them in one
thread.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tests.e2e.processes import TIMEOUT_S
from yeto_proto import dtypes
from yeto_proto._generated.messages import (
    BcastFragment,
    DataHello,
    Error,
    FinalAck,
    FinalFragment,
    FinalManifest,
    Hello,
    InitParams,
    Message,
    PullReq,
    PushFragment,
    Shutdown,
)
from yeto_proto._generated.types import Dtype, Role
from yeto_proto.chunks import Reassembler, slices
from yeto_proto.codec import encode
from yeto_proto.layout import Layout
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session

F32 = npt.NDArray[np.float32]
M = TypeVar("M", bound=Message)

CONTROL = -1
LOOK_S = 0.25
"""How long `drive` waits for the sockets before it looks at its condition again: another process may have
made it true."""
CONTRACT = bytes(range(32))


def hello(
    layout: Layout,
    learner_id: int,
    *,
    generation: int = 1,
    dtype: Dtype = Dtype.F32,
    streams: int = 0,
    contract: bytes = CONTRACT,
    profile: bytes | None = None,
    fingerprint: bytes | None = None,
) -> Hello:
    """A HELLO of this learner."""
    return Hello(
        learner_id=learner_id,
        connection_generation=generation,
        dtype=dtype,
        layout=layout.wire(),
        layout_fingerprint=fingerprint or layout.fingerprint(),
        session_contract_hash=contract,
        syncer_profile_hash=profile,
        num_streams=streams,
    )


def dial(port: int) -> socket.socket:
    """A connected socket whose every wait is bounded."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class EndedError(Exception):
    """The syncer closed a socket of the group."""


class Raw:
    """One connection group: `1 + streams` sockets, sends that block, and received messages in `inbox`."""

    def __init__(self, port: int, greeting: Hello, *, early: Sequence[int] = ()) -> None:
        """Dial and greet; the DATA_HELLOs of the streams in `early` go out before the HELLO."""
        self.hello = greeting
        self.link = (greeting.learner_id, greeting.connection_generation)
        self.session = Session.from_hello(greeting)
        self.inbox: deque[Message] = deque()
        self.seen: list[tuple[int, Message]] = []
        self.ended = False
        self.sockets: dict[int, socket.socket] = {}
        self.readers: dict[int, FrameReader] = {}
        self._reassembler = Reassembler(Role.LEARNER, self.session)
        self._msg_id = 0
        self._turn = 0
        for index in early:
            self.attach(port, index)
        self._dial(port, CONTROL)
        self.send(greeting)
        for index in range(greeting.num_streams):
            if index not in early:
                self.attach(port, index)

    def _dial(self, port: int, stream: int) -> None:
        self.sockets[stream] = dial(port)
        self.readers[stream] = FrameReader(Role.LEARNER, self.session, reassembler=self._reassembler)

    def attach(self, port: int, index: int) -> None:
        """Add data stream `index`."""
        self._dial(port, index)
        data_hello = DataHello(learner_id=self.link[0], connection_generation=self.link[1], stream_idx=index)
        self.send(data_hello, index)

    def send(self, message: Message, stream: int = CONTROL) -> None:
        """One bare frame."""
        self.sockets[stream].sendall(b"".join(bytes(buffer) for buffer in encode(message)))

    def send_bulk(self, message: Message) -> None:
        """A message in chunks, round robin over the data streams, or over control without any."""
        streams = [stream for stream in sorted(self.sockets) if stream != CONTROL] or [CONTROL]
        for buffers in slices(message, self._msg_id):
            sock = self.sockets[streams[self._turn % len(streams)]]
            self._turn += 1
            for buffer in buffers:
                sock.sendall(buffer)
        self._msg_id += 1

    def read(self, stream: int) -> None:
        """Take what one socket has. Raises EndedError at its end."""
        reader = self.readers[stream]
        try:
            count = self.sockets[stream].recv_into(reader.get_buffer())
        except ConnectionError:
            count = 0
        if count == 0:
            self.ended = True
            raise EndedError(f"stream {stream} of {self.link}")
        for message in reader.buffer_updated(count):
            self.seen.append((stream, message))
            self.inbox.append(message)

    def receive(self, kind: type[M], timeout: float = TIMEOUT_S) -> M:
        """The next message of this kind; others stay in `seen` only. An ERROR frame fails the test, unless
        it is what was asked for."""
        found: list[M] = []

        def look() -> bool:
            while self.inbox:
                message = self.inbox.popleft()
                if isinstance(message, kind):
                    found.append(message)
                    return True
                assert not isinstance(message, Error), message.text
            return False

        drive([self], look, f"{kind.__name__} for {self.link}", timeout)
        return found[0]

    def until_ended(self, timeout: float = TIMEOUT_S) -> list[Message]:
        """Read until the syncer closes; returns what came before that."""
        drive([self], lambda: self.ended, f"end of {self.link}", timeout)
        return list(self.inbox)

    def close(self) -> None:
        """Close all sockets."""
        for sock in self.sockets.values():
            sock.close()
        self.ended = True

    def react(self) -> None:
        """What `drive` calls after new messages; a plain group does nothing by itself."""


class Trainer(Raw):
    """A learner whose local training moves every value of a fragment by `rate * (target - value)`."""

    def __init__(
        self, port: int, greeting: Hello, target: float, rate: float = 0.5, *, early: Sequence[int] = ()
    ) -> None:
        super().__init__(port, greeting, early=early)
        self.target = np.float32(target)
        self.rate = np.float32(rate)
        self.anchors: dict[int, tuple[int, F32]] = {}
        self.pending: dict[int, PullReq] = {}
        self.final: dict[int, tuple[int, F32]] = {}
        self.manifest: FinalManifest | None = None
        self.answered: list[PullReq] = []
        self.local_step = 0
        self.tokens = 10  # what each push claims
        self.shut_down = False

    def initialize(self, values: Sequence[F32], *, chunked: bool = True) -> None:
        """Send INIT_PARAMS for every fragment."""
        for fragment, array in enumerate(values):
            message = InitParams(fragment, dtypes.encode(self.bulk, array))
            (self.send_bulk if chunked else self.send)(message)

    @property
    def bulk(self) -> Dtype:
        return Dtype.BF16 if self.session.dtype == Dtype.Q4 else self.session.dtype

    def react(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, BcastFragment):
                self.take(message)
            elif isinstance(message, PullReq):
                self.pending[message.fragment_id] = message
            elif isinstance(message, FinalFragment):
                values = dtypes.decode(Dtype.F32, message.tensor, self.session.numel(message.fragment_id))
                self.final[message.fragment_id] = (message.version, values)
            elif isinstance(message, FinalManifest):
                self.manifest = message
            elif isinstance(message, Shutdown):
                self.shut_down = True
            elif isinstance(message, Error):
                raise AssertionError(f"ERROR to {self.link}: {message.text}")
        # A syncer that ends may be gone before its end is read; `drive` then finds out.
        with suppress(ConnectionError):
            for fragment in [fragment for fragment in self.pending if fragment in self.anchors]:
                self.answer(self.pending.pop(fragment))
            self.finish()

    def take(self, message: BcastFragment) -> None:
        """Accept a broadcast unless it is older than what is held."""
        held = self.anchors.get(message.fragment_id)
        if held is None or message.version >= held[0]:
            values = dtypes.decode(self.bulk, message.tensor, self.session.numel(message.fragment_id))
            self.anchors[message.fragment_id] = (message.version, np.array(values))

    def delta(self, anchor: F32) -> F32:
        """What local training does to a fragment."""
        return self.rate * (self.target - anchor)

    def answer(self, pull: PullReq) -> None:
        """Push this fragment's delta."""
        version, anchor = self.anchors[pull.fragment_id]
        self.local_step += 1
        push = PushFragment(
            learner_id=self.link[0],
            fragment_id=pull.fragment_id,
            global_step=pull.global_step,
            round_attempt=pull.round_attempt,
            base_version=version,
            local_step=self.local_step,
            c_steps=1,
            c_tokens=self.tokens,
            delta=dtypes.encode(self.session.dtype, self.delta(anchor)),
        )
        self.answered.append(pull)
        self.send_bulk(push)

    def finish(self) -> None:
        """Acknowledge the final cut once all of it is here."""
        manifest = self.manifest
        if manifest is None or len(self.final) < self.session.num_fragments:
            return
        versions = tuple(self.final[fragment][0] for fragment in range(self.session.num_fragments))
        assert versions == manifest.expected_versions
        self.send(FinalAck(final_global_step=manifest.final_global_step))
        self.manifest = None


def drive(groups: Sequence[Raw], until: Callable[[], bool], what: str, timeout: float = TIMEOUT_S) -> None:
    """Serve the groups until a condition holds, which may also be about something else than their sockets. A
    group that ends is left alone from then on."""
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for group in groups:
            group.react()
            for stream, sock in group.sockets.items():
                if not group.ended and sock.fileno() >= 0:
                    selector.register(sock, selectors.EVENT_READ, (group, stream))
        while not until():
            connected = bool(selector.get_map())
            left = deadline - time.monotonic()
            ready = selector.select(max(0.0, min(LOOK_S, left))) if connected else []
            if not ready and connected and left > 0:
                continue
            if not ready:
                why = f"not within {timeout} s" if connected else "every socket was closed"
                seen = {group.link: [type(m).__name__ for _, m in group.seen[-5:]] for group in groups}
                raise AssertionError(f"{why}: {what}; last seen: {seen}")
            for key, _ in ready:
                group, stream = key.data
                try:
                    group.read(stream)
                except EndedError:
                    selector.unregister(key.fileobj)
                    continue
                group.react()


def train(groups: Sequence[Trainer], timeout: float = TIMEOUT_S) -> None:
    """Let the learners train until all of them were shut down."""
    drive(groups, lambda: all(group.shut_down for group in groups), "SHUTDOWN for everybody", timeout)
