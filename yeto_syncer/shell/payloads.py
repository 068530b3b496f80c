"""Fragment versions as the wire carries them: encoded once, shared by every group that sends them.

An f32 payload is a view of the coordinator's own read-only array. Others are encoded when the first group is
about to send them, and freed when the last group that has them in line has sent them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from yeto_proto._generated.messages import BcastFragment, Buffer, FinalFragment
from yeto_proto._generated.types import Dtype
from yeto_proto.memory import Allocate, fresh
from yeto_syncer.core.effects import Versioned
from yeto_syncer.core.jobs import F32
from yeto_syncer.core.merge import Map
from yeto_syncer.shell.checks import encode
from yeto_syncer.shell.workers import Workers

INLINE_VALUES = 65536
"""Fragments up to this many values are encoded on the event loop: that takes less time than changing
threads."""


class SharedPayload:
    """One version of one fragment in the dtype of the session, or in f32 for the final cut."""

    def __init__(self, owner: Payloads, fragment: Versioned, dtype: Dtype, final: bool) -> None:
        self.fragment_id = fragment.fragment_id
        self.version = fragment.version
        self.final = final
        self.users = 0
        self._owner = owner
        self._dtype = dtype
        self._params: F32 | None = fragment.params
        self._body: Buffer | None = encode(dtype, fragment.params) if dtype is Dtype.F32 else None
        self._encoding = False
        self._waiters: set[Callable[[], None]] = set()

    @property
    def key(self) -> tuple[int, int, bool]:
        """What makes it the same payload for every group."""
        return (self.fragment_id, self.version, self.final)

    @property
    def ready(self) -> bool:
        """Whether `message` may be called."""
        return self._body is not None

    def want(self, wake: Callable[[], None]) -> None:
        """Encode it unless that is done or under way; `wake` is called when it becomes ready later."""
        params = self._params
        if self._body is not None or params is None:
            return
        if params.size <= INLINE_VALUES:
            self._body = encode(self._dtype, params)
            return
        self._waiters.add(wake)
        if not self._encoding:
            self._encoding = True
            self._owner.encode(self._dtype, params, self._encoded)

    def _encoded(self, future: Future[Buffer]) -> None:
        self._encoding = False
        if self.users:
            self._body = future.result()
            self._params = None  # the next commit may use its memory again while this version is being sent
        waiters, self._waiters = self._waiters, set()
        for wake in waiters:
            wake()

    def message(self) -> BcastFragment | FinalFragment:
        """The message to cut into chunks; its bulk is a view, shared by all callers."""
        assert self._body is not None
        kind = FinalFragment if self.final else BcastFragment
        return kind(fragment_id=self.fragment_id, version=self.version, tensor=self._body)

    def retain(self) -> None:
        """One more group has it in line."""
        self.users += 1
        self._owner.remember(self)

    def release(self) -> None:
        """One group has sent it, or will not."""
        self.users -= 1
        if not self.users:
            self._body = None
            self._params = None
            self._owner.forget(self)


class Payloads:
    """The payloads that some group still has to send."""

    def __init__(self, workers: Workers, spread: Map = map, allocate: Allocate = fresh) -> None:
        self._workers = workers
        self._spread = spread
        self._allocate = allocate
        self._known: dict[tuple[int, int, bool], SharedPayload] = {}

    def get(self, fragment: Versioned, dtype: Dtype, final: bool) -> SharedPayload:
        """The shared payload of this fragment version; `dtype` is that of the bulk, and f32 if `final`."""
        payload = SharedPayload(self, fragment, dtype, final)
        return self._known.get(payload.key, payload)

    def encode(self, dtype: Dtype, params: F32, done: Callable[[Future[Buffer]], None]) -> None:
        """Encode off the event loop, in parts side by side."""
        self._workers.submit(lambda: encode(dtype, params, self._spread, self._allocate), done)

    def remember(self, payload: SharedPayload) -> None:
        """It has a user."""
        self._known[payload.key] = payload

    def forget(self, payload: SharedPayload) -> None:
        """The last user has gone."""
        if self._known.get(payload.key) is payload:
            del self._known[payload.key]

    def __len__(self) -> int:
        return len(self._known)
