"""`yeto-conform`: run, list, show, record, mutants."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NoReturn

from . import matrix, mutants, pages, report, runner, show, sut, trace
from .groups import CUTS
from .pcap import read_pcap
from .processes import NotStartedError
from .proxy import Proxy
from .recorder import REDACTIONS, Recorder
from .replay import as_server_case
from .verdict import Result

__all__ = ["main"]

FAILED: Final = 1
BAD_ARGUMENTS: Final = 2
NOT_STARTED: Final = 3
NOTHING_SELECTED: Final = 5

_EXAMPLES: Final = """
examples:
  grade this implementation, all three roles:
    yeto-conform run
  grade a codec adapter in another language:
    yeto-conform run --sut sut.yaml --role codec
  one area, or one rule, with every way of cutting the bytes:
    yeto-conform run 'chunk.*' --all-cuts
  read a case:
    yeto-conform show run-two-steps
  record what a learner and a syncer say to each other:
    yeto-conform record --listen 127.0.0.1:29401 --connect 127.0.0.1:29400 --out run.jsonl

exit codes: 0 all as it should be; 1 failures; 2 bad arguments or sut file; 3 the implementation would not
start; 5 nothing was selected
"""


_EXAMPLES_OF: Final = {
    "run": ("yeto-conform run", "yeto-conform run --sut sut.yaml --role codec 'heartbeat.*' --output report"),
    "list": ("yeto-conform list", "yeto-conform list chunks --json", "yeto-conform list --coverage"),
    "show": ("yeto-conform show run-two-steps", "yeto-conform show run.jsonl"),
    "record": (
        "yeto-conform record --listen 127.0.0.1:29401 --connect 127.0.0.1:29400 --out run.jsonl",
        "yeto-conform record --pcap run.pcap --port 29400 --out run.jsonl",
    ),
    "mutants": ("yeto-conform mutants", "yeto-conform mutants 'push-*'"),
}


class _Parser(argparse.ArgumentParser):
    """Mistakes on the command line in the form of all other errors."""

    def error(self, message: str) -> NoReturn:
        self.exit(
            BAD_ARGUMENTS, show.printable(f"error: {message}; command line; see {self.prog} --help") + "\n"
        )


class UsageError(Exception):
    """A mistake of the user, with the exit code."""

    def __init__(self, message: str, code: int = BAD_ARGUMENTS) -> None:
        super().__init__(message)
        self.code = code


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _parser().parse_args(arguments)
    # The processes under test are in groups of their own: they are ended here, not by the terminal.
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        return int(options.run(options))
    except UsageError as error:
        print(show.printable(f"error: {error}"), file=sys.stderr)
        return error.code
    except (sut.BadSutError, trace.BadTraceError) as error:
        print(show.printable(f"error: {error}"), file=sys.stderr)
        return BAD_ARGUMENTS
    except NotStartedError as error:
        print(show.printable(f"error: the implementation would not start; {error}"), file=sys.stderr)
        return NOT_STARTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`). A verdict that nobody read is no success.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if options.run in (_list, _show) else FAILED
    except KeyboardInterrupt:
        return 130


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="yeto-conform",
        description="Grade an implementation of the protocol, in any language.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"yeto-conform {importlib.metadata.version('yeto')}"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _run_parser(commands.add_parser("run", help="run cases and report"))
    listing = commands.add_parser("list", help="list cases")
    _selection(listing)
    listing.add_argument("--json", action="store_true", help="one object a line")
    listing.add_argument("--coverage", action="store_true", help="list rules with their cases instead")
    listing.set_defaults(run=_list)
    showing = commands.add_parser("show", help="print a case or a recorded trace for people")
    showing.add_argument("trace", help="the id of a case, or a file")
    showing.set_defaults(run=_show)
    recording = commands.add_parser("record", help="record what learners and a syncer say to each other")
    recording.add_argument(
        "--listen", metavar="HOST:PORT", help="where learners connect; port 0 takes a free one"
    )
    recording.add_argument("--connect", metavar="HOST:PORT", help="the syncer")
    recording.add_argument("--pcap", type=Path, help="read a libpcap file of plain TCP instead")
    recording.add_argument(
        "--port", type=int, default=29400, help="the syncer's port in the pcap (default: 29400)"
    )
    recording.add_argument(
        "--out", type=Path, required=True, help="the trace; long bytes go to blobs beside it"
    )
    recording.add_argument("--redact", choices=REDACTIONS, default="none", help="leave tensor bytes out")
    recording.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE", help="of the syncer, for a replay"
    )
    recording.set_defaults(run=_record)
    judging = commands.add_parser(
        "mutants", help="check that every mutant is found at the rule that it breaks"
    )
    judging.add_argument("select", nargs="*", metavar="NAME", help="mutants, with * and ?")
    judging.add_argument("--mutants", type=Path, default=Path("tests/conform/mutants/mutants.yaml"))
    judging.add_argument("--sut", type=Path, default=sut.OURS, help="the clean implementation")
    judging.add_argument("--corpus", type=Path, default=trace.CORPUS, help="a folder of traces")
    judging.add_argument("--jobs", type=int, default=2, help="cases at a time (default: 2)")
    judging.add_argument(
        "--timeout", type=float, default=8.0, help="seconds that a step may take (default: 8)"
    )
    judging.set_defaults(run=_mutants)
    for name, each in commands.choices.items():
        each.epilog = "\n  ".join(("examples:", *_EXAMPLES_OF[name]))
        each.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def _selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("select", nargs="*", metavar="PATTERN", help="ids, areas or rules, with * and ?")
    parser.add_argument(
        "--role",
        action="append",
        choices=list(dict.fromkeys([*runner.ROLES.values(), *runner.ROLES])),
        default=[],
        help="one side only",
    )
    parser.add_argument(
        "--corpus", type=Path, default=trace.CORPUS, help="a folder of traces, or a recorded trace"
    )


def _run_parser(parser: argparse.ArgumentParser) -> None:
    _selection(parser)
    parser.add_argument("--sut", type=Path, default=sut.OURS, help="the implementation (default: this one)")
    parser.add_argument("--in-process", action="store_true", help="call this package's codec directly")
    parser.add_argument("--cuts", default="recorded", help=f"how bytes are cut: any of {', '.join(CUTS)}")
    parser.add_argument("--all-cuts", action="store_true", help="every cut")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time (default: 2)")
    parser.add_argument(
        "--timeout", type=float, default=20.0, help="seconds that a step may take (default: 20)"
    )
    parser.add_argument("--repeat", type=int, default=1, help="run everything so many times")
    parser.add_argument("--strict", action="store_true", help="count a loose verdict as a failure")
    parser.add_argument("--output", type=Path, help="folder for results.jsonl, junit.xml and index.html")
    parser.add_argument("--json", action="store_true", help="print results.jsonl instead of tables")
    parser.set_defaults(run=_run)


def _selected(options: argparse.Namespace) -> list[trace.Trace]:
    roles = {name for role, shown in runner.ROLES.items() for name in (role, shown) if name in options.role}
    wanted = {role for role, shown in runner.ROLES.items() if {role, shown} & roles}
    corpus = [trace.load(options.corpus)] if options.corpus.is_file() else trace.load_corpus(options.corpus)
    found = [
        each
        for each in trace.select(map(_replayed, corpus), options.select)
        if not wanted or each.role in wanted
    ]
    if not found:
        raise UsageError("nothing was selected; `yeto-conform list` shows what there is", NOTHING_SELECTED)
    return found


def _replayed(each: trace.Trace) -> trace.Trace:
    """A recorded run as a case of a syncer."""
    return as_server_case(each) if each.role == "record" else each


def _run(options: argparse.Namespace) -> int:
    chosen = sut.read(options.sut)
    traces = [each for each in _selected(options) if each.role in runner.ROLES]
    traces = [
        each for each in traces if each.role in chosen.roles or (each.role == "codec" and options.in_process)
    ]
    if not traces:
        raise UsageError("the sut file has no role that was selected", NOTHING_SELECTED)
    cuts = CUTS if options.all_cuts else tuple(options.cuts.split(","))
    if not set(cuts) <= set(CUTS):
        raise UsageError(f"--cuts: known are {', '.join(CUTS)}")
    if options.jobs < 1 or options.repeat < 1 or not options.timeout > 0:
        raise UsageError("--jobs, --repeat and --timeout must be positive")
    progress = _Progress(len(traces) * options.repeat, quiet=options.json)
    how = runner.Options(cuts, options.jobs, options.timeout, options.in_process, progress)
    for role in {each.role for each in traces}:
        runner.check_start(chosen, role, traces, how)
    results: list[Result] = []
    for _ in range(options.repeat):
        results += runner.run(traces, chosen, how)
    progress.end()
    if options.output is not None:
        try:
            paths = report.write(options.output, results, chosen.name)
        except OSError as error:
            raise UsageError(f"--output {options.output}: cannot be written; {error.strerror}") from None
        shown = ", ".join(map(str, paths))
    tally = matrix.counts(matrix.merged(results), strict=options.strict)
    if options.json:
        for each in results:
            print(json.dumps(report.record(each)))
    else:
        print(matrix.matrices(matrix.merged(results), chosen.name))
        text = show.printable(matrix.problems(results))
        print(f"\n{text}\n" if text else "")
        if options.output is not None:
            print(f"wrote {shown}")
        print(matrix.last_line(tally))
    return FAILED if tally["failed"] else 0


class _Progress:
    """A line that counts, on a terminal only."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total, self._done = total, 0
        self._show = sys.stderr.isatty() and not quiet
        self._started = time.monotonic()

    def __call__(self, result: Result) -> None:
        self._done += 1
        if self._show:
            seconds = time.monotonic() - self._started
            print(f"\r{self._done} cases, {seconds:.0f} s: {result.trace.id:40.40}", end="", file=sys.stderr)

    def end(self) -> None:
        if self._show:
            print("\r\033[K", end="", file=sys.stderr)


def _list(options: argparse.Namespace) -> int:
    traces = _selected(options)
    if options.coverage:
        return _coverage(traces)
    for each in traces:
        if options.json:
            head = {key: each.head.get(key) for key in ("id", "area", "role", "rules", "expect", "doc")}
            print(json.dumps(head))
        else:
            print(
                f"{each.role:7} {each.area:14} {each.id:44} {each.head['expect']:7} {', '.join(each.rules)}"
            )
    return 0


def _coverage(traces: Sequence[trace.Trace]) -> int:
    gaps = json.loads((trace.CORPUS / "uncovered.json").read_text(encoding="utf-8"))
    for rule in pages.rule_texts():
        own = [each for each in traces if rule in each.rules]
        kinds = [sum(each.head["expect"] == kind for each in own) for kind in ("accept", "refuse")]
        why = f"  ({gaps[rule]})" if rule in gaps else ""
        print(f"{rule:44} {kinds[0]:3} accept {kinds[1]:3} refuse{why}")
    return 0


def _show(options: argparse.Namespace) -> int:
    path = Path(options.trace)
    if path.suffix == ".jsonl":
        found = trace.load(path)
    else:
        matching = [each for each in trace.load_corpus() if each.id == options.trace]
        if not matching:
            raise UsageError(f"there is no case {options.trace}; `yeto-conform list` shows what there is")
        found = matching[0]
    print(show.printable(show.show(found, pages.rule_texts())))
    return 0


def _record(options: argparse.Namespace) -> int:
    if (options.pcap is None) == (options.listen is None) or (options.listen is None) != (
        options.connect is None
    ):
        raise UsageError("record: give --listen and --connect, or --pcap")
    settings = dict(_setting(each) for each in options.setting)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        recorder = Recorder(options.out.parent, options.redact)
        if options.pcap is not None:
            count = read_pcap(options.pcap, options.port, recorder)
        else:
            count = _serve(recorder, _address(options.listen), _address(options.connect))
        recorded = recorder.trace(options.out.stem, settings)
        trace.save(recorded, options.out)
    except OSError as error:
        raise UsageError(f"record: {error.strerror or error}; {options.listen or options.pcap}") from None
    print(f"wrote {options.out}: {count} connections, {len(recorded.steps)} steps")
    return 0


def _serve(recorder: Recorder, listen: tuple[str, int], connect: tuple[str, int]) -> int:
    """Pass bytes on until every connection has ended, or until SIGINT."""
    proxy = Proxy(recorder, listen, connect)
    host, port = proxy.address
    print(f"recording on {host}:{port}", flush=True)
    try:
        proxy.wait_idle()
    except KeyboardInterrupt:
        pass
    finally:
        proxy.close()
    return proxy.taken


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--setting {text}: is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise UsageError(f"{text}: is not HOST:PORT")
    return host, int(port)


def _mutants(options: argparse.Namespace) -> int:
    traces = trace.load_corpus(options.corpus)
    data, found = mutants.read(options.mutants, traces)
    chosen = [
        each
        for each in found
        if not options.select or any(fnmatchcase(each.name, pattern) for pattern in options.select)
    ]
    if not chosen:
        raise UsageError("no mutant has such a name", NOTHING_SELECTED)
    how = runner.Options(jobs=options.jobs, timeout=options.timeout)
    outcomes = mutants.hunt(chosen, data, options.mutants, traces, sut.read(options.sut), how, _tell_mutant)
    escaped = [each for each in outcomes if each.caught is None]
    well_formed = sum(each.mutant.well_formed for each in outcomes)
    print(f"{len(outcomes)} mutants, {well_formed} of them with well-formed bytes only")
    print(f"{len(outcomes) - len(escaped)} passed, {len(escaped)} failed, 0 skipped")
    return FAILED if escaped else 0


def _tell_mutant(found: mutants.Found) -> None:
    caught = found.caught
    if caught is None:
        verdicts = ", ".join(f"{each.trace.id} {each.worst.value}" for each in found.results)
        print(
            f"ESCAPED {found.mutant.name} ({found.mutant.says}) at {found.mutant.rule}: {verdicts}",
            flush=True,
        )
    else:
        print(f"found   {found.mutant.name:24} at {found.mutant.rule:42} by {caught.trace.id}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
