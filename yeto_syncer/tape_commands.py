"""What the subcommands of `yeto-tape` do."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from yeto_proto.console.output import complain, fail, flush, printable, say, say_json
from yeto_syncer.board import Board, state
from yeto_syncer.status_page import page
from yeto_syncer.tape_check import check
from yeto_syncer.tape_file import NotATapeError, Reader, Record, kind_of, read, tail
from yeto_syncer.tape_forward import MissingLibraryError, forward, tensorboard, wandb
from yeto_syncer.tape_summary import summarize
from yeto_syncer.tape_words import tell

__all__ = ["run"]

POLL_S: Final = 0.2  # between two looks at a tape that is being written


def run(options: argparse.Namespace) -> int:
    """Do what was asked for; the exit code."""
    try:
        return COMMANDS[options.command](options)
    except NotATapeError as error:
        complain(str(error))
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"cannot read the tape: {error.strerror or error}"
        return fail(what, str(options.tape), "give a file that can be read")


def _summary(options: argparse.Namespace) -> int:
    reader = Reader(str(options.tape))
    summary = summarize(read(options.tape, reader))
    if options.json:
        say_json({**summary.as_json(), "torn_lines": reader.torn, "unknown_records": reader.unknown})
        return 0
    for line in summary.lines():
        say(printable(line))
    for count, what in ((reader.torn, "torn line"), (reader.unknown, "record of an unknown kind")):
        if count:
            say(f"{count} {what}{'s' if count > 1 else ''} passed over")
    return 0


def _report(options: argparse.Namespace) -> int:
    board, count = Board(), 0
    for record in read(options.tape):
        board.add(record)
        count += 1
    path: Path = options.output or options.tape.with_suffix(".html")
    text = page(state(board))
    try:
        if path.exists() and path.samefile(options.tape):
            return fail("the page would replace the tape", str(path), "give another --output")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        what = f"cannot write the page: {error.strerror or error}"
        return fail(what, str(path), "give a path that can be written")
    if options.json:
        say_json({"page": str(path), "bytes": len(text.encode()), "records": count})
    else:
        say(printable(str(path)))
    return 0


def _forward(options: argparse.Namespace) -> int:
    if options.tensorboard is not None:
        place, where = tensorboard(options.tensorboard), str(options.tensorboard)
    else:
        place, where = wandb(options.wandb, options.tape.stem), options.wandb
    # The tape is read first, so that what fails from here on is its destination.
    records = _as_written(options.tape) if options.follow else iter(list(read(options.tape)))
    count = 0
    try:
        with place as sink:
            for step in forward(records, sink, follow=options.follow):
                if step is None:
                    time.sleep(POLL_S)
                else:
                    count += 1
    except MissingLibraryError as error:
        return fail(f"{error} is not installed", "yeto-tape forward", f"pip install {error}")
    except OSError as error:
        if str(error.filename) == str(options.tape):
            raise
        what = f"cannot write the curves: {error.strerror or error}"
        return fail(what, where, "give a place that can be written")
    if options.json:
        name = "tensorboard" if options.tensorboard is not None else "wandb"
        say_json({"outer_steps": count, name: where})
    else:
        say(f"forwarded {count} outer steps")
    return 0


def _check(options: argparse.Namespace) -> int:
    found = check(
        read(options.tape),
        learners=options.learners,
        budget=options.budget,
        start=getattr(options, "from"),
        fragments=options.fragments,
    )
    steps = f"{found.steps.start}..{found.steps.stop - 1}" if found.steps else "none"
    if options.json:
        say_json({"ok": not found.faults, "steps": list(found.steps), "faults": list(found.faults)})
    elif found.faults:
        for fault in found.faults:
            say(printable(fault))
    else:
        say(
            f"consolidation steps {steps}: all {options.learners} learners are in each of them, "
            f"with {options.budget} local steps"
        )
    return 1 if found.faults else 0


def _follow(options: argparse.Namespace) -> int:
    ended = False
    for record in _as_written(options.tape):
        if record is None:
            if ended and not options.keep:
                return 0
            flush()
            time.sleep(POLL_S)
            continue
        ended = kind_of(record) == "run_ended"
        say(json.dumps(record) if options.json else printable(_line(record)))
    return 0


def _as_written(path: Path) -> Iterator[Record | None]:
    if not path.exists() and path.parent.is_dir():
        print(printable(f"waiting for {path}"), file=sys.stderr, flush=True)
        while not path.exists():
            time.sleep(POLL_S)
    return tail(path, Reader(str(path)))


def _line(record: Record) -> str:
    stamp = "        "
    if "time" in record:
        stamp = time.strftime("%H:%M:%S", time.localtime(record["time"]))
    return f"{stamp}  {tell(record)}"


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "summary": _summary,
    "report": _report,
    "follow": _follow,
    "forward": _forward,
    "check": _check,
}
