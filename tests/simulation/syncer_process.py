"""One syncer process in a simulated world: the real coordinator behind a virtual shell.

The order of effects is kept by the shell's own engine. Sockets, merges and the disk take virtual time, and
what is not durable when the process dies is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from tests.simulation.clock import Clock
from tests.simulation.setup import Setup
from tests.simulation.syncer_parts import Audit, Disk, Outgoing
from tests.simulation.wire import CONTROL, Line
from yeto_proto import dtypes
from yeto_proto._generated.errors import YetoError
from yeto_proto._generated.messages import (
    DataHello,
    Error,
    Hello,
    InitParams,
    Message,
    PushFragment,
)
from yeto_proto._generated.types import Dtype
from yeto_syncer.core.config import Config
from yeto_syncer.core.coordinator import Coordinator
from yeto_syncer.core.effects import (
    Accept,
    AppendTape,
    Attach,
    CloseConn,
    CloseLink,
    Count,
    Deliver,
    Effect,
    Exit,
    Fold,
    Merge,
    Refuse,
    RemoveMarker,
    Save,
    SaveKind,
    Send,
    SetTimer,
    Versioned,
    WriteFinalState,
    WriteMarker,
)
from yeto_syncer.core.events import (
    DataHelloReceived,
    Disconnected,
    Dropped,
    Event,
    FileFailed,
    Folded,
    HelloReceived,
    Merged,
    Opened,
    Received,
    Refused,
    Saved,
    SaveFailed,
    Stop,
    Tick,
)
from yeto_syncer.core.jobs import F32, FoldJob, Link, MergeJob
from yeto_syncer.core.merge import fold, run
from yeto_syncer.shell.engine import Engine


class SyncerProcess:
    """From a start to an exit or a kill."""

    def __init__(
        self, clock: Clock, rng: Random, setup: Setup, config: Config, disk: Disk, audit: Audit
    ) -> None:
        self.clock = clock
        self.setup = setup
        self.disk = disk
        self.alive = True
        self.exit: Exit | None = None
        self.on_exit: Callable[[Exit], None] = lambda _: None
        self.on_final: Callable[[], None] = lambda: None
        self.on_late_stop: Callable[[], None] = lambda: None
        self.fail_next_save = False
        self.fail_next_marker = False
        self.fail_cutoff = False
        self.stop_at_late = False  # once a push is kept for a later round
        self.overflows = 0  # merges to come whose outer step is not finite
        self.committed = 0 if disk.snapshot is None else disk.snapshot.global_step
        self.accepted: list[Link] = []  # every generation so far
        self.book: dict[tuple[int, int], bytes] = {}  # what each (fragment, version) holds, for the world
        self.saving: Save | None = None
        self.core = Coordinator(config, disk.snapshot)
        self._rng = rng
        self._audit = audit
        self._engine = Engine(self, lambda: clock.now, self._perform, lambda: None)
        self._lines: dict[Link, Line] = {}
        self._outgoing: dict[Line, Outgoing] = {}
        self._of_conn: dict[int, Line] = {}
        self._open: set[int] = set()
        self._admitted: set[int] = set()
        self._early: dict[int, list[Message]] = {}
        self._timer: float | None = None
        self._next_conn = 0
        self._encoded: dict[tuple[int, bool], tuple[F32, bytes]] = {}
        self._work_free = 0.0
        self._session = setup.session
        self._bulk = Dtype.F32 if self._session.dtype is Dtype.F32 else Dtype.BF16

    # -- the engine's core -----------------------------------------------------------------------------------

    def step(self, now: float, event: Event) -> list[Effect]:
        """One step of the real coordinator, seen by the audit."""
        effects = self.core.step(now, event)
        self._audit.stepped(event, effects)
        if isinstance(event, Merged) and event.result is not None:
            self.committed = event.step
        if self.stop_at_late and any(type(each) is Count and each.name == "answers_late" for each in effects):
            self.stop_at_late = False
            self.on_late_stop()
            self.clock.after(0.0, partial(self.stop, 15))
        return effects

    def post(self, event: Event) -> None:
        if self.alive:
            self._engine.post(event)

    # -- sockets ---------------------------------------------------------------------------------------------

    def has(self, line: Line) -> bool:
        """Whether the group is still served."""
        return self.alive and self._lines.get(line.link) is line

    def whole(self, line: Line) -> bool:
        """Whether all sockets of the group are attached."""
        return len(line.conns) == line.streams + 1 and self._admitted.issuperset(line.conns.values())

    def version(self, fragment: int) -> int | None:
        """What it holds of a fragment; None before INIT or a checkpoint."""
        versions = self.core.view(self.clock.now).versions
        return versions[fragment] if versions else None

    @property
    def lines(self) -> list[Line]:
        """The admitted groups."""
        return list(self._lines.values())

    def opened(self, line: Line, socket: int) -> None:
        if not self.alive:
            line.hang_up()  # nobody listens on its port any more
            return
        self._next_conn += 1
        line.conns[socket] = self._next_conn
        self._of_conn[self._next_conn] = line
        self._open.add(self._next_conn)
        self.post(Opened(self._next_conn))

    def greeted(self, line: Line, socket: int, greeting: Hello | DataHello) -> None:
        conn = line.conns.get(socket)
        if conn is None or conn not in self._open:
            return
        if isinstance(greeting, Hello):
            self.post(HelloReceived(conn, greeting))
        else:
            self.post(DataHelloReceived(conn, greeting))

    def arrived(self, line: Line, socket: int, message: Message) -> None:
        conn = line.conns.get(socket)
        if conn is None or conn not in self._open:
            return
        if conn not in self._admitted:  # nothing is read behind a greeting before it was admitted
            self._early.setdefault(conn, []).append(message)
            return
        try:
            values = self._examine(message)
        except YetoError as error:
            self.post(Refused(conn, error))
            return
        self.post(Received(conn, line.link, message, values))

    def garbage(self, line: Line, socket: int, error: YetoError) -> None:
        """The reader refuses what came on a socket."""
        conn = line.conns.get(socket)
        if conn is not None and conn in self._open:
            self.post(Refused(conn, error))

    def ended(self, line: Line, socket: int) -> None:
        """End of stream or a socket error."""
        conn = line.conns.get(socket)
        if conn is not None and conn in self._open:
            self._open.discard(conn)
            if socket == CONTROL and self._lines.get(line.link) is line:
                self._forget(line)
            self.post(Disconnected(conn))

    def drop(self, line: Line, reason: str) -> None:
        """Close a group that makes no progress (D13)."""
        self._forget(line)
        line.hang_up()
        self.post(Dropped(line.link, reason))

    def _forget(self, line: Line) -> None:
        del self._lines[line.link]
        self._outgoing.pop(line, None)

    def _examine(self, message: Message) -> F32 | None:
        """What the shell checks and decodes before the coordinator sees it."""
        session = self._session
        if isinstance(message, PushFragment):
            dtypes.check_finite(session.dtype, message.delta)
        elif isinstance(message, InitParams):
            dtypes.check_finite(self._bulk, message.tensor)
            return dtypes.decode(self._bulk, message.tensor, session.numel(message.fragment_id))
        return None

    def encoded(self, fragment: Versioned, final: bool) -> bytes:
        """Wire bytes of a version, made once for all groups."""
        known = self._encoded.get((fragment.fragment_id, final))
        if known is None or known[0] is not fragment.params:
            dtype = Dtype.F32 if final else self._bulk
            known = (fragment.params, bytes(dtypes.encode(dtype, fragment.params)))
            self._encoded[fragment.fragment_id, final] = known
        return known[1]

    # -- effects ---------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> bool:
        self._audit.performed(effect)
        match effect:
            case SetTimer(at):
                self._timer = at
                self.clock.at(at, partial(self._tick, at))
            case Send(link, message):
                line = self._lines.get(link)
                if line is not None:
                    line.deliver(message)
            case Deliver(links, fragments, final, token):
                if final:
                    self.on_final()
                for link in links:
                    line = self._lines.get(link)
                    if line is not None:
                        self._outgoing[line].put(fragments, final, token)
            case AppendTape(record):
                self.disk.tape.append({**record, "time": self.clock.now})
            case Accept(conn, link):
                if conn in self._open:
                    line = self._of_conn[conn]
                    self.accepted.append(link)
                    self._lines[link] = line
                    self._outgoing[line] = Outgoing(self, line)
                    self._admit(line, conn)
            case Attach(conn, link, _):
                if conn in self._open and link in self._lines:
                    self._admit(self._lines[link], conn)
            case Merge(job):
                self._work(partial(self._merge, job))
            case Fold(job):
                self._work(partial(self._fold, job))
            case Save():
                return self._save(effect)
            case CloseLink(link, error):
                self._close_link(link, error)
            case Refuse(conn, error):
                self._refuse(conn, error)
            case CloseConn(conn):
                self._open.discard(conn)
            case WriteMarker(step):
                return self._write_marker(step)
            case RemoveMarker():
                self.disk.marker = None
            case WriteFinalState(fragments):
                self.disk.final_state = fragments
            case Exit():
                self._exit(effect)
            case _:
                pass  # counters and log lines
        return False

    def _admit(self, line: Line, conn: int) -> None:
        """Read what has come behind the greeting."""
        self._admitted.add(conn)
        socket = next(index for index, number in line.conns.items() if number == conn)
        for message in self._early.pop(conn, ()):
            self.clock.after(0.0, partial(self.arrived, line, socket, message))

    def _tick(self, at: float) -> None:
        if self._timer == at:
            self._timer = None
            self.post(Tick())

    def _close_link(self, link: Link, error: YetoError | None) -> None:
        line = self._lines.get(link)
        if line is None:
            return
        if error is not None and error.sends:
            line.deliver(Error(text=str(error)))
        self._forget(line)
        self._open.difference_update(line.conns.values())
        line.hang_up()

    def _refuse(self, conn: int, error: YetoError) -> None:
        if conn not in self._open:
            return
        self._open.discard(conn)
        line = self._of_conn[conn]
        if error.sends:
            line.deliver(Error(text=str(error)))
        if line.conns.get(CONTROL) == conn:
            line.hang_up()

    # -- work that takes time --------------------------------------------------------------------------------

    def _work(self, action: Callable[[], None]) -> None:
        """Merges and folds run one after the other on a thread of their own."""
        start = max(self.clock.now, self._work_free)
        self._work_free = start + self._rng.random() * self.setup.merge_time
        self.clock.at(self._work_free, action)

    def _merge(self, job: MergeJob) -> None:
        if not self.alive:
            return
        finite = self.overflows == 0
        self.overflows -= not finite
        self.post(Merged(job.step, job.attempt, run(job) if finite else None))

    def _fold(self, job: FoldJob) -> None:
        if self.alive:
            fold(job)  # into sums that the attempt may have given up
            self.post(Folded(job.step, job.attempt))

    def _write_marker(self, step: int) -> bool:
        failed, self.fail_next_marker = self.fail_next_marker, False
        if not failed:
            self.disk.marker = step
            return False
        event = FileFailed("the final marker", "no space left on device")
        self.clock.after(0.0, lambda: self.alive and self._engine.resume(event, failed=True))
        return True

    def _save(self, save: Save) -> bool:
        assert self.saving is None, "two saves at a time"
        self.saving = save
        self.clock.after(self._rng.random() * self.setup.slow_disk, partial(self._saved, save))
        return not save.background

    def _saved(self, save: Save) -> None:
        if not self.alive:
            return
        self.saving = None
        step = save.snapshot.global_step
        failed, self.fail_next_save = self.fail_next_save, False
        failed |= self.fail_cutoff and save.kind is SaveKind.CUTOFF
        event: Event = SaveFailed(save.kind, step, "no space left on device")
        if not failed:
            self.disk.snapshot = save.snapshot
            self._audit.landed(save)
            event = Saved(save.kind, step)
        if save.background:
            self.post(event)
        else:
            self._engine.resume(event, failed=failed)

    # -- the end ---------------------------------------------------------------------------------------------

    def stop(self, signal: int) -> None:
        self.post(Stop(signal))

    def kill(self, *, renamed: bool) -> None:
        """SIGKILL. `renamed`: a checkpoint that is being written has just become the file, unheard of."""
        if self.saving is not None and renamed:
            self.disk.snapshot = self.saving.snapshot
            self._audit.landed(self.saving)
        self._die()

    def _exit(self, effect: Exit) -> None:
        self.exit = effect
        self._die()
        self.on_exit(effect)

    def _die(self) -> None:
        self.alive = False
        for line in list(dict.fromkeys(self._of_conn.values())):
            line.hang_up()
        self._lines.clear()
        self._outgoing.clear()
