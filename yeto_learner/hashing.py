"""Block digests of received tensors: large chunked ones are hashed by a pool while their chunks arrive."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from typing import Final

from yeto_proto._generated.messages import BcastFragment, FinalFragment, Message
from yeto_proto._generated.types import Role
from yeto_proto.blocks import BlockHook, block_digest, combine
from yeto_proto.chunks import Reassembler
from yeto_proto.memory import Allocate, fresh
from yeto_proto.session import Session

__all__ = ["BlockHasher", "SharedReassembler"]

HASH_THREADS: Final = 4


class BlockHasher:
    """A `BlockHook` that hashes on a pool of threads, and answers with the digest of a complete message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="yeto-hash")
        self._blocks: dict[int, dict[int, Future[bytes]]] = {}  # by the key of the message
        self._complete: dict[int, list[Future[bytes]]] = {}  # by id() of a message that its receiver holds

    def block(self, key: int, index: int, data: memoryview) -> None:
        future = self._pool.submit(_hash, data)
        with self._lock:
            self._blocks.setdefault(key, {})[index] = future

    def message(self, key: int, message: Message, blocks: int) -> None:
        with self._lock:
            futures = self._blocks.pop(key)
            self._complete[id(message)] = [futures[index] for index in range(blocks)]

    def dropped(self, key: int) -> None:
        with self._lock:
            self._blocks.pop(key, None)

    def digest(self, message: BcastFragment | FinalFragment) -> bytes:
        """The block digest of the message's tensor; waits for the pool, or hashes here what the pool never
        saw.
        """
        with self._lock:
            futures = self._complete.pop(id(message), None)
        if futures is None:
            return block_digest(message.tensor)
        return combine(future.result() for future in futures)

    def close(self) -> None:
        """End the pool's threads.  To be called when nothing is received any more."""
        self._pool.shutdown()


class SharedReassembler(Reassembler):
    """A `Reassembler` for the readers of several threads.

    The lock is held while a chunk is announced and while it is committed, never while its bytes are received.
    """

    def __init__(self, session: Session, hook: BlockHook, allocate: Allocate = fresh) -> None:
        super().__init__(Role.LEARNER, session, hook=hook, allocate=allocate)
        self._lock = threading.Lock()

    def begin(self, msg_id: int, total: int, offset: int, length: int) -> memoryview:
        with self._lock:
            return super().begin(msg_id, total, offset, length)

    def commit(self, msg_id: int, offset: int, length: int) -> Message | None:
        with self._lock:
            return super().commit(msg_id, offset, length)

    def clear(self) -> None:
        with self._lock:
            super().clear()


def _hash(data: memoryview) -> bytes:
    return sha256(data).digest()
