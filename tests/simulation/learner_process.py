"""One learner process in a simulated world: the real link, boundary and values behind a virtual client.

It dials and redials, installs, trains, answers, saves its own checkpoints and takes the final cut, as
`Learner` and its client do with threads and sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from random import Random

import numpy as np

from tests.simulation.learner_parts import Host, Local, Saved, State, initial_values
from tests.simulation.setup import Habits, Setup
from tests.simulation.wire import Line
from yeto_learner.core.boundary import Answer, Boundary
from yeto_learner.core.link import Link as LinkState
from yeto_learner.core.redial import REDIAL_TIMEOUT, redial_waits
from yeto_learner.core.values import F32
from yeto_learner.errors import NonFiniteParameterError
from yeto_learner.fragments import FragmentValues
from yeto_proto import dtypes
from yeto_proto._generated.errors import YetoError
from yeto_proto._generated.messages import (
    BcastFragment,
    FinalAck,
    FinalFragment,
    Heartbeat,
    Hello,
    InitParams,
    Message,
    PushFragment,
)
from yeto_proto._generated.types import Dtype

SHUTDOWN_GRACE = 30.0  # as the learner's own: how long a syncer that left may need to come back
FINISH_TIMEOUT = 900.0


class LearnerProcess:
    """From a start, cold or with a checkpoint of its own, to its end."""

    def __init__(
        self, host: Host, rng: Random, setup: Setup, learner: int, saved: Saved | None, target: float
    ) -> None:
        self.id = learner
        self.saved = saved
        self.state = State.CUT
        self.line: Line | None = None
        self.hung_until = 0.0
        self.mute_until = 0.0
        self.mischief: deque[str] = deque()  # what the next messages are spoilt with
        self.guilty = False  # it gave the syncer, or somebody else gave it, cause to end
        # Something forged is in its anchors or counters, or it repeats itself on purpose: what it computes
        # cannot be followed.
        self.tainted = setup.habits[learner].reuses or (saved is not None and saved.tainted)
        self.sent: list[PushFragment] = []
        self._host = host
        self._clock = host.clock
        self._rng = rng
        self._setup = setup
        self._habits: Habits = setup.habits[learner]
        self._session = setup.session
        self._wire_dtype = Dtype.F32 if self._session.dtype is Dtype.F32 else Dtype.BF16
        self._target = np.float32(target)
        self._local = Local(
            initial_values(setup) if saved is None else {n: a.copy() for n, a in saved.params.items()}
        )
        self.values = FragmentValues(
            self._local, setup.layout, self._wire_dtype, Dtype.F32, self._habits.alpha
        )
        self.boundary = Boundary(setup.layout.num_fragments, self._habits.min_steps, self._habits.reuses)
        self.link = LinkState(self._session, accept_rewound_catch_up=self._habits.rewinds)
        self._works: list[list[int]] = [[] for _ in setup.layout.fragments]
        if saved is not None:
            self.boundary.restore(saved.steps, saved.tokens, saved.global_step, saved.known())
            self.values.restore_anchors(saved.anchors)
            for works, before in zip(self._works, saved.works, strict=True):
                works += before
        self._begun = self._clock.now
        self._sent_epoch: int | None = None
        self._served_epoch: int | None = None
        self._outbox: deque[tuple[Answer, F32, tuple[int, ...], Saved | None]] = deque()
        self._settled: list[tuple[Answer, int | None]] = []
        self._sending = False
        self._waits: Iterator[float] = redial_waits()
        self._acked_epoch: int | None = None
        self._finish_by = 0.0
        self._lost_at: float | None = None
        self._dial()
        self._clock.after(self._habits.pace * rng.random(), self._step)
        self._clock.after(self._habits.heartbeat * rng.random(), self._beat)
        if saved is not None and learner == 0:
            self._clock.after(self._habits.probe, self._after_news)

    @property
    def running(self) -> bool:
        return self.state is not State.DONE and self.state is not State.DEAD

    # -- connections -----------------------------------------------------------------------------------------

    def _dial(self) -> None:
        if not self.running or self.line is not None:
            return
        server = self._host.server()
        network = self._host.network
        if server is None or not network.reachable(self.id):
            patience = network.latency if server is None else REDIAL_TIMEOUT
            self._clock.after(patience + next(self._waits), self._dial)
            return
        generation = self._rng.getrandbits(64) or 1
        session = self._session
        hello = Hello(
            self.id,
            generation,
            session.dtype,
            session.layout,
            session.fingerprint,
            session.contract,
            session.profile,
            self._habits.streams,
        )
        self.link.connect(generation)
        self.line = Line(network, self, server, hello)
        self.line.greet()
        self._host.dialled(self, self.line)
        self._lost_at = None
        self._waits = redial_waits()
        if self.state is State.ACKED:
            self._acknowledge_on(self.line)
        self._after_news()

    def lost(self, line: Line) -> None:
        """The group is gone: its pulls are dropped, and a new one is dialled."""
        if line is not self.line:
            return
        self.line = None
        self.link.disconnect(self.link.epoch)
        self._lost_at = self._clock.now
        if self.link.shutdown:
            self._finish()
        elif self.running:
            self._clock.after(next(self._waits), self._dial)

    def leave(self) -> None:
        """The process ends: its kernel closes the sockets."""
        self.state = State.DEAD
        self._close()

    def _close(self) -> None:
        line, self.line = self.line, None
        if line is not None:
            line.close()

    def _fail(self, error: Exception) -> None:
        if self.running:
            self.leave()
            self._host.failed(self, error)

    # -- receiving -------------------------------------------------------------------------------------------

    def arrived(self, line: Line, message: Message) -> None:
        """One whole message, as the client's receiving threads hand it over."""
        if line is not self.line or not self.running:
            return
        digest = b""
        if isinstance(message, BcastFragment | FinalFragment):
            digest = sha256(message.tensor).digest()
        try:
            self.link.receive(self.link.epoch, message, digest, self._clock.now)
        except YetoError as error:
            self._fail(error)
            return
        if (
            self.link.ack_started
            and self.link.manifest_epoch != self._acked_epoch
            and self.state is State.ACKED
        ):
            self._acknowledge_on(line)  # what was sent on an earlier connection did not arrive
        if self.link.shutdown:
            self._finish()
            return
        self._after_news()

    def _after_news(self) -> None:
        if self.state is State.CUT:
            self._begin()
        elif self.state is State.FINAL:
            self._take_final_cut()

    def _install_next(self) -> bool:
        update = self.link.take_update()
        if update is None:
            return False
        mode = self.boundary.mode_of(update, anchor_saved=update.fragment_id in self.values.anchored)
        self.values.install(update, mode)
        self.boundary.installed(update, mode)
        if self.line is not None and update.generation == self.link.generation:
            self._host.installed(self, self.line, update)
        return True

    # -- the first broadcasts --------------------------------------------------------------------------------

    def _begin(self) -> None:
        while self._install_next():
            self._served_epoch = self.link.epoch
        if not self.boundary.missing or self.link.manifest is not None:
            self.state = State.TRAIN
            return
        due = self.saved is None or self._clock.now >= self._begun + self._habits.probe
        if self.id == 0 and due and self.line is not None:
            epoch = self.link.epoch
            if epoch not in (self._sent_epoch, self._served_epoch):
                self._sent_epoch = epoch
                self._send_initial(self.line, 0)

    def _send_initial(self, line: Line, number: int) -> None:
        """One fragment after the other, until the syncer shows that it has them all."""
        done = number == self.values.num_fragments or self.link.has_updates or not self.boundary.missing
        if done or line is not self.line or self.state is not State.CUT:
            return
        try:
            data = b"".join(self.values.init_parts(number))
        except NonFiniteParameterError as error:
            self._fail(error)
            return
        line.send(InitParams(number, data), bulk=True)
        self._clock.after(line.network.bulk_time(), partial(self._send_initial, line, number + 1))

    # -- training --------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """One optimizer step and the boundary behind it."""
        if not self.running:
            return
        now = self._clock.now
        self._clock.after(self._habits.pace * (0.75 + 0.5 * self._rng.random()), self._step)
        if self._lost_at is not None and self.state is State.ACKED and now >= self._lost_at + SHUTDOWN_GRACE:
            self._finish()  # the syncer left after the acknowledgement
        elif self.state in (State.FINAL, State.ACKED) and now >= self._finish_by:
            self._fail(TimeoutError("finish() timed out"))
        if self.state is State.TRAIN and self.hung_until <= now:
            self._train()

    def _train(self) -> None:
        self._local.train(self._target)
        work = self._host.next_work()
        for works in self._works:
            works.append(work)
        self.boundary.count_step(self._rng.choice((0, 8, 8, 16)))
        for answer, generation in self._settled:
            self.boundary.settled(answer, generation)
        self._settled.clear()
        if self._is_over():
            return
        self.boundary.add_pulls(self.link.take_pulls())
        self.boundary.keep_pulls_of(self.link.generation)
        while self._install_next():
            pass
        if self.line is not None:
            self.boundary.release_replaced(self.link.generation)
            self._answer_pulls()
        every = self._habits.saves_every
        if every and self.boundary.steps % every == 0:
            self.saved = self._save()

    def _is_over(self) -> bool:
        """Whether training ends with this step."""
        if self.link.manifest is None:
            return False
        self._await_final_cut()
        return True

    def _answer_pulls(self) -> None:
        for pull in list(self.boundary.pending):
            answer = self.boundary.answer(pull, self.link.catching_up)
            if answer is None:
                continue
            delta = np.empty(self.values.numel(pull.fragment_id), np.float32)
            try:
                self.values.write_delta(pull.fragment_id, delta)
            except NonFiniteParameterError as error:
                self._fail(error)
                return
            self.boundary.handed_out(answer)
            steps = self.boundary.steps
            works = self._works[pull.fragment_id][steps - answer.c_steps : steps]
            self._outbox.append((answer, delta, tuple(works), self.saved))
        self._pump()

    def _pump(self) -> None:
        """The exporter: one answer at a time leaves, or is settled as not delivered."""
        while not self._sending and self._outbox:
            answer, delta, works, saved = self._outbox.popleft()
            line = self.line
            if line is None:
                self._settled.append((answer, None))
                continue
            self._sending = True
            send = partial(self._exported, line, answer, delta, works, saved)
            self._clock.after(line.network.bulk_time(), send)

    def _exported(
        self, line: Line, answer: Answer, delta: F32, works: tuple[int, ...], saved: Saved | None
    ) -> None:
        self._sending = False
        if not self.running:
            return
        if line is self.line:
            push = PushFragment(
                self.id,
                answer.pull.fragment_id,
                answer.pull.global_step,
                answer.pull.round_attempt,
                answer.base_version,
                answer.local_step,
                answer.c_steps,
                answer.c_tokens,
                bytes(dtypes.encode(self._session.dtype, delta)),
            )
            if saved is not None:
                # As the journal beside a resume record.
                number, base = answer.pull.fragment_id, answer.base_version
                saved.pushed_later[number] = min(base, saved.pushed_later.get(number, base))
            for each in self._host.pushes(self, push, works):
                line.send(each, bulk=True)
            self._settled.append((answer, line.link.generation))
        else:
            self._settled.append((answer, None))
        self._pump()

    def _beat(self) -> None:
        if not self.running:
            return
        self._clock.after(self._habits.heartbeat, self._beat)
        if self.line is not None and self.mute_until <= self._clock.now:
            self.line.send(Heartbeat(self.id, self.boundary.steps))

    def _save(self) -> Saved:
        boundary = self.boundary
        return Saved(
            {name: array.copy() for name, array in self._local.arrays.items()},
            boundary.steps,
            boundary.tokens,
            boundary.global_step,
            tuple(boundary.record()),
            self.values.save_anchors() if self._habits.saves_anchors else {},
            tuple(map(tuple, self._works)),
            self.tainted,
        )

    # -- the end ---------------------------------------------------------------------------------------------

    def _await_final_cut(self) -> None:
        self.state = State.FINAL
        self._finish_by = self._clock.now + FINISH_TIMEOUT
        self.link.drop_updates()
        self._take_final_cut()

    def _take_final_cut(self) -> None:
        manifest = self.link.manifest
        if manifest is None or self.link.missing_finals():
            return
        self.values.overwrite([self.link.finals[number] for number in range(self.values.num_fragments)])
        self.boundary.finalized(manifest)
        self.state = State.ACKED
        if self.line is not None:
            self._acknowledge_on(self.line)

    def _acknowledge_on(self, line: Line) -> None:
        assert self.link.manifest is not None
        self.link.start_ack(self.link.manifest)
        self._acked_epoch = self.link.manifest_epoch
        line.send(FinalAck(final_global_step=self.link.manifest.global_step))

    def _finish(self) -> None:
        self.state = State.DONE
        self._close()
        self._host.finished(self)

    def parameters(self) -> list[F32]:
        """The values of each fragment, in layout order."""
        return [
            np.concatenate([self._local.arrays[tensor.name] for tensor in fragment.tensors])
            for fragment in self._setup.layout.fragments
        ]
