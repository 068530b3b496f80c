"""What a learner holds of the syncer's messages, over all its connection generations; no socket, no clock.

The link rules of the protocol are judged here: broadcasts are taken in ascending version, the final cut has a
memory of its own, and SHUTDOWN counts only after the acknowledgement was started.  Every call carries the
epoch of the connection that a message came on; what belongs to an older epoch is ignored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from yeto_proto._generated import messages as wire
from yeto_proto._generated.errors import SessionRejected, UnexpectedType, WrongState
from yeto_proto._generated.messages import Buffer, Message
from yeto_proto._generated.rules import first_broken
from yeto_proto.session import Session

from .records import BcastFragment, FinalFragment, FinalManifest, PullRequest

__all__ = ["Held", "Link"]


@dataclass(frozen=True, slots=True)
class Held:
    """What the link rules of the spec may ask about what is held already (context `held`)."""

    version: int | None = None
    same_bytes: bool = False
    manifest: bool = False
    same_manifest: bool = False
    ack_sent: bool = False


class Seen(NamedTuple):
    """The newest accepted broadcast of a fragment: its version and the digest of its bytes."""

    version: int
    digest: bytes


class Link:
    """The receiving state of one learner.

    With `accept_rewound_catch_up` the first broadcast of a fragment after a redial is taken even if its
    version went back, or kept its number with other bytes: a syncer that restarted from an older checkpoint
    serves that.
    """

    def __init__(self, session: Session, *, accept_rewound_catch_up: bool = False) -> None:
        self.session = session
        self.accept_rewound_catch_up = accept_rewound_catch_up
        self.epoch = 0  # one more at every connect and at every disconnect
        self.generation = 0
        self.connected = False
        self.shutdown = False
        self.manifest: FinalManifest | None = None
        self.manifest_epoch: int | None = None  # the epoch that the manifest last came on
        self.finals: dict[int, FinalFragment] = {}
        self.update_bytes = 0  # tensor bytes of broadcasts that were not taken yet, and of the one in hand
        self.discard_updates = False  # once the final cut is waited for, broadcasts are only checked
        self._seen: dict[int, Seen] = {}
        self._pulls: deque[PullRequest] = deque()
        self._updates: deque[BcastFragment] = deque()
        self._in_hand = 0  # tensor bytes of what `take_update` returned last
        self._catching_up: set[int] = set()
        self._ack_step: int | None = None  # the step whose FINAL_ACK was started
        self._sequence = 0
        self._forget_at_disconnect = False
        self._let_go = False  # a new broadcast was not kept

    # -- connection

    def connect(self, generation: int) -> int:
        """A new connection group with this generation begins; its epoch."""
        if self.connected:
            raise WrongState(detail="the link is connected already")
        redial = self.generation != 0
        self.epoch += 1
        self.generation = generation
        self.connected = True
        if redial:
            self._catching_up = set(range(self.session.num_fragments))
        return self.epoch

    def disconnect(self, epoch: int) -> None:
        """The connection of that epoch is gone: its pulls are dropped, broadcasts and the final cut stay."""
        if epoch != self.epoch or not self.connected:
            return
        self.epoch += 1
        self.connected = False
        self._pulls.clear()
        if self._forget_at_disconnect:
            self._forget_at_disconnect = False
            self._seen.clear()
            self._clear_updates()

    def forget_at_disconnect(self) -> None:
        """Budget mode: at the next disconnect drop broadcasts and versions, so that a rewound restart is
        taken.
        """
        self._forget_at_disconnect = True

    # -- receiving

    def receive(self, epoch: int, message: Message, digest: bytes, now: float) -> None:
        """Judge and keep one message; `digest` is the block digest of a tensor, empty for other messages.

        Raises SessionRejected for an ERROR frame, ConflictingBroadcast, ConflictingManifest, EarlyShutdown,
        and UnexpectedType for what a syncer never sends; all of them end the client.
        """
        if epoch != self.epoch or not self.connected:
            return
        if isinstance(message, wire.PullReq):
            self._pulls.append(
                PullRequest(
                    message.fragment_id,
                    message.global_step,
                    message.round_attempt,
                    now,
                    self._number(),
                    self.generation,
                )
            )
        elif isinstance(message, wire.BcastFragment):
            self._broadcast(message, digest, now)
        elif isinstance(message, wire.FinalFragment):
            self._final_fragment(message, digest, now)
        elif isinstance(message, wire.FinalManifest):
            self._final_manifest(message)
        elif isinstance(message, wire.Shutdown):
            self._judge(message, Held(ack_sent=self.manifest is not None and self.ack_started))
            self.shutdown = True
        elif isinstance(message, wire.Error):
            raise SessionRejected(frame="ERROR", detail=message.text)
        else:
            raise UnexpectedType(frame=message.frame_type.name, seen=int(message.frame_type))

    def _number(self) -> int:
        self._sequence += 1
        return self._sequence

    @staticmethod
    def _judge(message: Message, held: Held) -> None:
        broken = first_broken(message.frame_type, "link", message, held=held)
        if broken is not None:
            raise broken

    def _broadcast(self, message: wire.BcastFragment, digest: bytes, now: float) -> None:
        number, version = message.fragment_id, message.version
        catch_up = number in self._catching_up
        self._catching_up.discard(number)
        seen = self._seen.get(number)
        if seen is not None:
            same_bytes = seen.digest == digest
            if version == seen.version and same_bytes:
                return
            if not (catch_up and self.accept_rewound_catch_up):
                if version < seen.version:
                    return
                self._judge(message, Held(version=seen.version, same_bytes=same_bytes))
        self._seen[number] = Seen(version, digest)
        if self.discard_updates:
            self._let_go = True
            return
        self.update_bytes += _length(message.tensor)
        self._updates.append(
            BcastFragment(
                number, version, message.tensor, now, digest, catch_up, self._number(), self.generation
            )
        )

    def _final_fragment(self, message: wire.FinalFragment, digest: bytes, now: float) -> None:
        held = self.finals.get(message.fragment_id)
        if held is not None:
            if message.version < held.version:
                return
            same_bytes = held.payload_hash == digest
            self._judge(message, Held(version=held.version, same_bytes=same_bytes))
            if message.version == held.version:
                return
        self.finals[message.fragment_id] = FinalFragment(
            message.fragment_id, message.version, message.tensor, now, digest
        )

    def _final_manifest(self, message: wire.FinalManifest) -> None:
        manifest = FinalManifest(message.final_global_step, tuple(message.expected_versions))
        held = self.manifest
        self._judge(message, Held(manifest=held is not None, same_manifest=held == manifest))
        self.manifest = manifest
        self.manifest_epoch = self.epoch

    # -- taking

    def take_pulls(self) -> list[PullRequest]:
        """The pulls that arrived since the last call, in order."""
        pulls = list(self._pulls)
        self._pulls.clear()
        return pulls

    def take_updates(self) -> list[BcastFragment]:
        """Every broadcast that was accepted since the last call, in order."""
        updates = list(self._updates)
        self._clear_updates()
        return updates

    def take_update(self) -> BcastFragment | None:
        """The oldest broadcast that was not taken yet; its bytes count as waiting until the next call."""
        self.update_bytes -= self._in_hand
        self._in_hand = 0
        if not self._updates:
            return None
        update = self._updates.popleft()
        self._in_hand = _length(update.data)
        return update

    def drop_updates(self) -> None:
        """From now on broadcasts are judged but no longer kept: only the final cut counts."""
        self.discard_updates = True
        self._let_go = self._let_go or bool(self._updates)
        self._clear_updates()

    def keep_updates(self) -> bool:
        """Broadcasts count again, because the wait for the final cut was given up before a manifest came.

        True when some were let go meanwhile: the caller has to end this connection, and the catch-up of the
        next one brings what is missing.
        """
        if self.manifest is not None or not self.discard_updates:
            return False
        self.discard_updates = False
        lost, self._let_go = self._let_go, False
        if lost and self.connected:
            self._forget_at_disconnect = True
        elif lost:
            self._seen.clear()
        return lost

    def _clear_updates(self) -> None:
        self._updates.clear()
        self.update_bytes = self._in_hand = 0

    @property
    def catching_up(self) -> frozenset[int]:
        """The fragments that the present connection, a redialled one, has not broadcast yet."""
        return frozenset(self._catching_up)

    @property
    def has_updates(self) -> bool:
        return bool(self._updates)

    @property
    def has_pulls(self) -> bool:
        return bool(self._pulls)

    # -- the final cut

    def missing_finals(self) -> list[tuple[int, int, int | None]]:
        """(fragment, wanted version, held version or None) of what the manifest asks for and is not held."""
        if self.manifest is None:
            raise WrongState(detail="no FINAL_MANIFEST is held")
        missing = []
        for number, wanted in enumerate(self.manifest.versions):
            held = self.finals.get(number)
            if held is None or held.version != wanted:
                missing.append((number, wanted, None if held is None else held.version))
        return missing

    def start_ack(self, manifest: FinalManifest) -> None:
        """The FINAL_ACK for this manifest is about to be sent.  Raises WrongState for another one."""
        if manifest != self.manifest:
            raise WrongState(
                detail=f"the acknowledged manifest {manifest} is not the held one, {self.manifest}"
            )
        self._ack_step = manifest.global_step

    @property
    def ack_started(self) -> bool:
        return self.manifest is not None and self._ack_step == self.manifest.global_step


def _length(tensor: Buffer) -> int:
    return memoryview(tensor).nbytes
