"""`yeto-tape`: what an event tape tells, as a summary, a page, line by line while it is written, or judged.

Exit codes: 0 told, or the check holds; 1 the file cannot be read or is no event tape, or the check does not
hold; 2 command-line syntax; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from yeto_syncer.board import Board, state
from yeto_syncer.cli import Parser
from yeto_syncer.shell.logs import complain, printable
from yeto_syncer.status_page import page
from yeto_syncer.tape_check import check
from yeto_syncer.tape_file import NotATapeError, Reader, Record, kind_of, read, tail
from yeto_syncer.tape_forward import MissingLibraryError, forward, tensorboard, wandb
from yeto_syncer.tape_summary import summarize
from yeto_syncer.tape_words import tell

__all__ = ["main", "tell"]

POLL_S: Final = 0.2  # between two looks at a tape that is being written

EXAMPLES = """\
examples:
  yeto-tape summary run/tape.jsonl             rounds, goodput, staleness, who missed what, recoveries
  yeto-tape summary --json run/tape.jsonl      the same as one JSON object
  yeto-tape report run/tape.jsonl              one HTML file with the same view as the status page
  yeto-tape follow run/tape.jsonl              a line for each record, until the run ends
  yeto-tape check --learners 4 --budget 1000 --from 240 run/tape.jsonl

yeto-tape COMMAND --help has more.

exit codes: 0 told, or the check holds; 1 the file cannot be read or is no event tape, or the check does not
hold; 2 command-line syntax; 130 ended by Ctrl-C
"""

EXAMPLES_OF: Final = {
    "summary": ("yeto-tape summary run.jsonl", "yeto-tape summary --json run.jsonl"),
    "report": ("yeto-tape report run.jsonl", "yeto-tape report run.jsonl --output page.html"),
    "follow": ("yeto-tape follow run.jsonl", "yeto-tape follow --json --keep run.jsonl"),
    "forward": (
        "yeto-tape forward run.jsonl --tensorboard logs",
        "yeto-tape forward run.jsonl --wandb my-project --follow",
    ),
    "check": ("yeto-tape check --learners 4 --budget 1000 --from 240 run.jsonl",),
}

SUMMARY_ABOUT = """\
Reads a whole event tape, that of a run that is going on too. goodput is the share of the members' answers
that were merged; the others were rejected, or lost with their attempt. A recovery is told in four phases:
detect (silence until the loss was noticed), connect (until the new HELLO), catch-up (until all fragments had
left) and answer (until its first accepted answer).
"""

REPORT_ABOUT = """\
Writes one self-contained HTML file: what the status page of the syncer shows, as far as the tape alone tells
it, at the end of the tape. Any browser opens it; it loads nothing from anywhere.
"""

FOLLOW_ABOUT = """\
Prints a line for each record that is there and for each that is appended, and ends with the run: at a
`run_ended` with nothing behind it. A tape that does not exist yet is waited for. With --json the records
themselves are printed, one a line.
"""

FORWARD_ABOUT = """\
Writes the curves of a tape as event files for TensorBoard, or sends them to Weights & Biases as one run. With
--follow it goes on until the run ends. The library must be installed; yeto itself does not need it.
"""

CHECK_ABOUT = """\
Judges the consolidation of a learner-budget benchmark. After the cutoff at step C the tape must show exactly
one round for each fragment, with consecutive steps from C + 1; in each of them all learners 0..M-1 were asked
and have answered, from the resumed version, with the local steps of the whole budget and always the same
tokens. Each fault is a line; exit 1 if there is one.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        return command(options)
    except NotATapeError as error:
        complain(str(error))
        return 1
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`). Python flushes standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        complain(
            f"cannot read the tape: {error.strerror or error}; {options.tape}; give a file that can be read"
        )
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> Parser:
    parser = Parser(
        prog="yeto-tape",
        description="Reads the event tapes of yeto-syncer.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    summary = _command(commands, "summary", "what happened in a run", SUMMARY_ABOUT, _summary)
    summary.add_argument("--json", action="store_true", help="print one JSON object")
    report = _command(commands, "report", "one HTML file about a run", REPORT_ABOUT, _report)
    report.add_argument(
        "--output", metavar="FILE", type=Path, help="where the page is written (default: TAPE with .html)"
    )
    follow = _command(commands, "follow", "a line for each record, as it is written", FOLLOW_ABOUT, _follow)
    follow.add_argument("--json", action="store_true", help="print the records as they are")
    follow.add_argument(
        "--keep", action="store_true", help="do not end with the run: wait for its next process"
    )
    sending = _command(commands, "forward", "curves for TensorBoard or W&B", FORWARD_ABOUT, _forward)
    where = sending.add_mutually_exclusive_group(required=True)
    where.add_argument("--tensorboard", metavar="DIR", type=Path, help="the folder of the event files")
    where.add_argument("--wandb", metavar="PROJECT", help="the project of the run")
    sending.add_argument("--follow", action="store_true", help="go on until the run ends")
    checking = _command(commands, "check", "judge a learner-budget benchmark", CHECK_ABOUT, _check)
    for flag, name, about in (
        ("--learners", "M", "number of learners"),
        ("--budget", "N", "local steps of each learner"),
        ("--from", "C", "global step of the cutoff's checkpoint"),
    ):
        checking.add_argument(flag, metavar=name, type=_count, required=True, help=about)
    checking.add_argument("--fragments", metavar="F", type=_count, help="number of fragments (from the tape)")
    checking.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _command(
    commands: argparse._SubParsersAction[Parser],
    name: str,
    summary: str,
    about: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=about,
        epilog="\n  ".join(("examples:", *EXAMPLES_OF[name])),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("tape", metavar="TAPE", type=Path, help="the file of --event-tape")
    parser.set_defaults(run=run)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


class _Version(argparse.Action):
    """Looks the version up when it is asked for: that takes longer than everything else here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"{parser.prog} {version('yeto')}")
        parser.exit()


# -- commands ------------------------------------------------------------------------------------------------


def _summary(options: argparse.Namespace) -> int:
    reader = Reader(str(options.tape))
    summary = summarize(read(options.tape, reader))
    if options.json:
        print(json.dumps({**summary.as_json(), "torn_lines": reader.torn, "unknown_records": reader.unknown}))
        return 0
    for line in summary.lines():
        print(printable(line))
    for count, what in ((reader.torn, "torn line"), (reader.unknown, "record of an unknown kind")):
        if count:
            print(f"{count} {what}{'s' if count > 1 else ''} passed over")
    return 0


def _report(options: argparse.Namespace) -> int:
    board = Board()
    for record in read(options.tape):
        board.add(record)
    path: Path = options.output or options.tape.with_suffix(".html")
    if path == options.tape:
        complain(f"the page would replace the tape; {path}; give another --output")
        return 1
    try:
        path.write_text(page(state(board)), encoding="utf-8")
    except OSError as error:
        complain(f"cannot write the page: {error.strerror or error}; {path}; give a path that can be written")
        return 1
    print(path)
    return 0


def _forward(options: argparse.Namespace) -> int:
    if options.tensorboard is not None:
        place = tensorboard(options.tensorboard)
    else:
        place = wandb(options.wandb, options.tape.stem)
    records = _as_written(options.tape) if options.follow else iter(list(read(options.tape)))
    count = 0
    try:
        with place as sink:
            for step in forward(records, sink, follow=options.follow):
                if step < 0:
                    time.sleep(POLL_S)
                else:
                    count += 1
    except MissingLibraryError as error:
        complain(f"{error} is not installed; yeto-tape forward; pip install {error}")
        return 1
    print(f"forwarded {count} outer steps")
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
        print(json.dumps({"ok": not found.faults, "steps": list(found.steps), "faults": list(found.faults)}))
    elif found.faults:
        for fault in found.faults:
            print(printable(fault))
    else:
        print(
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
            sys.stdout.flush()
            time.sleep(POLL_S)
            continue
        ended = kind_of(record) == "run_ended"
        print(json.dumps(record) if options.json else printable(_line(record)))
    return 0


def _as_written(path: Path) -> Iterator[Record | None]:
    if not path.exists() and path.parent.is_dir():
        print(f"waiting for {path}", file=sys.stderr, flush=True)
        while not path.exists():
            time.sleep(POLL_S)
    return tail(path, Reader(str(path)))


def _line(record: Record) -> str:
    stamp = "        "
    if "time" in record:
        stamp = time.strftime("%H:%M:%S", time.localtime(record["time"]))
    return f"{stamp}  {tell(record)}"


if __name__ == "__main__":
    sys.exit(main())
