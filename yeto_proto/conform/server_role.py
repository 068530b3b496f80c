"""A syncer under test: the runner plays all of its learners."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from yeto_proto._generated.types import Role

from .player import Player
from .processes import NotStartedError, Process
from .sut import Sut
from .trace import Step, Trace
from .verdict import UNSUPPORTED, Result, SkipError

__all__ = ["Server", "ServerPlayer"]


_TRIES: Final = 3


class Server:
    """A running syncer and its port. `ended_itself` tells that a start failed because the process ended."""

    def __init__(self, sut: Sut, settings: Mapping[str, Any], work: Path) -> None:
        """Start it and wait until it is ready. Raises NotStartedError, SkipError."""
        self.ended_itself = False
        for left in reversed(range(_TRIES)):
            try:
                self._start(sut, settings, work)
                return
            except NotStartedError:
                # Another process may have taken the free port before this one did.
                if left == 0 or not self.ended_itself:
                    raise

    def _start(self, sut: Sut, settings: Mapping[str, Any], work: Path) -> None:
        self.port = free_port()
        command = sut.server(settings, {"port": self.port, "work": work})
        self.process = Process(command, sut.env, sut.folder)
        ready = sut.roles["server"].get("ready", {"connect": True})
        try:
            if "line" in ready:
                self.process.wait_line(ready["line"], sut.start_timeout)
            else:
                self._connect(sut.start_timeout)
        except NotStartedError:
            self.process.wait(1)
            code = self.process.code
            self.process.stop()
            self.ended_itself = code is not None
            if code == UNSUPPORTED:
                raise SkipError(f"the process ended with {UNSUPPORTED}: not supported") from None
            raise

    def _connect(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self.process.code is not None or time.monotonic() > deadline:
                    raise NotStartedError(f"it takes no connection:\n{self.process.output}") from None
                time.sleep(0.02)


class ServerPlayer(Player):
    """Plays the learners. A server that other cases share is handed in and left alone."""

    played = "learner"
    role = Role.LEARNER

    def __init__(
        self,
        trace: Trace,
        result: Result,
        work: Path,
        timeout: float,
        sut: Sut,
        shared: Server | None = None,
        *,
        longest: float = math.inf,
    ) -> None:
        super().__init__(trace, result, work, timeout, longest=longest)
        self.sut, self.shared = sut, shared
        self.settings = dict(trace.head["settings"])
        self.server: Server | None = None
        if shared is not None:
            self._use(shared)
        self.verbs |= {"restart": self.restart, "place": self.place, "launch": self.launch}

    def _use(self, server: Server) -> None:
        self.server, self.process = server, server.process

    def open(self, step: Step) -> None:
        if self.server is None:
            self._use(Server(self.sut, self.settings, self.work))
        assert self.server is not None
        name, _, number = step["on"].partition(".")
        self.wire.dial(name, int(number), self.server.port)

    def launch(self, step: Step) -> None:
        """Start the command without waiting for it to be ready: it is expected to refuse."""
        command = self.sut.server(self.settings, {"port": free_port(), "work": self.work})
        self.process = Process(command, self.sut.env, self.sut.folder)

    def place(self, step: Step) -> None:
        """Put a file there before the start."""
        (self.work / step["name"]).write_bytes(self.trace.wire(step["wire"]))

    def restart(self, step: Step) -> None:
        """Start it once more, after the first process has ended or by ending it."""
        self.wire.flush()
        if self.process is not None:
            self.process.stop()
        for name in list(self.wire.groups):
            self.wire.close(name)
        self.wire.groups.clear()
        self.settings |= step["settings"]
        self._use(Server(self.sut, self.settings, self.work))

    def close(self) -> None:
        super().close()
        if self.shared is None and self.process is not None:
            self.process.stop()


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
