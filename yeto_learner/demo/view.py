"""What a user sees while the demo runs: a live panel on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from yeto_learner.demo.promises import Promise
from yeto_learner.demo.settings import Settings
from yeto_learner.demo.story import Story, Trainee

FRAMES_PER_S = 8
SHOWN_ROUNDS = 32
PLAIN_EVERY = 20
"""Without a terminal one round in this many is printed."""


class View(Protocol):
    """Tells a run as it goes: its phases, what happens in them, and how it ended."""

    def showing(self) -> AbstractContextManager[object]:
        """Brackets the part of the run that changes."""
        ...

    def phase(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def update(self) -> None:
        """Called often; looks at the story again."""
        ...

    def summary(self, promises: list[Promise], lines: list[str]) -> None: ...


class QuietView:
    """For `--json`."""

    def showing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def phase(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def update(self) -> None:
        pass

    def summary(self, promises: list[Promise], lines: list[str]) -> None:
        pass


class PlainView:
    """One line for each thing that happens, each on its own, for logs and pipes."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._printed = 0
        self._start = time.monotonic()

    def showing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def phase(self, text: str) -> None:
        self._print(text)

    def note(self, text: str) -> None:
        self._print(text)

    def update(self) -> None:
        rounds = self._story.rounds
        while len(rounds) >= self._printed + PLAIN_EVERY:
            self._printed += PLAIN_EVERY
            one = rounds[self._printed - 1]
            losses = "  ".join(
                f"{each.name} {each.training.y[-1]:.3f}" for each in self._story.learners if each.training.y
            )
            answered = ",".join(map(str, sorted(one.responders)))
            self._print(
                f"round {one.step}/{self._story.rounds_planned}  fragment {one.fragment}"
                f"  answered by {answered}  loss: {losses}"
            )

    def summary(self, promises: list[Promise], lines: list[str]) -> None:
        for line in lines:
            print(line)
        for promise in promises:
            print(f"{'ok  ' if promise.kept else 'FAIL'} {promise.text}: {promise.detail}", flush=True)

    def _print(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:5.1f}s  {text}", flush=True)


class LiveView:
    """A panel that is drawn again eight times a second."""

    def __init__(self, story: Story, settings: Settings, console: Console) -> None:
        self._story = story
        self._settings = settings
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._drawn = 0.0
        self._start = time.monotonic()

    def showing(self) -> AbstractContextManager[object]:
        return self._live

    def phase(self, text: str) -> None:
        self._draw()

    def note(self, text: str) -> None:
        self._draw()

    def update(self) -> None:
        if time.monotonic() - self._drawn >= 1 / FRAMES_PER_S:
            self._draw()

    def summary(self, promises: list[Promise], lines: list[str]) -> None:
        for line in lines:
            self._console.print(line, highlight=False)
        for promise in promises:
            mark = Text("✔ ", "bold green") if promise.kept else Text("✘ ", "bold red")
            self._console.print(Text.assemble(mark, promise.text, (f"  {promise.detail}", "dim")))

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._live.update(self._panel(), refresh=True)

    def _panel(self) -> Panel:
        story = self._story
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text("rounds", "bold"),
            ProgressBar(total=story.rounds_planned, completed=len(story.rounds), width=40),
            f"{len(story.rounds)}/{story.rounds_planned}",
        )
        versions = "  ".join(
            f"{fragment}: v{version}"
            for fragment, version in enumerate(story.versions(self._settings.fragments))
        )
        notes = Text("\n".join(f"{at:5.1f}s  {note}" for at, note in story.notes[-4:]), "dim")
        body = Group(
            bar,
            Text.assemble(("fragments ", "bold"), versions),
            Padding(self._table(), (1, 0)),
            notes,
        )
        title = f"yeto demo · {story.phase} · {self._drawn - self._start:.0f}s"
        return Panel(body, title=title, title_align="left", width=min(100, self._console.width))

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for heading in ("trainee", "state", "steps", "loss", "held out", "kB/s"):
            table.add_column(heading, justify="left" if heading in ("trainee", "state") else "right")
        table.add_column(f"last {SHOWN_ROUNDS} rounds")
        for index, one in enumerate(self._story.learners):
            table.add_row(*self._row(one), self._dots(index))
        for one in (self._story.alone_shard, self._story.alone_full):
            if one.status != "starting":
                table.add_row(*self._row(one))
        return table

    @staticmethod
    def _row(one: Trainee) -> list[str]:
        return [
            one.name,
            one.status,
            f"{one.total_steps}",
            f"{one.training.y[-1]:.3f}" if one.training.y else "",
            f"{one.held_out.y[-1]:.3f}" if one.held_out.y else "",
            f"{one.bytes_per_s / 1e3:.0f}" if one.status == "training" else "",
        ]

    def _dots(self, learner: int) -> Text:
        """● answered, ○ asked but not in time, · not there."""
        dots = Text()
        for one in self._story.rounds[-SHOWN_ROUNDS:]:
            if learner in one.responders:
                dots.append("●", "green")
            elif any(member == learner for member, _ in one.expected):
                dots.append("○", "yellow")
            else:
                dots.append("·", "dim")
        return dots


def make_view(story: Story, settings: Settings, *, quiet: bool) -> View:
    """The live panel on a terminal, plain lines elsewhere, nothing when `quiet`."""
    if quiet:
        return QuietView()
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(story, settings, console)
    return PlainView(story)
