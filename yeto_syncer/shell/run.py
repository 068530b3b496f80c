"""From checked settings to a running server: key, address, files, event loop, signals, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from yeto_proto.console.output import complain
from yeto_proto.pool import BufferPool
from yeto_syncer.core.config import Config
from yeto_syncer.core.coordinator import Coordinator
from yeto_syncer.core.effects import Exit
from yeto_syncer.core.events import Stop
from yeto_syncer.shell import crashpoints, start
from yeto_syncer.shell.counters import Counters
from yeto_syncer.shell.doorman import Doorman
from yeto_syncer.shell.engine import Engine
from yeto_syncer.shell.listener import Listener
from yeto_syncer.shell.logs import Log
from yeto_syncer.shell.pages import Page, Pages
from yeto_syncer.shell.performer import Performer
from yeto_syncer.shell.resolve import Resolved
from yeto_syncer.shell.server import Server
from yeto_syncer.shell.start import Prepared, StartError
from yeto_syncer.shell.status import healthy, status_paths
from yeto_syncer.shell.tls import TlsWire
from yeto_syncer.shell.watch import Watch
from yeto_syncer.shell.wires import PlainWire
from yeto_syncer.shell.workers import Workers

LAST_WORDS_S = 2.0
"""How long sockets stay open at the end, so that queued SHUTDOWN and ERROR frames arrive."""

THREADS_S = 0.2
"""How long idle threads get to end. One that is still at work does not hold up the exit."""

SECOND_SIGNAL = 128
"""Exit codes above this are for a second signal, after which nobody is told anything."""

MOST_PARTS = 32
"""Default for `--merge-threads` on machines with more cores than this."""

VALUE_THREADS = min(4, os.cpu_count() or 1)
"""Threads that check and encode values, however many learners there are."""


def serve(config: Config, settings: Resolved, environ: Mapping[str, str], unknown: Sequence[str]) -> int:
    """Run a server until it ends; returns the exit code."""
    log = Log(sys.stderr, settings["log_format"], settings["log_level"])
    for name in unknown:
        log.write("warning", f"{name} is set but names no setting")
    _raise_descriptor_limit()
    with contextlib.ExitStack() as stack:
        try:
            prepared = start.prepare(config, settings, environ, log, stack)
        except StartError as error:
            complain(str(error))
            return 1
        process = Process(config, settings, prepared, log)
        stack.callback(process.close)
        code = process.run()
    if process.busy:
        # A thread is still merging or writing. Its result is of no use any more, and the interpreter's own
        # clean-up could only disturb it.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    return code


def _raise_descriptor_limit() -> None:
    # Each learner has a socket for control and one for each stream; many systems begin with 1024 files.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems allow less than their hard limit says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def merge_threads(given: int | None) -> int:
    """Threads of one merge: as given, or the cores of this machine, up to a bound."""
    return given or min(MOST_PARTS, os.cpu_count() or 1)


class Process:
    """The event loop and everything that runs on it."""

    def __init__(self, config: Config, settings: Resolved, prepared: Prepared, log: Log) -> None:
        self._prepared = prepared
        self._log = log
        self._code = 1
        self._over = False
        self.busy = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._failed)
        self._values = Workers("values", VALUE_THREADS, self._loop)
        # A stranger's long layout must not wait behind values, nor values behind it.
        self._greeting = Workers("hello", 1, self._loop)
        threads = merge_threads(settings["merge_threads"])
        # Threads that do the parts of a merge, a decoding or an encoding while the thread that asked waits; a
        # single one would only take its place.
        self._parts = Workers("part", threads, self._loop) if threads > 1 else None
        spread = self._parts.map if self._parts is not None else map
        # An iso merge waits for these alone, so that broadcasts are encoded and values checked meanwhile.
        alone = threads == 1 or prepared.svd is not None
        self._spectra = None if alone else Workers("spectrum", threads, self._loop)
        memory = BufferPool()
        watched = prepared.metrics is not None or prepared.status is not None
        # Held by nobody else: each commit lets go of a fragment of it.
        resumed, prepared.resumed = prepared.resumed, None
        coordinator = Coordinator(config, resumed, taping=watched)
        self._counters = Counters()
        doorman = Doorman(settings["max_failed_handshakes"])
        self._profile = coordinator.profile_hash.hex()
        self._binding = config.require_profile_binding
        self._engine = Engine(
            crashpoints.around_events(coordinator),
            self._loop.time,
            crashpoints.around_effects(self._perform),
            self._settle,
        )
        self._server = Server(
            self._loop,
            self._engine,
            self._values,
            self._greeting,
            spread,
            prepared.key,
            config.write_timeout_s,
            memory,
            doorman,
            self._counters,
            lambda text, fields: log.write("warning", text, fields),
        )
        self._pages: list[Pages] = []
        watch = self._look_on(coordinator, config.checkpoint_path is not None) if watched else None
        self._performer = Performer(
            self._loop,
            self._server,
            prepared.storage,
            prepared.tape,
            log,
            spread,
            prepared.svd,
            self._end,
            memory,
            self._counters,
            watch,
            map if self._spectra is None else self._spectra.map,
        )
        self._performer.connect(self._engine)
        self._listener = Listener(
            self._loop,
            prepared.socket,
            settings["max_pending_connections"],
            lambda text: log.write("warning", text),
            doorman,
            PlainWire if prepared.tls is None else partial(TlsWire, context=prepared.tls),
        )

    def _look_on(self, coordinator: Coordinator, durable: bool) -> Watch:
        # The pages for those who only want to know; prometheus_client is imported only for its own.
        prepared, metrics = self._prepared, None
        if prepared.metrics is not None:
            from yeto_syncer.shell.metrics import Metrics

            metrics = Metrics(self._counters)
            told = metrics
            paths = {"/metrics": lambda: Page(told.content_type, told.exposition()), "/healthz": healthy}
            self._pages.append(Pages(self._loop, prepared.metrics, paths, self._page_broken))
        watch = Watch(
            coordinator.view,
            self._server,
            lambda: self._engine.waiting,
            self._loop.time,
            time.time,
            metrics,
            durable=durable,
        )
        if prepared.status is not None:
            self._pages.append(Pages(self._loop, prepared.status, status_paths(watch), self._page_broken))
        return watch

    def _perform(self, effect: Any) -> bool:
        return self._performer(effect)

    def _settle(self) -> None:
        self._server.settle()

    def run(self) -> int:
        """Accept until the coordinator, a signal or a defect ends the run."""
        with self._signals():
            self._server.listen(self._listener)
            for pages in self._pages:
                pages.start()
            self._announce()
            self._loop.run_forever()
        for name, labels, count in self._counters.items():
            self._log.write("debug", "counter", {"name": name, **dict(labels), "count": count})
        return self._code

    def _announce(self) -> None:
        address = self._listener.address
        self._log.write(
            "info", "listening", {"address": address, "profile": self._profile, "binding": self._binding}
        )
        for pages in self._pages:
            for path in pages.shown:
                self._log.write("info", "serving", {"url": f"{pages.url}{path}"})
        with contextlib.suppress(OSError):  # whoever started us may have closed its end
            print(f"listening on {address}", flush=True)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)  # the end is under way already

    def _signalled(self, number: int) -> None:
        if self._over:
            self._loop.stop()
        else:
            self._engine.post(Stop(number))

    def _end(self, exit: Exit) -> None:
        self._over = True
        self._code = exit.code
        if exit.code == 0:
            self._log.write("info", exit.message)
        else:
            complain(exit.message)
        if exit.code > SECOND_SIGNAL:
            self._loop.stop()
        else:
            self._server.shut_down(LAST_WORDS_S, self._loop.stop)

    def _page_broken(self, error: BaseException) -> None:
        # Whoever looks at a run must not be able to end it.
        trace = "".join(traceback.format_exception(error))
        self._log.write("error", "a page could not be made; please report it", {"traceback": trace})

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and "socket" in context:
            # asyncio could not accept for a page: no descriptors are left. It tries again in a second.
            self._log.write("warning", "a page cannot be served", {"reason": error.strerror})
            return
        # Else a defect of ours: what peers and files do wrong is handled where it happens.
        self._log.write("error", "internal error", {"context": context.get("message", "")})
        if error is not None:
            with contextlib.suppress(OSError):
                traceback.print_exception(error)
        complain("internal error, see the traceback; yeto-syncer; please report it")
        self._code = 1
        self._over = True
        loop.stop()

    def close(self) -> None:
        """End the threads and close the loop."""
        for page in self._pages:
            page.close()
        with contextlib.suppress(RuntimeError):  # stopped before anything ran on it
            self._loop.run_until_complete(asyncio.sleep(0))  # what was cancelled ends
        if self._prepared.svd is not None:
            self._prepared.svd.close()  # a merge that still waits for it can then end
        pools = [self._values, self._greeting, self._parts, self._spectra]
        ended = [self._performer.close(THREADS_S)]
        ended += [workers.close(THREADS_S) for workers in pools if workers is not None]
        self.busy = not all(ended)
        self._loop.close()
