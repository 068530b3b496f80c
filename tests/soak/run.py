"""`make soak`: a long run with reconnects under hostile load. Exit 1 when something grew or broke.

A quiet stretch comes first, then the same with every kind of hostile peer at once. Memory, descriptors and
threads of the syncer are looked at all the time. Nothing here passes or fails by the clock.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e.processes import Processes, Syncer, wait_until
from tests.e2e.raw import F32, Trainer, drive, hello
from tests.soak.hostile import Hostile
from yeto_proto.layout import Layout, build_layout

RSS_GROWTH = 16 << 20
"""Bytes that the memory may grow by between the first and the last third of a stretch."""

KINDS = ("garbage", "header bombs", "half a HELLO", "slowloris", "tiny chunks")

PATIENCE_S = 300.0
"""How long any single wait may take."""

PENDING = 48
"""Connections that may wait for their HELLO at a time."""

STRANGERS = 64
"""Descriptors that hostile peers may hold at a time, above the learners' own."""


class Steady(Trainer):
    """A trainer whose deltas stay of one size, however long the run is."""

    def delta(self, anchor: F32) -> F32:
        return np.full_like(anchor, 0.01 * (self.link[0] + 1) * (-1) ** self.local_step)

    def react(self) -> None:
        super().react()
        self.seen.clear()
        self.answered.clear()


@dataclass
class Stretch:
    """What was seen of the syncer while a part of the run went by."""

    name: str
    rounds: int = 0
    seconds: float = 0.0
    reconnects: int = 0
    rss: list[int] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def look(self, process: psutil.Process) -> None:
        self.rss.append(process.memory_info().rss)
        self.fds.append(process.num_fds())
        self.threads.add(process.num_threads())

    @property
    def growth(self) -> int:
        third = max(len(self.rss) // 3, 1)
        return int(median(self.rss[-third:]) - median(self.rss[:third]))

    def line(self) -> str:
        return (
            f"{self.name:<9} {self.rounds:>6} rounds  {self.rounds / max(self.seconds, 1e-9):>7.1f} /s  "
            f"{self.reconnects:>4} reconnects  "
            f"RSS {median(self.rss) / 2**20:>6.1f} MiB, grew {self.growth / 2**20:>+5.1f}  "
            f"descriptors {min(self.fds)}..{max(self.fds)}  threads {sorted(self.threads)}"
        )


class Run:
    """One syncer with two learners, of which the second redials again and again."""

    def __init__(self, syncer: Syncer, layout: Layout, rounds: int, every: int) -> None:
        self._syncer = syncer
        self._layout = layout
        self._every = every
        self._rounds = rounds
        self._generation = 1
        self.process = psutil.Process(syncer.pid)
        self.first = Steady(syncer.port, hello(layout, 0, streams=1), target=0.0)
        self.second = Steady(syncer.port, hello(layout, 1), target=0.0)
        self.first.initialize([np.ones(each.numel, np.float32) for each in layout.fragments])

    @property
    def step(self) -> int:
        return max((version for version, _ in self.first.anchors.values()), default=0)

    def go(self, stretch: Stretch, until: int) -> None:
        """Train until this step, with a reconnect of the second learner every so many steps."""
        begun, start = time.monotonic(), self.step
        while self.step < until and not self.first.shut_down:
            self._train_until(min(self.step + self._every, until))
            stretch.look(self.process)
            if self.step < self._rounds - 2 * self._every:
                self._reconnect()
                stretch.reconnects += 1
        stretch.rounds, stretch.seconds = self.step - start, time.monotonic() - begun

    def _train_until(self, goal: int) -> None:
        both = [self.first, self.second]
        drive(both, lambda: self.step >= goal or self.first.shut_down, f"step {goal}", timeout=PATIENCE_S)

    def _reconnect(self) -> None:
        self.second.close()
        self._generation += 1
        self.second = Steady(
            self._syncer.port, hello(self._layout, 1, generation=self._generation), target=0.0
        )

    def end(self) -> None:
        """Let the run come to its end."""
        both = [self.first, self.second]
        drive(both, lambda: all(each.shut_down for each in both), "SHUTDOWN", timeout=PATIENCE_S)
        for each in both:
            each.close()


def soak(rounds: int, every: int, seed: int) -> list[str]:
    """Run it; returns what went wrong."""
    layout = build_layout({"a": 512, "b": 512, "c": 512, "d": 512}, 4)
    wrong: list[str] = []
    flags = ("--learners", "3", "--min-start-learners", "2", "--total-steps", str(rounds), "--quorum", "1")
    flags += ("--grace-ms", "0", "--sync-interval-steps", "0", "--handshake-timeout-s", "2")
    flags += ("--log-level", "error", "--metrics-port", "0", "--status-port", "0", "--observers", "2")
    flags += ("--max-pending-connections", str(PENDING))
    with Processes() as processes:
        syncer = processes.syncer(*flags)
        run = Run(syncer, layout, rounds, every)
        quiet, loud, after = Stretch("quiet"), Stretch("hostile"), Stretch("after")
        warm = Stretch("warm-up")
        run.go(warm, rounds // 10)
        run.go(quiet, rounds * 3 // 10)
        baseline = max(quiet.fds)
        with Hostile(syncer.port, layout, 2, seed) as hostile:
            run.go(loud, rounds * 9 // 10)
            # A fast machine trains faster than a slow peer is done with.
            wait_until(lambda: all(hostile.done[kind] for kind in KINDS) or bool(hostile.errors), "all kinds")
        wrong += [f"a hostile peer failed by itself: {error!r}" for error in hostile.errors]
        wait_until(
            lambda: run.process.num_fds() <= baseline, "descriptors of hostile peers are free", PATIENCE_S
        )
        run.go(after, rounds - 1)
        run.end()
        syncer.finished(timeout=PATIENCE_S)
        for stretch in (warm, quiet, loud, after):
            print(stretch.line(), flush=True)
        print("hostile:  " + ", ".join(f"{count} {kind}" for kind, count in sorted(hostile.done.items())))
        for stretch in (quiet, loud):
            if stretch.growth > RSS_GROWTH:
                wrong.append(f"memory grew by {stretch.growth / 2**20:.1f} MiB in the {stretch.name} stretch")
        threads = quiet.threads | loud.threads | after.threads
        if len(threads) != 1:
            wrong.append(f"the number of threads changed: {sorted(threads)}")
        if max(loud.fds) > baseline + STRANGERS:
            wrong.append(f"{max(loud.fds)} descriptors under load, {baseline} before")
        final = [version for version, _ in run.first.final.values()]
        if sorted(final) != list(range(rounds - 3, rounds + 1)):
            wrong.append(f"the final cut has the versions {sorted(final)}")
        wrong += [f"no hostile peer was done with: {kind}" for kind in KINDS if not hostile.done[kind]]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description="A long run under hostile load.")
    parser.add_argument("--rounds", type=int, default=5000, metavar="N", help="outer steps (5000)")
    parser.add_argument("--every", type=int, default=25, metavar="N", help="steps between reconnects (25)")
    parser.add_argument("--seed", type=int, default=1, help="of the hostile peers (1)")
    given = parser.parse_args()
    wrong = soak(given.rounds, given.every, given.seed)
    for text in wrong:
        print(f"error: {text}; the syncer; look at the figures above", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
