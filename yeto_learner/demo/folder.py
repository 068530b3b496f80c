"""The output folder of a demo: its file names, and one user at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class DemoError(Exception):
    """The demo cannot go on. Its parts, joined by semicolons: what, where, and what to do."""

    def __init__(self, *parts: str) -> None:
        super().__init__("; ".join(parts))


@dataclass(frozen=True)
class Folder:
    """Paths under one root. All of them belong to the demo and are replaced by the next run."""

    root: Path

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint.yeto"

    @property
    def marker(self) -> Path:
        return self.root / "checkpoint.yeto.final"

    @property
    def final_state(self) -> Path:
        return self.root / "final-state.bin"

    @property
    def tape(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def layout(self) -> Path:
        return self.root / "layout.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def parameters(self) -> Path:
        return self.root / "parameters"

    def learner(self, learner: int) -> Path:
        """Final parameters of a learner."""
        return self.parameters / f"learner-{learner}.npz"

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Makes the folder, locks it, and removes what an earlier run left in it, but nothing else.

        Raises DemoError when it cannot be written or another demo is using it.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / "demo.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DemoError(
                    "another demo is writing this folder",
                    str(self.root),
                    "wait for it or give another --output",
                ) from error
            try:
                self._clear()
            except OSError as error:
                raise self._unusable(error) from error
            yield
        finally:
            os.close(lock)

    def _clear(self) -> None:
        files = (
            self.checkpoint,
            self.marker,
            self.final_state,
            self.tape,
            self.layout,
            self.report,
            self.result,
        )
        for file in (*files, self.root / "checkpoint.yeto.tmp", self.root / "checkpoint.yeto.lock"):
            file.unlink(missing_ok=True)
        for directory in (self.logs, self.parameters):
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir()

    def _unusable(self, error: OSError) -> DemoError:
        reason = error.strerror or str(error)
        return DemoError(f"cannot write the output folder: {reason}", str(self.root), "give another --output")
