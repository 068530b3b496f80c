"""What the subcommands of `yeto-conform` do."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from yeto_proto.console.output import complain, fail, flush, say, say_json

from . import check, matrix, mutants, pages, report, runner, show, sut, trace
from .cli import BAD_ARGUMENTS, FAILED, NOT_STARTED, NOTHING_SELECTED
from .names import CUTS, ROLES
from .pcap import read_pcap
from .processes import NotStartedError
from .proxy import Proxy
from .recorder import Recorder
from .replay import as_server_case
from .verdict import Result, Verdict

__all__ = ["run"]

CLEAN_S: Final = 60.0  # what a step of the clean implementation may take beside the mutants, at least


class UsageError(Exception):
    """A mistake of the user, with the exit code."""

    def __init__(self, message: str, code: int = BAD_ARGUMENTS) -> None:
        super().__init__(message)
        self.code = code


def run(options: argparse.Namespace) -> int:
    """Do what was asked for; the exit code."""
    try:
        return COMMANDS[options.command](options)
    except UsageError as error:
        complain(str(error))
        return error.code
    except (sut.BadSutError, trace.BadTraceError) as error:
        where, _, rest = str(error).partition(": ")
        what, _, fix = rest.partition("; ")
        if not fix and isinstance(error, trace.BadTraceError):
            fix = "give a trace as yeto-conform record writes it"
        return fail(what, where, fix or "correct the file, or give another", code=BAD_ARGUMENTS)
    except NotStartedError as error:
        complain(f"the implementation would not start; {error}")
        return NOT_STARTED
    except BrokenPipeError:
        raise
    except OSError as error:
        what, where = error.strerror or str(error), str(error.filename or "a file")
        return fail(what, where, "give paths that can be read and written", code=BAD_ARGUMENTS)


def _selected(options: argparse.Namespace) -> list[trace.Trace]:
    roles = {name for role, shown in ROLES.items() for name in (role, shown) if name in options.role}
    wanted = {role for role, shown in ROLES.items() if {role, shown} & roles}
    folder = options.corpus or trace.CORPUS
    corpus = [trace.load(folder)] if folder.is_file() else trace.load_corpus(folder)
    if options.corpus:  # the shipped one is checked by the tests
        for each in corpus:
            check.check(each)
    found = [
        each
        for each in trace.select(map(_replayed, corpus), options.select)
        if not wanted or each.role in wanted
    ]
    if not found:
        raise UsageError(
            "nothing was selected; PATTERN, --role; `yeto-conform list` shows what there is", NOTHING_SELECTED
        )
    return found


def _replayed(each: trace.Trace) -> trace.Trace:
    """A recorded run as a case of a syncer."""
    return as_server_case(each) if each.role == "record" else each


def _run(options: argparse.Namespace) -> int:
    suts = [sut.read(each) for each in options.sut or [sut.OURS]]
    names = [each.name for each in suts]
    if len(set(names)) < len(names):
        raise UsageError(f"two of them have one name; --sut; names are {', '.join(names)}; give each its own")
    selected = [each for each in _selected(options) if each.role in ROLES]
    work: list[tuple[sut.Sut, list[trace.Trace]]] = []
    for chosen in suts:
        roles = {*chosen.roles, *(["codec"] if options.in_process else [])}
        work.append((chosen, [each for each in selected if each.role in roles]))
    if not any(traces for _, traces in work):
        raise UsageError(
            "the sut file has no role that was selected; --sut; describe the role there, or select another",
            NOTHING_SELECTED,
        )
    cuts = CUTS if options.all_cuts else tuple(options.cuts.split(","))
    if not set(cuts) <= set(CUTS):
        raise UsageError(f"there is no such cut; --cuts {options.cuts}; known are {', '.join(CUTS)}")
    progress = _Progress(quiet=options.json)
    how = runner.Options(cuts, options.jobs, options.timeout, options.in_process, progress)
    for chosen, traces in work:
        for role in {each.role for each in traces}:
            runner.check_start(chosen, role, traces, how)
    results: list[Result] = []
    for _ in range(options.repeat):
        for chosen, traces in work:
            results += runner.run(traces, chosen, how)
    progress.end()
    if options.output is not None:
        try:
            paths = report.write(options.output, results, ", ".join(names))
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror}; --output {options.output}; give a folder to write in"
            ) from None
        shown = ", ".join(map(str, paths))
    tally = matrix.counts(matrix.merged(results), strict=options.strict)
    if options.json:
        for each in results:
            say_json(report.record(each))
    else:
        say(matrix.matrices(matrix.merged(results)))
        text = show.printable(matrix.problems(results))
        say(f"\n{text}\n" if text else "")
        if options.output is not None:
            say(show.printable(f"wrote {shown}"))
        say(matrix.last_line(tally))
    if all(each.known is None and each.worst is Verdict.SKIP for each in results):
        # A shell ends with 127, too, for a command that it does not find.
        return fail("no case was played", results[0].reason, "see its command", code=NOTHING_SELECTED)
    return FAILED if tally["failed"] else 0


class _Progress:
    """A line that counts, on a terminal only."""

    def __init__(self, *, quiet: bool) -> None:
        self._done = 0
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
        return _coverage(traces, as_json=options.json)
    for each in traces:
        if options.json:
            head = {key: each.head.get(key) for key in ("id", "area", "role", "rules", "expect", "doc")}
            say_json(head)
        else:
            say(f"{each.role:7} {each.area:14} {each.id:44} {each.head['expect']:7} {', '.join(each.rules)}")
    return 0


def _coverage(traces: Sequence[trace.Trace], *, as_json: bool) -> int:
    gaps = json.loads((trace.CORPUS / "uncovered.json").read_text(encoding="utf-8"))
    for rule in pages.rule_texts():
        own = [each for each in traces if rule in each.rules]
        accept, refuse = (sum(each.head["expect"] == kind for each in own) for kind in ("accept", "refuse"))
        if as_json:
            say_json({"rule": rule, "accept": accept, "refuse": refuse, "why": gaps.get(rule)})
        else:
            why = f"  ({gaps[rule]})" if rule in gaps else ""
            say(f"{rule:44} {accept:3} accept {refuse:3} refuse{why}")
    return 0


def _show(options: argparse.Namespace) -> int:
    path = Path(options.trace)
    if path.suffix == ".jsonl":
        found = trace.load(path)
        check.check(found)
    else:
        matching = [each for each in trace.load_corpus() if each.id == options.trace]
        if not matching:
            raise UsageError(
                f"there is no case {options.trace}; TRACE; `yeto-conform list` shows what there is"
            )
        found = matching[0]
    texts = pages.rule_texts()
    if options.json:
        rules = {rule: texts.get(rule, "") for rule in found.rules}
        say_json({"head": found.head, "rules": rules, "steps": found.steps})
    else:
        say(show.printable(show.show(found, texts)))
    return 0


def _record(options: argparse.Namespace) -> int:
    if (options.pcap is None) == (options.listen is None) or (options.listen is None) != (
        options.connect is None
    ):
        raise UsageError(
            "there is nothing to record; --listen, --connect, --pcap; give the first two, or the third"
        )
    settings = dict(_setting(each) for each in options.setting)
    out: Path = options.out
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # What is recorded should not be lost in the end.
        if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
            raise UsageError(f"cannot be written; --out {out}; give the path of a file")
        recorder = Recorder(out.parent, options.redact)
        if options.pcap is not None:
            count = read_pcap(options.pcap, options.port, recorder)
        else:
            count = _serve(recorder, options)
        recorded = recorder.trace(out.stem, settings)
        trace.save(recorded, out)
    except OSError as error:
        where = error.filename or options.pcap or f"--listen {options.listen[0]}:{options.listen[1]}"
        raise UsageError(
            f"cannot record: {error.strerror or error}; {where}; give what can be read, written or connected"
        ) from None
    if options.json:
        say_json({"trace": str(out), "connections": count, "steps": len(recorded.steps)})
    else:
        say(show.printable(f"wrote {out}: {count} connections, {len(recorded.steps)} steps"))
    return 0


def _serve(recorder: Recorder, options: argparse.Namespace) -> int:
    """Pass bytes on until every connection has ended, or until a signal."""
    proxy = Proxy(recorder, options.listen, options.connect)
    try:
        host, port = proxy.address
        line = f"recording on {host}:{port}"
        if options.json:  # standard output has room for the one object only
            print(line, file=sys.stderr, flush=True)
        else:
            say(line)
            flush()
        proxy.wait_idle()
    except KeyboardInterrupt:
        pass
    finally:
        proxy.close()
    return proxy.taken


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(
            f"is not NAME=VALUE; --setting {text}; give a setting of the syncer, such as quorum=2"
        )
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _mutants(options: argparse.Namespace) -> int:
    traces = trace.load_corpus(options.corpus or trace.CORPUS)
    data, found = mutants.read(options.mutants, traces)
    chosen = [
        each
        for each in found
        if not options.select or any(fnmatchcase(each.name, pattern) for pattern in options.select)
    ]
    if not chosen:
        raise UsageError("no mutant has such a name; NAME; leave it out for all of them", NOTHING_SELECTED)
    how = runner.Options(jobs=options.jobs, timeout=options.timeout)
    tell = _tell_as_json if options.json else _tell_mutant
    clean = sut.read(options.sut or sut.OURS)
    outcomes = mutants.hunt(chosen, data, options.mutants, traces, clean, how, tell)
    escaped = [each for each in outcomes if each.caught is None]
    results = mutants.calm(chosen, traces, clean, replace(how, timeout=max(how.timeout, CLEAN_S)))
    alarms = [each for each in results if each.counts_as == "failed"]
    if options.json:
        verdicts = {each.trace.id: each.worst.value for each in results}
        say_json({"name": clean.name, "clean": True, "found": bool(alarms), "verdicts": verdicts})
    else:
        for each in alarms:
            reason = each.reason.splitlines()[0] if each.reason else ""
            say(show.printable(f"ALARM   {clean.name} is clean, and {each.trace.id} fails: {reason}"))
        right = len(results) - len(alarms)
        say(show.printable(f"clean   {clean.name:24} passes {right} of {len(results)} cases of these rules"))
        well_formed = sum(each.mutant.well_formed for each in outcomes)
        say(f"{len(outcomes)} mutants, {well_formed} of them with well-formed bytes only")
        failed = len(escaped) + bool(alarms)
        say(f"{len(outcomes) + 1 - failed} passed, {failed} failed, 0 skipped")
    return FAILED if escaped or alarms else 0


def _tell_mutant(found: mutants.Found) -> None:
    mutant, caught = found.mutant, found.caught
    if caught is None:
        verdicts = ", ".join(f"{each.trace.id} {each.worst.value}" for each in found.results)
        line = f"ESCAPED {mutant.name} ({mutant.says}) at {mutant.rule}: {verdicts}"
    else:
        line = f"found   {mutant.name:24} at {mutant.rule:42} by {caught.trace.id}"
    say(show.printable(line))
    flush()


def _tell_as_json(found: mutants.Found) -> None:
    caught = found.caught
    verdicts = {each.trace.id: each.worst.value for each in found.results}
    by = None if caught is None else caught.trace.id
    say_json({**asdict(found.mutant), "found": caught is not None, "by": by, "verdicts": verdicts})
    flush()


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "run": _run,
    "list": _list,
    "show": _show,
    "record": _record,
    "mutants": _mutants,
}
