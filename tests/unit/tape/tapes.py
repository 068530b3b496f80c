"""Event tapes for tests: what the coordinator tells of scripted runs, written by the shell's own writer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.simulation.driver import Driver, Peer
from tests.unit.syncer_core.runs import config, play, training
from yeto_proto._generated.messages import BudgetDone, PullReq
from yeto_syncer.core.effects import AppendTape, Effect
from yeto_syncer.core.events import Stop
from yeto_syncer.shell.tape import Tape

EPOCH = 1_700_000_000.0


def write(path: Path, records: Iterable[tuple[float, Any]]) -> None:
    """Append records with the virtual times at which they were told."""
    now = EPOCH
    tape = Tape(path, clock=lambda: now)
    for at, record in records:
        now = EPOCH + at
        tape.append(record)
    tape.close()


class Recorder:
    """Collects what drivers tell, each record with its time. `run` is the driver that tells now."""

    def __init__(self) -> None:
        self.run: Driver | None = None
        self.told: list[tuple[float, Any]] = []

    def __call__(self, effect: Effect) -> None:
        if isinstance(effect, AppendTape):
            self.told.append((0.0 if self.run is None else self.run.now, effect.record))


def eventful(path: Path) -> None:
    """A run with a lost and returned learner, a rejected push, a retry, and a second process.

    Twelve steps, three learners, quorum 3. Learner 1 is lost in step 2 and comes back; step 4 is tried twice;
    the first process is stopped after step 5 and the second resumes there.
    """
    recorder = Recorder()
    settings: dict[str, Any] = {"quorum": 3, "checkpoint_path": "state.ckpt", "checkpoint_every": 0}
    run, peers = training(config=config(**settings), watch=recorder)
    recorder.run = run
    run.wait(1.0)
    for peer in peers:
        peer.answer()
    peers[2].push(PullReq(0, 1, 1))  # its round is over: rejected
    run.wait(1.0)
    peers[1].close()
    run.wait(5.0)
    peers[1] = Peer(run, 1, 99)
    run.wait(2.0)
    for _ in range(2):
        for peer in peers:
            peer.answer()
    peers[0].answer()
    run.wait(61.0)  # step 4 has one answer of three: given up
    for _ in range(2):
        run.wait(1.0)
        for peer in peers:
            peer.answer()
    run.feed(Stop(15))
    for peer in peers:
        peer.close()
    assert run.exit is not None and run.exit.code == 0 and run.disk is not None
    again = recorder.run = Driver(config(**settings, resume=True), run.disk, watch=recorder)
    again.now = run.now + 10.0
    late = [Peer(again, learner, 200 + learner) for learner in range(3)]
    again.wait(0.5)
    play(late)
    for peer in late:
        peer.ack()
    assert again.exit is not None and again.exit.code == 0
    write(path, recorder.told)


def consolidated(path: Path, *, budget: int = 50, spoil: dict[int, dict[str, Any]] | None = None) -> None:
    """A cutoff at step 4 and three rounds of consolidation behind it, as two processes tell them.

    `spoil` gives a learner other numbers for its answer to step 6: keyword arguments of `Peer.push`.
    """
    recorder = Recorder()
    run, peers = training(
        config=config(quorum=3, checkpoint_path="s", checkpoint_every=0, learner_budget_steps=budget),
        watch=recorder,
    )
    for _ in range(4):
        for peer in peers:
            peer.answer()
    for peer in peers:
        peer.send(BudgetDone(budget))
    assert run.exit is not None and run.exit.code == 0 and run.disk is not None
    assert run.disk.global_step == 4
    again = Driver(
        config(quorum=3, checkpoint_path="s", checkpoint_every=0, resume=True, total_steps=7),
        run.disk,
        watch=recorder,
    )
    frozen = [Peer(again, learner, 20 + learner) for learner in range(3)]
    for step in range(5, 8):
        for peer in frozen:
            [pull] = peer.pulls()
            changed = (spoil or {}).get(peer.link.learner_id, {}) if step == 6 else {}
            counts = {"local_step": budget, "c_steps": budget, "c_tokens": 500 + peer.link.learner_id}
            peer.push(pull, **{**counts, **changed})
    for peer in frozen:
        peer.ack()
    assert again.exit is not None and again.exit.code == 0
    write(path, recorder.told)
