"""What a round costs when the model weighs nothing, and 256 learners at once.

The learners here are bare sockets driven by one process, which has as much to do as the syncer has: the
rate is that of both. Beside it stands how often that process could exchange as many bytes with an echo.
"""

from __future__ import annotations

import selectors
import socket
import time
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

from tests.bench.bench_link import layout
from tests.bench.common import Row, Syncer, children, row
from yeto_proto._generated.messages import (
    BcastFragment,
    DataHello,
    Hello,
    InitParams,
    PullReq,
    PushFragment,
)
from yeto_proto._generated.types import Dtype, Role
from yeto_proto.chunks import Reassembler, slices
from yeto_proto.codec import encode
from yeto_proto.layout import Layout
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session

TINY = 256  # values of one fragment: 1 KiB
ROUNDS = 3000
MANY = 256
MANY_VALUES = 65_536  # of one fragment; four of them make 1 MiB
MANY_ROUNDS = 40
REPEATS = 3


class Peer:
    """One learner that answers every pull at once with the same delta."""

    def __init__(
        self, port: int, learner_id: int, shape: Layout, streams: int, chosen: selectors.BaseSelector
    ) -> None:
        self.link = (learner_id, 1)
        greeting = Hello(
            learner_id=learner_id,
            connection_generation=1,
            dtype=Dtype.F32,
            layout=shape.wire(),
            layout_fingerprint=shape.fingerprint(),
            session_contract_hash=bytes(32),
            syncer_profile_hash=None,
            num_streams=streams,
        )
        self.session = Session.from_hello(greeting)
        self.versions: dict[int, int] = {}
        self.waiting: dict[int, PullReq] = {}
        self.ids = 0
        assembler = Reassembler(Role.LEARNER, self.session)
        self.sockets: list[socket.socket] = []
        for index in range(-1, streams):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = greeting if index < 0 else DataHello(learner_id, 1, index)
            sock.sendall(b"".join(encode(first)))
            reader = FrameReader(Role.LEARNER, self.session, reassembler=assembler)
            chosen.register(sock, selectors.EVENT_READ, (self, sock, reader))
            self.sockets.append(sock)
        self.delta = np.full(self.session.max_numel, 1e-6, np.float32).data.cast("B")

    def send(self, message: InitParams | PushFragment) -> None:
        """In chunks, over the last socket."""
        for buffers in slices(message, self.ids):
            self.sockets[-1].sendall(b"".join(buffers))
        self.ids += 1

    def take(self, message: Any) -> int:
        """Handle one message; the version of a broadcast, else 0."""
        newest = 0
        if isinstance(message, PullReq):
            self.waiting[message.fragment_id] = message
        elif isinstance(message, BcastFragment):
            newest = self.versions[message.fragment_id] = message.version
        for fragment in [fragment for fragment in self.waiting if fragment in self.versions]:
            pull = self.waiting.pop(fragment)
            base = self.versions[fragment]
            step = pull.global_step
            self.send(
                PushFragment(self.link[0], fragment, step, pull.round_attempt, base, step, 1, 1, self.delta)
            )
        return newest


def crowd(pipe: Connection, port: int, learners: int, streams: int, values: int, last: int) -> None:
    """Learners until version `last`: says when the first round was over, and when the last one was."""
    shape = layout(values)
    with selectors.DefaultSelector() as chosen:
        peers = [Peer(port, number, shape, streams, chosen) for number in range(learners)]
        for fragment in range(shape.num_fragments):
            peers[0].send(InitParams(fragment, peers[0].delta))
        begun = 0.0
        newest = 0
        versions: set[int] = set()
        while newest < last:
            for key, _ in chosen.select():
                peer, sock, reader = key.data
                messages = reader.buffer_updated(sock.recv_into(reader.get_buffer()))
                for message in messages:
                    newest = max(newest, peer.take(message))
                    if newest:
                        begun = begun or time.monotonic()
                        versions.add(newest)
        pipe.send((begun, time.monotonic(), len(versions)))
        pipe.recv()


def rounds(learners: int, streams: int, values: int, count: int) -> dict[str, float]:
    """Rounds a second, processor time of the syncer per round, its threads and its peak memory."""
    flags = (
        *("--learners", str(learners), "--total-steps", str(count + 10), "--quorum", str(learners)),
        *("--grace-ms", "0", "--sync-interval-steps", "0", "--delta-correction", "none"),
        *("--log-level", "warning", "--outer-lr", "0.001", "--max-pending-connections", "1024"),
    )
    with Syncer(*flags) as syncer:
        before = syncer.cpu_s()
        with children((crowd, syncer.port, learners, streams, values, count)) as [child]:
            begun, ended, seen = child.hear()
            return {
                "rate": (count - 1) / (ended - begun),
                "cpu_ms": (syncer.cpu_s() - before) / count * 1e3,
                "threads": syncer.threads(),
                "peak": syncer.peak_mib(),
                "closed": seen,
            }


def echo(pipe: Connection, port: int, sockets: int, exchanges: int) -> None:
    """The other side of `bare`."""
    connected = [socket.create_connection(("127.0.0.1", port)) for _ in range(sockets)]
    pipe.send(None)
    for _ in range(exchanges):
        for sock in connected:
            sock.recv(4096)
            sock.sendall(bytes(1100))


def bare(sockets: int = 2, exchanges: int = 5000) -> float:
    """Exchanges a second: a few bytes to every socket, and 1.1 kB back from every socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with children((echo, server.getsockname()[1], sockets, exchanges)) as [child]:
            connected = [server.accept()[0] for _ in range(sockets)]
            child.hear()
            started = time.perf_counter()
            for _ in range(exchanges):
                for sock in connected:
                    sock.sendall(bytes(1100))
                for sock in connected:
                    left = 1100
                    while left:
                        left -= len(sock.recv(left))
            taken = time.perf_counter() - started
        for sock in connected:
            sock.close()
    return exchanges / taken


def rows() -> list[Row]:
    """All rows of this file."""
    raw, tiny = [], []
    for _ in range(REPEATS):
        raw.append(bare())
        tiny.append(rounds(2, 1, TINY, ROUNDS))
    many = [rounds(MANY, 1, MANY_VALUES, MANY_ROUNDS) for _ in range(REPEATS)]
    rate = median(each["rate"] for each in tiny)
    closed = min(each["closed"] for each in many) == MANY_ROUNDS
    return [
        row("tiny rounds, 2 learners", rate, "1/s", None, 500.0, exchanges=median(raw)),
        row("bare exchanges of as many bytes", median(raw), "1/s", None, None),
        row(
            "processor time of the syncer per tiny round", median(e["cpu_ms"] for e in tiny), "ms", None, None
        ),
        row(
            f"{MANY} learners, 1 MiB, 1 stream: rounds",
            median(each["rate"] for each in many),
            "1/s",
            None,
            None,
            every_round_closed=closed,
        ),
        row(f"{MANY} learners: threads of the syncer", many[0]["threads"], "", None, None),
        row(f"{MANY} learners: rounds closed", min(e["closed"] for e in many), "", MANY_ROUNDS, 1.0),
        row(f"{MANY} learners: peak memory", median(each["peak"] for each in many), "MiB", None, None),
    ]


if __name__ == "__main__":
    for entry in rows():
        print(entry)
