"""What strangers and broken peers do to a port, over and over, each kind in a thread of its own."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.e2e.raw import Raw, hello
from yeto_proto._generated.constants import MAGIC
from yeto_proto._generated.messages import PushFragment
from yeto_proto._generated.types import FrameType
from yeto_proto.codec import encode
from yeto_proto.errors_base import YetoError
from yeto_proto.layout import Layout

PATIENCE_S = 120.0
BOMB = 2**63


def header(kind: int, length: int) -> bytes:
    """The 13 bytes before a payload, with whatever type and length."""
    return MAGIC.to_bytes(4, "little") + bytes([kind]) + struct.pack("<Q", length)


class Hostile:
    """A context manager: all kinds at once until it ends. `done` counts what each kind has done."""

    def __init__(self, port: int, layout: Layout, learner_id: int, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._port = port
        self._layout = layout
        self._learner_id = learner_id
        self._seed = seed
        self._leave = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Hostile:
        kinds: tuple[Callable[[random.Random], None], ...] = (
            self._garbage,
            self._bombs,
            self._slowloris,
            self._half_hello,
            self._tiny_chunks,
        )
        for number, kind in enumerate(kinds):
            chance = random.Random(self._seed + number)
            self._threads.append(threading.Thread(target=self._repeat, args=(kind, chance)))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive(), "a hostile thread hangs"

    def _repeat(self, kind: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            while not self._leave.is_set():
                kind(chance)
                self._leave.wait(0.01)
        except (AssertionError, OSError, YetoError) as error:
            self.errors.append(error)

    @contextlib.contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)
        with sock, contextlib.suppress(ConnectionError):  # being cut off is what it has earned
            yield sock

    def _garbage(self, chance: random.Random) -> None:
        with self._socket() as sock:
            sock.sendall(chance.randbytes(chance.randrange(1, 5000)))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
        self.done["garbage"] += 1

    def _bombs(self, chance: random.Random) -> None:
        with self._socket() as sock:
            kind = chance.choice([FrameType.HELLO, FrameType.PUSH_FRAGMENT, FrameType.CHUNK, 255])
            sock.sendall(header(kind, chance.choice([BOMB, 2**64 - 1, 2**40, 2**31])))
            while sock.recv(4096):
                pass
        self.done["header bombs"] += 1

    def _slowloris(self, chance: random.Random) -> None:
        greeting = b"".join(bytes(part) for part in encode(hello(self._layout, 0, generation=2**62)))
        with self._socket() as sock:
            for byte in greeting[: chance.randrange(1, 40)]:
                sock.sendall(bytes([byte]))
                if self._leave.wait(0.05):
                    return
            while not self._leave.is_set() and sock.recv(4096):
                pass
        self.done["slowloris"] += 1

    def _half_hello(self, chance: random.Random) -> None:
        greeting = b"".join(bytes(part) for part in encode(hello(self._layout, 0, generation=2**62)))
        with self._socket() as sock:
            sock.sendall(greeting[: chance.randrange(1, len(greeting))])
        self.done["half a HELLO"] += 1

    def _tiny_chunks(self, chance: random.Random) -> None:
        # An admitted learner that answers what nobody asked, in chunks of one byte in random order.
        generation = int.from_bytes(os.urandom(7), "little") | 1
        peer = Raw(self._port, hello(self._layout, self._learner_id, generation=generation))
        with contextlib.suppress(ConnectionError):
            # A push in the form in which a chunk carries it: one whole frame.
            push = PushFragment(
                learner_id=self._learner_id,
                fragment_id=0,
                global_step=2**40,
                round_attempt=1,
                base_version=0,
                local_step=1,
                c_steps=1,
                c_tokens=1,
                delta=bytes(4 * self._layout.fragments[0].numel),
            )
            inner = b"".join(bytes(part) for part in encode(push))
            places = list(range(len(inner)))
            chance.shuffle(places)
            frames = b"".join(
                header(FrameType.CHUNK, 25)
                + struct.pack("<QQQ", 7, len(inner), place)
                + inner[place : place + 1]
                for place in places
            )
            peer.sockets[-1].sendall(frames)
            until = time.monotonic() + 0.5
            peer.sockets[-1].settimeout(0.1)
            while time.monotonic() < until and not self._leave.is_set():
                with contextlib.suppress(TimeoutError):
                    if not peer.sockets[-1].recv(1 << 16):
                        break
        peer.close()
        self.done["tiny chunks"] += 1
