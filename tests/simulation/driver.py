"""Performs the coordinator's effects in virtual time: no socket, no file, no clock.

`Driver` keeps the promises of the shell: effects strictly in order, a blocking save holds back the later
ones, one event after the other. Deliveries, saves and merges finish at once unless a test holds them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from yeto_proto._generated.messages import (
    DataHello,
    FinalAck,
    FinalManifest,
    Heartbeat,
    Hello,
    InitParams,
    Message,
    PullReq,
    PushFragment,
)
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_proto.errors_base import YetoError
from yeto_proto.files import Snapshot
from yeto_proto.session import WireLayout
from yeto_syncer.core.config import Config
from yeto_syncer.core.coordinator import Coordinator
from yeto_syncer.core.effects import (
    Accept,
    AppendTape,
    CloseConn,
    CloseLink,
    Count,
    Deliver,
    Drain,
    Effect,
    Exit,
    Fold,
    Log,
    Merge,
    Refuse,
    RemoveMarker,
    Save,
    SaveKind,
    Send,
    SetTimer,
    WriteMarker,
)
from yeto_syncer.core.events import (
    DataHelloReceived,
    Delivered,
    Disconnected,
    DrainFailed,
    Event,
    Folded,
    HelloReceived,
    Merged,
    Opened,
    Received,
    Saved,
    SaveFailed,
    Tick,
)
from yeto_syncer.core.jobs import F32, FoldJob, Link, MergeJob, MergeResult

NUMEL = 2
FINGERPRINT = bytes(range(32))
CONTRACT = bytes(reversed(range(32)))
LAYOUT = WireLayout.build([(MergeMode.AVG, [NUMEL], None)] * 3)

E = TypeVar("E", bound=Effect)
M = TypeVar("M", bound=Message)
MergeFunction = Callable[[MergeJob], MergeResult | None]
FoldFunction = Callable[[FoldJob], None]


def layout_of(num_fragments: int) -> WireLayout:
    """`num_fragments` avg fragments of one tensor with `NUMEL` values each."""
    return WireLayout.build([(MergeMode.AVG, [NUMEL], None)] * num_fragments)


def add_deltas(job: MergeJob) -> MergeResult:
    """A merge that leaves a trace: every delta is added once to the parameters, whatever its weight."""
    params = job.params.copy()
    for answer in job.answers:
        params += np.frombuffer(answer.delta, np.float32)
    if job.folded is not None:
        params += job.folded.values
    return MergeResult(params, job.momentum, float(len(job.answers)))


def add_delta(job: FoldJob) -> None:
    """The fold that goes with `add_deltas`."""
    job.into.values += np.frombuffer(job.answer.delta, np.float32)


class Driver:
    """One coordinator and everything around it. `performed` has all effects in the order of their
    performance."""

    def __init__(
        self,
        config: Config,
        resumed: Snapshot | None = None,
        *,
        merge: MergeFunction = add_deltas,
        fold: FoldFunction = add_delta,
        hold_deliveries: bool = False,
        hold_saves: bool = False,
        hold_merges: bool = False,
        hold_folds: bool = False,
        watch: Callable[[Effect], None] | None = None,
    ) -> None:
        self.core = Coordinator(config, resumed)
        self.config = config
        self.merge = merge
        self.fold = fold
        self.hold_deliveries = hold_deliveries
        self.hold_saves = hold_saves
        self.hold_merges = hold_merges
        self.hold_folds = hold_folds
        self.now = 0.0
        self.performed: list[Effect] = []
        self.inbox: dict[Link, deque[Message]] = defaultdict(deque)
        self.cuts: dict[Link, list[Deliver]] = defaultdict(list)
        self.versions: dict[Link, dict[int, int]] = defaultdict(dict)
        self.live: dict[Link, int] = {}
        self.closed: dict[int, YetoError | None] = {}
        self.held: deque[Delivered] = deque()
        self.saving: Save | None = None
        self.background: Save | None = None
        self.merging: MergeJob | None = None
        self.folding: deque[FoldJob] = deque()
        self.poison: str | None = None  # why the SVD pool cannot be drained
        self.disk: Snapshot | None = None
        self.marker: int | None = None
        self.exit: Exit | None = None
        self.timer: float | None = None
        self._watch = watch
        self._events: deque[Event] = deque()
        self._effects: deque[Effect] = deque()
        self._busy = False
        self._next_conn = 0

    # -- time and events -------------------------------------------------------------------------------------

    def feed(self, *events: Event) -> list[Effect]:
        """Give events to the coordinator and perform all that follows at this instant; return what was
        performed."""
        start = len(self.performed)
        self._events.extend(events)
        if not self._busy:
            self._busy = True
            while self._events:
                event = self._events.popleft()
                if self.exit is None:
                    self._take(self.core.step(self.now, event))
            self._busy = False
        return self.performed[start:]

    def run_until(self, time: float) -> list[Effect]:
        """Let the time pass, with a Tick wherever the coordinator asked for one."""
        start = len(self.performed)
        while self.exit is None and self.timer is not None and self.timer <= time:
            self.now = max(self.now, self.timer)
            self.timer = None
            self.feed(Tick())
        self.now = max(self.now, time)
        return self.performed[start:]

    def wait(self, seconds: float) -> list[Effect]:
        return self.run_until(self.now + seconds)

    def conn(self) -> int:
        """A socket that was just accepted."""
        self._next_conn += 1
        self.feed(Opened(self._next_conn))
        return self._next_conn

    # -- what was held ---------------------------------------------------------------------------------------

    def deliver(self, link: Link | None = None) -> list[Effect]:
        """Let the held deliveries (of one link) leave."""
        ready = [each for each in self.held if link is None or each.link == link]
        self.held = deque(each for each in self.held if each not in ready)
        return self.feed(*ready)

    def finish_save(self, error: str | None = None) -> list[Effect]:
        """End the save that runs, well or with an error."""
        save = self.saving or self.background
        assert save is not None
        return self._end_save(save, error)

    def finish_merge(self, *, finite: bool = True) -> list[Effect]:
        """End the merge that is held."""
        job, self.merging = self.merging, None
        assert job is not None
        return self.feed(Merged(job.step, job.attempt, self.merge(job) if finite else None))

    def finish_fold(self) -> list[Effect]:
        """End the oldest fold that is held."""
        job = self.folding.popleft()
        self.fold(job)
        return self.feed(Folded(job.step, job.attempt))

    # -- looking ---------------------------------------------------------------------------------------------

    def of(self, kind: type[E]) -> list[E]:
        """All performed effects of one kind."""
        return [effect for effect in self.performed if isinstance(effect, kind)]

    def tape(self, event: str | None = None) -> list[dict[str, Any]]:
        """The tape's records: the merges, or those of one other event."""
        records = [dict(effect.record) for effect in self.of(AppendTape)]
        return [record for record in records if record.get("event") == event]

    def counted(self, name: str, **labels: str) -> int:
        return sum(effect.name == name and dict(effect.labels) == labels for effect in self.of(Count))

    def logged(self, message: str) -> list[Log]:
        return [effect for effect in self.of(Log) if message in effect.message]

    def broadcasts(self) -> list[tuple[int, int]]:
        """(fragment, version) of every broadcast after the first cut that went to somebody."""
        return [
            (each.fragment_id, each.version)
            for effect in self.of(Deliver)
            if not effect.final and effect.token is None
            for each in effect.fragments
        ]

    # -- performing ------------------------------------------------------------------------------------------

    def _take(self, effects: list[Effect]) -> None:
        if any(isinstance(effect, Exit) and effect.at_once for effect in effects):
            self._effects.clear()  # the end waits for no save, and what the save has held back is dropped
            self.saving = None
        self._effects.extend(effects)
        self._perform()

    def _perform(self) -> None:
        while self._effects and self.saving is None:
            effect = self._effects.popleft()
            self.performed.append(effect)
            if self._watch is not None:
                self._watch(effect)
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case SetTimer(at):
                self.timer = at
            case Accept(conn, link):
                self.live[link] = conn
            case Send(link, message):
                if link in self.live:
                    self.inbox[link].append(message)
            case Deliver(links, fragments, _, token):
                for link in links:
                    if link not in self.live:
                        continue
                    self.cuts[link].append(effect)
                    self.versions[link].update((each.fragment_id, each.version) for each in fragments)
                    if token is not None:
                        self._delivered(Delivered(link, token))
            case CloseLink(link, error):
                if link in self.live:
                    self.closed[self.live.pop(link)] = error
            case Refuse(conn, error):
                self.closed[conn] = error
            case CloseConn(conn):
                self.closed[conn] = None
            case Fold(job):
                if self.hold_folds:
                    self.folding.append(job)
                else:
                    self.fold(job)
                    self._events.append(Folded(job.step, job.attempt))
            case Merge(job):
                assert self.merging is None, "two merges at a time"
                if self.hold_merges:
                    self.merging = job
                else:
                    self._events.append(Merged(job.step, job.attempt, self.merge(job)))
            case Drain():
                if self.poison is not None:
                    self._effects.clear()
                    self._events.append(DrainFailed(self.poison))
            case Save():
                self._save(effect)
            case WriteMarker(step):
                self.marker = step
            case RemoveMarker():
                self.marker = None
            case Exit():
                self.exit = effect
                self._effects.clear()
            case _:
                pass

    def _delivered(self, event: Delivered) -> None:
        if self.hold_deliveries:
            self.held.append(event)
        else:
            self._events.append(event)

    def _save(self, save: Save) -> None:
        assert self.saving is None and self.background is None, "two saves at a time"
        if save.background:
            self.background = save
        else:
            self.saving = save
        if not self.hold_saves:
            self._events.append(self._saved(save, None))

    def _saved(self, save: Save, error: str | None) -> Event:
        if save.background:
            self.background = None
        else:
            self.saving = None
        if error is not None:
            if not save.background:
                self._effects = deque(each for each in self._effects if isinstance(each, Exit))
            return SaveFailed(save.kind, save.snapshot.global_step, error)
        self.disk = save.snapshot
        return Saved(save.kind, save.snapshot.global_step)

    def _end_save(self, save: Save, error: str | None) -> list[Effect]:
        start = len(self.performed)
        event = self._saved(save, error)
        self._perform()
        self.feed(event)
        return self.performed[start:]


class Peer:
    """One connection of a learner, driven by hand."""

    def __init__(
        self,
        driver: Driver,
        learner_id: int,
        generation: int,
        *,
        layout: WireLayout = LAYOUT,
        dtype: Dtype = Dtype.F32,
        fingerprint: bytes = FINGERPRINT,
        contract: bytes = CONTRACT,
        profile: bytes | None = None,
        num_streams: int = 0,
    ) -> None:
        self.driver = driver
        self.link = Link(learner_id, generation)
        self.hello = Hello(learner_id, generation, dtype, layout, fingerprint, contract, profile, num_streams)
        self.conn = driver.conn()
        self.effects = driver.feed(HelloReceived(self.conn, self.hello))

    @property
    def refused(self) -> YetoError | None:
        """Why the connection was closed by the syncer, if it was."""
        return self.driver.closed.get(self.conn)

    @property
    def connected(self) -> bool:
        return self.link in self.driver.live

    @property
    def open(self) -> bool:
        """True until the syncer has closed the connection, also while its admission waits behind a save."""
        return self.conn not in self.driver.closed

    def data_stream(self, index: int) -> int:
        """Attach a data stream; return its socket."""
        conn = self.driver.conn()
        data_hello = DataHello(self.link.learner_id, self.link.generation, index)
        self.driver.feed(DataHelloReceived(conn, data_hello))
        return conn

    def send(self, message: Message) -> list[Effect]:
        return self.driver.feed(Received(self.conn, self.link, message))

    def init(self, fragments: int | None = None, value: float = 1.0) -> list[Effect]:
        """Send INIT of the first `fragments` fragments (all of them by default)."""
        count = self.hello.num_fragments if fragments is None else fragments
        start = len(self.driver.performed)
        for fragment in range(count):
            self.init_one(fragment, np.full(NUMEL, value, np.float32))
        return self.driver.performed[start:]

    def init_one(self, fragment_id: int, values: F32) -> list[Effect]:
        """Send INIT of one fragment."""
        message = InitParams(fragment_id, values.tobytes())
        return self.driver.feed(Received(self.conn, self.link, message, values))

    def messages(self, kind: type[M]) -> Iterator[M]:
        """Take the messages of one kind out of the inbox."""
        inbox = self.driver.inbox[self.link]
        taken = [message for message in inbox if isinstance(message, kind)]
        for message in taken:
            inbox.remove(message)
        return iter(taken)

    def pulls(self) -> list[PullReq]:
        return list(self.messages(PullReq))

    def push(
        self,
        pull: PullReq,
        *,
        base: int | None = None,
        attempt: int | None = None,
        learner_id: int | None = None,
        local_step: int = 1,
        c_steps: int = 1,
        c_tokens: int = 1,
        value: float = 1.0,
    ) -> list[Effect]:
        """Answer a pull; `base` defaults to the version the learner was sent last."""
        return self.send(
            PushFragment(
                self.link.learner_id if learner_id is None else learner_id,
                pull.fragment_id,
                pull.global_step,
                pull.round_attempt if attempt is None else attempt,
                self.version(pull.fragment_id) if base is None else base,
                local_step,
                c_steps,
                c_tokens,
                np.full(NUMEL, value, np.float32).tobytes(),
            )
        )

    def answer(self) -> int:
        """Answer everything that is asked; return how many pulls that were."""
        pulls = self.pulls()
        for pull in pulls:
            self.push(pull)
        return len(pulls)

    def push_again(self, step: int, *, attempt: int = 1) -> list[Effect]:
        """Answer step t in this attempt, whether it was asked or not."""
        self.pulls()
        return self.push(PullReq((step - 1) % self.hello.num_fragments, step, attempt))

    def version(self, fragment_id: int) -> int:
        """The newest version of a fragment that was sent to this connection."""
        return self.driver.versions[self.link].get(fragment_id, 0)

    def heartbeat(self, local_step: int) -> list[Effect]:
        return self.send(Heartbeat(self.link.learner_id, local_step))

    def ack(self, step: int | None = None) -> list[Effect]:
        """Acknowledge the manifest in the inbox, or another step."""
        manifest = next(self.messages(FinalManifest), None)
        if step is None:
            assert manifest is not None, "no manifest to acknowledge"
            step = manifest.final_global_step
        return self.send(FinalAck(step))

    def close(self) -> list[Effect]:
        return self.driver.feed(Disconnected(self.conn))


def saves(driver: Driver) -> list[tuple[SaveKind, int]]:
    """Kind and step of every checkpoint that was asked for, in order."""
    return [(effect.kind, effect.snapshot.global_step) for effect in driver.of(Save)]
