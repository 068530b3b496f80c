"""Runs cases against an implementation: which, in which order, with which cuts, and what became of them."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from yeto_proto._generated.errors import YetoError

from . import codec_role
from .client_role import ClientPlayer
from .links import watched
from .player import Player
from .processes import NotStartedError, Process
from .server_role import Server, ServerPlayer
from .sut import Sut
from .trace import BadTraceError, Trace
from .verdict import UNSUPPORTED, BrokenError, FailError, Result, SkipError, Verdict

__all__ = ["Options", "check_start", "quick", "run"]


@dataclass(frozen=True)
class Options:
    """How to run. `timeout` is the seconds that a step may take; one with a longer `within` may take that,
    but never more than `longest`.
    """

    cuts: Sequence[str] = ("recorded",)
    jobs: int = 2
    timeout: float = 20.0
    in_process: bool = False
    tell: Callable[[Result], None] = lambda result: None
    longest: float = math.inf


def quick(options: Options) -> Options:
    """The same, for what is known to hang and not to be slow: `within` gives no step more time."""
    return replace(options, longest=options.timeout)


def check_start(sut: Sut, role: str, traces: Sequence[Trace], options: Options) -> None:
    """Start the implementation once. Raises NotStartedError with the reason why it does not."""
    mine = [each for each in traces if each.role == role]
    if role == "server":
        with tempfile.TemporaryDirectory(prefix="yeto-conform-") as work:
            settings = {**mine[0].head["settings"], "resume": False, "hmac_key_file": None}
            plain = {name: value for name, value in settings.items() if value}
            with contextlib.suppress(SkipError):  # it runs, and says that it does not support this case
                Server(sut, sut.understood(plain), Path(work)).process.stop()
    elif role == "client":
        trace = mine[0]
        with tempfile.TemporaryDirectory(prefix="yeto-conform-") as work:
            player = ClientPlayer(trace, Result(trace), Path(work), sut.start_timeout, sut)
            try:
                player.wire.holds(lambda: bool(player.wire.fresh) or player.gone(), sut.start_timeout)
                assert player.process is not None
                if not player.wire.fresh and player.process.code != UNSUPPORTED:
                    code, output = player.process.code, player.process.output
                    how = "does not connect" if code is None else f"ended with {code}"
                    raise NotStartedError(f"the learner {how}:\n{output}")
            finally:
                player.close()
    elif not options.in_process:
        asker = _asker(sut, options)
        try:
            asker.ask({"op": "hello"})
        except (FailError, SkipError, BrokenError):
            return
        finally:
            asker.close()


def run(traces: Iterable[Trace], sut: Sut, options: Options) -> list[Result]:
    """The results of all cases, by role, area and id."""
    runs = [Result(trace, cut=cut, sut=sut.name) for trace in traces for cut in _cuts(trace, options)]
    for each in runs:
        each.known = sut.known_failure(each.trace, each.trace.role)
    units: list[list[Result]] = []
    shared: dict[str, list[Result]] = {}
    for each in runs:
        if each.trace.role == "codec":
            shared.setdefault("codec", []).append(each)
        elif each.trace.head.get("share"):
            key = json.dumps(
                [each.trace.area, each.trace.head["settings"], each.trace.head["session"], each.cut]
            )
            shared.setdefault(key, []).append(each)
        else:
            units.append([each])
    lock = threading.Lock()

    def tell(result: Result) -> None:
        with lock:
            options.tell(result)

    quiet = replace(options, tell=tell)
    pool = ThreadPoolExecutor(max(1, options.jobs))
    try:
        list(pool.map(lambda unit: _unit(unit, sut, quiet), [*shared.values(), *units]))
    finally:
        # After an interrupt nothing new begins; what runs ends its processes first.
        pool.shutdown(cancel_futures=True)
    _note_known(runs)
    return sorted(runs, key=lambda each: (each.trace.role, each.trace.area, each.trace.id, each.cut))


def _note_known(runs: Sequence[Result]) -> None:
    """A known failure passes when every cut of it does: one that fails speaks for the others."""
    failing = {
        each.trace.id for each in runs if each.known and each.worst not in (Verdict.PASS, Verdict.LOOSE)
    }
    for each in runs:
        each.known_seen = each.known is not None and each.trace.id in failing


def _cuts(trace: Trace, options: Options) -> Sequence[str]:
    """The cuts that give this trace different writes."""
    if trace.role == "codec":
        streams = any(step.get("request", {}).get("op") == "stream" for step in trace.steps)
        if not streams:
            return ("recorded",)
    # A question has no edges of fields.
    possible = [each for each in options.cuts if each != "fields" or trace.role != "codec"] or ["recorded"]
    if "recorded" in possible and not _coalesces(trace):
        possible = [each for each in possible if each != "coalesced"]
    return possible


def _coalesces(trace: Trace) -> bool:
    """Whether two writes of the trace can be one: they follow each other on a socket, and nothing that waits
    for the side under test is between them.
    """
    if trace.role == "codec":
        pieces = [piece[0] for step in trace.steps for piece in step["request"].get("pieces", ())]
        return any(one == other for one, other in pairwise(pieces))
    named = watched(trace.steps)
    tested = {"server": "syncer", "client": "learner"}.get(trace.role)
    held: set[str] = set()
    for step in trace.steps:
        sent = step["do"] == "bytes" or (step["do"] == "frame" and step["from"] != tested)
        if not sent:
            # Of a syncer the runner opens the sockets itself, and looking whether it runs waits for nothing.
            held = held if step["do"] in ("open", "running", "place") and tested == "syncer" else set()
            continue
        if step.get("label") in named:
            held = set()
        if step["on"] in held:
            return True
        held.add(step["on"])
    return False


def _unit(results: Sequence[Result], sut: Sut, options: Options) -> None:
    """Cases that are run in a row, by one process where they can share it."""
    if results[0].trace.role == "codec":
        asker: codec_role.Asker = codec_role.InProcess() if options.in_process else _asker(sut, options)
        try:
            for result in results:
                _timed(result, partial(codec_role.run, result.trace, asker, result))
                options.tell(result)
        finally:
            asker.close()
        return
    server: Server | None = None
    with tempfile.TemporaryDirectory(prefix="yeto-conform-") as folder:
        for number, result in enumerate(results):
            work = Path(folder) / str(number)
            work.mkdir()
            sharing = bool(result.trace.head.get("share"))
            if sharing and (server is None or server.process.code is not None):
                try:
                    server = Server(sut, result.trace.head["settings"], work)
                except (NotStartedError, SkipError) as error:
                    skip = isinstance(error, SkipError)
                    result.verdict = Verdict.SKIP if skip else Verdict.FAIL
                    result.reason = str(error)
                    options.tell(result)
                    continue
            _timed(result, partial(_network, result, sut, options, work, server))
            options.tell(result)
    if server is not None:
        server.process.stop()


def _network(result: Result, sut: Sut, options: Options, work: Path, shared: Server | None) -> None:
    player: Player
    if result.trace.role == "server":
        player = ServerPlayer(
            result.trace, result, work, options.timeout, sut, shared, longest=options.longest
        )
    else:
        player = ClientPlayer(result.trace, result, work, options.timeout, sut, longest=options.longest)
    try:
        player.play()
    except FailError:
        if player.process is not None and player.process.output:
            result.log += ["--- output of the process ---", *player.process.output.splitlines()[-30:]]
        raise
    finally:
        player.close()


def _judges(trace: Trace) -> bool:
    """Whether any step expects something of the side under test."""
    tested = {"server": "syncer", "client": "learner"}.get(trace.role)
    return any(
        step["do"] in ("ask", "refused", "exit", "file", "none", "steps")
        or tested in (step.get("from"), step.get("by"))
        for step in trace.steps
    )


def _timed(result: Result, play: Callable[[], None]) -> None:
    """Run a case and turn what it raises into its verdict."""
    started = time.monotonic()
    try:
        play()
        if result.verdict is Verdict.PASS and not _judges(result.trace):
            result.verdict, result.reason = Verdict.INFO, "no step of this trace judges anything"
    except FailError as error:
        result.verdict, result.reason = Verdict.FAIL, str(error)
    except NotStartedError as error:
        result.verdict, result.reason = Verdict.FAIL, f"it does not start: {error}"
    except SkipError as error:
        result.verdict, result.reason = Verdict.SKIP, str(error)
    except (
        BrokenError,
        BadTraceError,
        YetoError,
        OSError,
        LookupError,
        TypeError,
        ValueError,
        AssertionError,
    ) as error:
        result.verdict, result.reason = Verdict.BROKEN, f"{type(error).__name__}: {error}"
    result.seconds = time.monotonic() - started


def _asker(sut: Sut, options: Options) -> codec_role.AdapterProcess:
    return codec_role.AdapterProcess(
        lambda: Process(sut.command("codec", {}), sut.env, sut.folder, talks=True), options.timeout
    )
