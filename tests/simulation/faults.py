"""Doing the faults of a plan to a world. Each is counted when it has bitten, not when it was drawn."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.learner_process import LearnerProcess, State
from tests.simulation.mischief import SPOILS, copy
from tests.simulation.plan import LATE_STOP, Fault
from tests.simulation.strangers import Stranger
from tests.simulation.wire import CONTROL, Line
from yeto_proto import dtypes
from yeto_proto._generated.errors import BadMagic, TrailingBytes, YetoError
from yeto_proto._generated.messages import (
    BcastFragment,
    BudgetDone,
    FinalAck,
    FinalFragment,
    FinalManifest,
    InitParams,
    Message,
    PushFragment,
    Shutdown,
)
from yeto_proto._generated.types import Dtype
from yeto_syncer.core.coordinator import Phase

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Trouble:
    """Turns faults into events of a world."""

    def __init__(self, world: Cluster) -> None:
        self._world = world

    def make(self, fault: Fault) -> None:
        """Do one fault, if the world is in a state in which it can be done."""
        if self._world.complete:
            return
        rng = Random(fault.dice)
        if fault.kind in SPOILS:
            process = self._running(fault)
            if process is not None:
                process.mischief.append(fault.kind)  # told and counted when a push leaves
            return
        if self._do(fault, rng):
            self._world.tally[f"fault {fault.kind}"] += 1
            self._world.note(f"fault: {fault.kind} (learner {fault.learner})")

    def tell(self, kind: str) -> None:
        """Something that waited for its moment has bitten."""
        self._world.tally[f"fault {kind}"] += 1
        self._world.note(f"fault: {kind}")

    def _do(self, fault: Fault, rng: Random) -> bool:
        kind = fault.kind
        if kind.startswith("stranger: "):
            return Stranger(self._world, rng, kind.removeprefix("stranger: ")).call()
        if kind.startswith("syncer") or kind in ("checkpoint fails", "marker fails", "merge not finite"):
            return self._syncer(kind, rng)
        if kind == LATE_STOP:
            if self._world.syncer is not None:
                self._world.syncer.stop_at_late = True
            return False  # told and counted when it comes to that
        if kind == "stray stream at the next dial":
            self._world.stray.add(fault.learner)
            return False  # told and counted when it comes
        if kind == "observer stops reading":
            return self._observer(rng)
        if kind == "everybody cut off":
            until = self._world.clock.now + rng.uniform(3, 60)
            for learner in range(len(self._world.learners)):
                self._world.network.cut_off(learner, until)
            return True
        if kind == "slow network":
            self._world.network.slow_until = self._world.clock.now + rng.uniform(5, 60)
            return True
        process = self._running(fault)
        if process is None:
            return False
        if kind.startswith("learner "):
            return self._learner(kind, process, rng)
        line = process.line
        if line is None:
            return False
        if kind.startswith(("connection", "data stream")):
            return self._connection(kind, line, rng)
        return self._message(kind, process, line, rng)

    def _running(self, fault: Fault) -> LearnerProcess | None:
        process = self._world.learners[fault.learner]
        return process if process is not None and process.running else None

    # -- the syncer ------------------------------------------------------------------------------------------

    def _syncer(self, kind: str, rng: Random) -> bool:
        world = self._world
        syncer = world.syncer
        if syncer is None:
            return False
        match kind:
            case "syncer killed":
                syncer.kill(renamed=rng.random() < 0.5)
                world.syncer_died()
            case "syncer told to stop":
                syncer.stop(15)
            case "syncer told to stop twice":
                syncer.stop(2)
                world.clock.after(rng.uniform(0, 3), partial(syncer.stop, 2))
            case "checkpoint fails":
                syncer.fail_next_save = True
            case "merge not finite":
                syncer.overflows += rng.choice((1, 1, 2, 3))
            case _:
                syncer.fail_next_marker = True
        return True

    # -- learners and their connections ----------------------------------------------------------------------

    def _learner(self, kind: str, process: LearnerProcess, rng: Random) -> bool:
        world = self._world
        now = world.clock.now
        match kind:
            case "learner cut off":
                world.network.cut_off(process.id, now + rng.uniform(1, 60))
            case "learner stops reading":
                if process.line is None:
                    return False
                process.line.deaf_until = now + rng.uniform(15, 100)
            case "learner hangs":
                process.hung_until = now + rng.uniform(10, 100)
            case "learner hangs without heartbeats":
                process.hung_until = process.mute_until = now + rng.uniform(10, 100)
            case "learner killed":
                world.kill_learner(process.id, "is killed")
            case _:
                world.kill_learner(process.id, "is killed and loses its checkpoint", forget=True)
        return True

    def _connection(self, kind: str, line: Line, rng: Random) -> bool:
        match kind:
            case "connection reset":
                line.reset(rng.uniform(0, 1))
            case "connection lost, noticed late by the syncer":
                line.reset(rng.uniform(5, 120))
            case "connection given up, its last words come late":
                hold = rng.uniform(5, 40)
                line.fade(hold, rng.uniform(0, min(hold, 10)))
            case "connections lost in a row":
                self._lose_again(line.link.learner_id, rng, 3)
            case "connection lost, noticed late by the learner":
                line.reset(rng.uniform(0, 1), learner_notice=rng.uniform(5, 60))
            case _:
                if not line.streams:
                    return False
                line.lose_stream(rng.randint(1, line.streams))
        return True

    def _lose_again(self, learner: int, rng: Random, times: int) -> None:
        """The learner is back before the syncer has noticed, and is lost again before it has caught up."""
        process = self._world.learners[learner]
        if process is not None and process.line is not None:
            process.line.reset(rng.uniform(5, 40))
        if times > 1:
            again = partial(self._lose_again, learner, rng, times - 1)
            self._world.clock.after(1.1 + rng.uniform(0, 2), again)

    def _observer(self, rng: Random) -> bool:
        for observer in self._world.setup.config.observers:
            process = self._world.learners[observer]
            if process is not None and process.line is not None:
                process.line.deaf_until = self._world.clock.now + rng.uniform(15, 100)
                return True
        return False

    # -- messages --------------------------------------------------------------------------------------------

    def _message(self, kind: str, process: LearnerProcess, line: Line, rng: Random) -> bool:
        world = self._world
        match kind:
            case "old push again":
                if not process.sent:
                    return False
                old = copy(rng.choice(process.sent))
                world.register(old, process.id, ())
                line.send(old, bulk=True)
            case "uninvited push":
                return self._uninvited(process, rng)
            case "uninvited push after a redial":
                line.reset(rng.uniform(15, 60))  # so the syncer still knows the generation before
                for _ in range(3):
                    world.clock.after(1.1 + rng.uniform(0, 8), partial(self._uninvited, process, rng))
            case "INIT of another learner":
                if process.id == 0:
                    return False
                process.guilty = True
                bulk = Dtype.F32 if world.setup.session.dtype is Dtype.F32 else Dtype.BF16
                size = dtypes.encoded_bytes(bulk, world.setup.session.numel(0))
                line.send(InitParams(0, bytes(size)), bulk=True)
            case "uninvited budget report":
                process.guilty = True
                line.send(BudgetDone(1))
            case "forged broadcast" | "forged manifest" | "forged SHUTDOWN":
                return self._forged(kind, process, line)
            case "wrong final step":
                line.send(FinalAck(final_global_step=world.setup.config.total_steps + rng.choice((-1, 1))))
            case _:
                return self._garbage(kind, process, line, rng)
        return True

    def _garbage(self, kind: str, process: LearnerProcess, line: Line, rng: Random) -> bool:
        syncer = self._world.syncer
        if syncer is None or not syncer.has(line):
            return False
        socket = CONTROL
        if kind.endswith("stream"):
            if not line.streams:
                return False
            socket = rng.randint(1, line.streams)
        process.guilty = True
        error: YetoError = rng.choice((BadMagic, TrailingBytes))()
        syncer.garbage(line, socket, error)
        return True

    def _forged(self, kind: str, process: LearnerProcess, line: Line) -> bool:
        """Something that no syncer sends: the learner must give up."""
        link = process.link
        message: Message = Shutdown()
        if kind == "forged SHUTDOWN":
            if link.ack_started:
                return False
        elif kind == "forged manifest":
            if link.manifest is None:
                return False
            message = FinalManifest(
                final_global_step=link.manifest.global_step + 1, expected_versions=link.manifest.versions
            )
        elif link.finals:
            number, held = next(iter(link.finals.items()))
            message = FinalFragment(number, held.version, bytes(len(held.data)))
        else:
            version = process.boundary.fragments[0].version
            if version is None or process.state is not State.TRAIN:
                return False
            if link.has_updates:  # the link may know another version than the one that is installed
                return False
            if 0 in link.catching_up and _behind(line, version):
                return False
            message = BcastFragment(0, version, b"\x01" * self._world.setup.session.bulk_bytes(0))
        process.guilty = process.tainted = True
        line.deliver(message)
        return True

    def _uninvited(self, process: LearnerProcess, rng: Random) -> bool:
        """A push for a round that gathers, by a learner that may not be one of its members."""
        world = self._world
        syncer, line = world.syncer, process.line
        if syncer is None or syncer.core.phase is not Phase.TRAINING or process.state is not State.TRAIN:
            return False
        if line is None:
            return False
        session = world.setup.session
        step = syncer.committed + rng.randint(1, 2)
        fragment = (step - 1) % session.num_fragments
        push = PushFragment(
            process.id,
            fragment,
            step,
            rng.choice((1, 1, 1, 2)),
            0,
            process.boundary.steps,
            1,
            8,
            bytes(session.push_bytes(fragment)),
        )
        world.register(push, process.id, ())
        line.send(push, bulk=True)
        return True


def _behind(line: Line, version: int) -> bool:
    """Whether the syncer at the other end holds an older version of the first fragment, or none yet.

    A learner that catches up takes the first broadcast on faith (revision 2, 7.4), also a forged one. What
    the syncer really serves must then not look older: it would be dropped, and the learner would answer for
    ever from a version that the syncer has never had.
    """
    held = line.server.version(0)
    return held is None or held < version
