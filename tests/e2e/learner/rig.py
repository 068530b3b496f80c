"""What the tests of the learner against a scripted syncer share."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.e2e.scripted_syncer import WAIT, Peer, ScriptedSyncer
from yeto_learner import Learner, SyncerClient
from yeto_proto import dtypes
from yeto_proto._generated import messages as wire
from yeto_proto._generated.messages import Message
from yeto_proto._generated.types import Dtype
from yeto_proto.layout import Layout, build_layout

SMALL = build_layout({"a": (2, 3), "b": 5}, 2)
F32 = npt.NDArray[np.float32]


def values(numel: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).normal(size=numel).astype("<f4").tobytes()


def until(client: SyncerClient, ready: Callable[[], bool]) -> None:
    assert client.wait_for(ready, WAIT), "what must happen did not happen"


def failure(client: SyncerClient) -> BaseException:
    """What ended the client, once it did."""
    with pytest.raises(RuntimeError) as caught:
        client.wait_for(lambda: False, WAIT)
    return caught.value


def wait_until(ready: Callable[[], bool]) -> None:
    """For states that have no event of their own."""
    deadline = time.monotonic() + WAIT
    ticker = threading.Event()
    while not ready():
        assert time.monotonic() < deadline, "what must happen did not happen"
        ticker.wait(0.005)


def client_descriptors(port: int) -> int:
    """This process's connected sockets to the port."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            descriptor = int(entry.name)
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                count += sock.getpeername()[1] == port
        except OSError:
            continue
    return count


def final_cut(peer: Peer, layout: Layout, step: int) -> list[bytes]:
    tensors = [values(fragment.numel, number) for number, fragment in enumerate(layout.fragments)]
    for number, tensor in enumerate(tensors):
        peer.send_chunked(wire.FinalFragment(number, step - number, tensor))
    peer.send(wire.FinalManifest(step, tuple(step - number for number in range(len(tensors)))))
    return tensors


def parameters(seed: int = 1) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return {
        "embed": random.normal(size=(5, 3)).astype(np.float32),
        "layers.0.mlp": random.normal(size=(4, 4)).astype(np.float32),
        "layers.1.mlp": random.normal(size=(4, 2)).astype(np.float32),
    }


class Initializer:
    """Takes INIT of every fragment and answers with the broadcast of version 0, as a fresh syncer does."""

    def __init__(self) -> None:
        self.tensors: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def __call__(self, peer: Peer, message: Message) -> bool:
        if not isinstance(message, wire.InitParams):
            return False
        with self._lock:
            self.tensors[message.fragment_id] = bytes(message.tensor)
            complete = len(self.tensors) == peer.session.num_fragments
        if complete:
            for number in sorted(self.tensors):
                peer.broadcast(number, 0, self.tensors[number])
        return True


class OnlyFirst(Initializer):
    """A syncer whose next process has no parameters: INIT of later connections is left to the test."""

    def __init__(self) -> None:
        super().__init__()
        self._first: Peer | None = None

    def __call__(self, peer: Peer, message: Message) -> bool:
        if self._first is None:
            self._first = peer
        return peer is self._first and super().__call__(peer, message)


@contextmanager
def running(
    arrays: dict[str, npt.NDArray[np.float32]] | None = None,
    on_message: Callable[[Peer, Message], bool] | None = None,
    **options: object,
) -> Iterator[tuple[Learner, Peer, ScriptedSyncer]]:
    """A learner that went through its initial cut, with its peer."""
    arguments: dict[str, object] = {
        "num_fragments": 2,
        "dtype": "f32",
        "num_streams": 2,
        "session_contract": "test",
        "connect_timeout_s": WAIT,
        "initial_cut_timeout_s": WAIT,
        **options,
    }
    with ScriptedSyncer(on_message or Initializer()) as syncer:
        made = Learner(parameters() if arrays is None else arrays, syncer.address, **arguments)  # type: ignore[arg-type]
        with made:
            yield made, syncer.next_peer(), syncer


def flat(learner: Learner, arrays: dict[str, npt.NDArray[np.float32]], fragment: int) -> F32:
    names = [tensor.name for tensor in learner.layout.fragments[fragment].tensors]
    return np.concatenate([arrays[name].reshape(-1) for name in names]).astype(np.float32)


def arrived(learner: Learner, *, updates: int = 0, pulls: int = 0) -> None:
    """Wait until so many broadcasts and pulls lie in the client."""
    link = learner.client._link
    assert learner.client.wait_for(
        lambda: len(link._updates) >= updates and len(link._pulls) >= pulls, WAIT
    ), "what was sent did not arrive"


def caught_up(learner: Learner, *, pulls: int = 0) -> None:
    """Wait until the whole catch-up of a new link is there: a pull of it may be there before."""
    assert learner.client.wait_for(
        lambda: learner.client.connected and not learner.client.catching_up, WAIT
    ), "the catch-up did not end"
    arrived(learner, pulls=pulls)


def settle(learner: Learner) -> None:
    """Wait until the sender knows what became of a push; it may learn that after the push arrived."""
    deadline = time.monotonic() + WAIT
    ticker = threading.Event()
    while not learner._exporter._settled:
        assert time.monotonic() < deadline, "the push was never settled"
        ticker.wait(0.002)


def wire_values(learner: Learner, fragment: int, seed: int) -> tuple[F32, bytes]:
    """Values for a broadcast, as they are after the session's bulk encoding, and their bytes."""
    numel = learner.layout.fragments[fragment].numel
    dtype = Dtype.F32 if learner.client.dtype is Dtype.F32 else Dtype.BF16
    data = bytes(dtypes.encode(dtype, np.random.default_rng(seed).normal(size=numel).astype(np.float32)))
    return dtypes.decode(dtype, data, numel).copy(), data


def train(arrays: dict[str, npt.NDArray[np.float32]], amount: float = 0.25) -> None:
    for array in arrays.values():
        array += np.float32(amount)


def send_cut(made: Learner, peer: Peer, step: int) -> list[F32]:
    cut = []
    for fragment, parts in enumerate(made.layout.fragments):
        values = np.random.default_rng(50 + fragment).normal(size=parts.numel).astype(np.float32)
        peer.send_chunked(wire.FinalFragment(fragment, step - fragment, values.tobytes()))
        cut.append(values)
    peer.send(wire.FinalManifest(step, tuple(step - number for number in range(len(cut)))))
    return cut


def quiet(peer: Peer) -> bool:
    try:
        peer.expect(wire.Heartbeat, timeout=0.3)
    except AssertionError:
        return True
    return False


def catch_up(
    initial: dict[int, tuple[int, bytes]],
) -> Callable[[Peer], None]:
    def admit(peer: Peer) -> None:
        for fragment, (version, data) in initial.items():
            peer.broadcast(fragment, version, data)

    return admit


@contextmanager
def root_handlers(*handlers: logging.Handler) -> Iterator[None]:
    root = logging.getLogger()
    kept, root.handlers = root.handlers[:], list(handlers)
    try:
        yield
    finally:
        root.handlers = kept


def flat_initial(made: Learner, fragment: int) -> bytes:
    return flat(made, parameters(), fragment).tobytes()
