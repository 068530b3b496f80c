"""`yeto-conform`: the command line.

Exit codes: 0 all as it should be; 1 failures; 2 bad arguments, sut file or trace; 3 the implementation would
not start; 5 nothing was selected or all was skipped; 130 and 143 ended by SIGINT and SIGTERM.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from yeto_proto.console import program
from yeto_proto.console.parser import Parser, positive_seconds, whole

from .names import CUTS, REDACTIONS, ROLES

__all__ = ["main"]

FAILED: Final = 1
BAD_ARGUMENTS: Final = 2
NOT_STARTED: Final = 3
NOTHING_SELECTED: Final = 5

JOBS: Final = 256  # cases at a time, each of which may start a process

EXAMPLES: Final = """
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
start; 5 nothing was selected, or all was skipped; 130 / 143 ended by SIGINT / SIGTERM
"""


EXAMPLES_OF: Final = {
    "run": ("yeto-conform run", "yeto-conform run --sut sut.yaml --role codec 'heartbeat.*' --output report"),
    "list": ("yeto-conform list", "yeto-conform list chunks --json", "yeto-conform list --coverage"),
    "show": ("yeto-conform show run-two-steps", "yeto-conform show run.jsonl --json"),
    "record": (
        "yeto-conform record --listen 127.0.0.1:29401 --connect 127.0.0.1:29400 --out run.jsonl",
        "yeto-conform record --pcap run.pcap --port 29400 --out run.jsonl",
    ),
    "mutants": ("yeto-conform mutants", "yeto-conform mutants 'push-*' --json"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    # A verdict that nobody read (`| head`) is no success.
    told = ("list", "show", "")
    return program.dispatch(
        _parser,
        arguments,
        "yeto_proto.conform.commands",
        unread=lambda command: 0 if command in told else FAILED,
    )


def _parser() -> Parser:
    parser = Parser(
        prog="yeto-conform",
        description="Grade an implementation of the protocol, in any language.",
        epilog=EXAMPLES,
    )
    parser.add_version()
    add = parser.add_commands()

    def command(name: str, summary: str, json: str) -> Parser:
        each = add(
            name,
            summary,
            f"{summary[0].upper()}{summary[1:]}.",
            "\n  ".join(("examples:", *EXAMPLES_OF[name])),
        )
        each.add_argument("--json", action="store_true", help=json)
        return each

    _run_flags(command("run", "run cases and report", "print results.jsonl instead of tables"))
    listing = command("list", "list cases", "one object a line")
    _selection(listing)
    listing.add_argument("--coverage", action="store_true", help="list rules with their cases instead")
    showing = command("show", "print a case or a recorded trace for people", "print one JSON object")
    showing.add_argument("trace", metavar="TRACE", help="the id of a case, or a file")
    _record_flags(
        command("record", "record what learners and a syncer say to each other", "print one JSON object")
    )
    judging = command(
        "mutants", "check that every mutant is found at the rule that it breaks", "one object a line"
    )
    judging.add_argument("select", nargs="*", metavar="NAME", help="mutants, with * and ?")
    judging.add_argument(
        "--mutants",
        type=Path,
        metavar="FILE",
        default=Path("tests/conform/mutants/mutants.yaml"),
        help="their list (default: %(default)s, of a checkout)",
    )
    judging.add_argument(
        "--sut", type=Path, metavar="FILE", help="the clean implementation (default: this one)"
    )
    judging.add_argument(
        "--corpus", type=Path, metavar="DIR", help="a folder of traces (default: the shipped one)"
    )
    _pace(judging, 8.0, "seconds that a step may take, also one with a longer `within`")
    return parser


def _selection(parser: Parser) -> None:
    parser.add_argument("select", nargs="*", metavar="PATTERN", help="ids, areas or rules, with * and ?")
    parser.add_argument(
        "--role",
        action="append",
        choices=list(dict.fromkeys([*ROLES.values(), *ROLES])),
        default=[],
        help="one side only",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="DIR",
        help="a folder of traces, or a recorded trace (default: the shipped one)",
    )


def _run_flags(parser: Parser) -> None:
    _selection(parser)
    parser.add_argument(
        "--sut",
        type=Path,
        action="append",
        metavar="FILE",
        help="the implementation (default: this one); give it again for more of them in one report",
    )
    parser.add_argument("--in-process", action="store_true", help="call this package's codec directly")
    parser.add_argument(
        "--cuts",
        default="recorded,coalesced",
        metavar="CUT,CUT",
        help=f"how bytes are cut: any of {', '.join(CUTS)} (default: recorded,coalesced)",
    )
    parser.add_argument("--all-cuts", action="store_true", help="every cut")
    _pace(parser, 20.0)
    parser.add_argument(
        "--repeat", type=whole(1), default=1, metavar="N", help="run everything so many times"
    )
    parser.add_argument("--strict", action="store_true", help="count a loose verdict as a failure")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for results.jsonl, junit.xml and index.html"
    )


def _pace(
    parser: Parser,
    timeout: float,
    means: str = "seconds that a step may take, unless its case allows more by `within`",
) -> None:
    parser.add_argument(
        "--jobs", type=whole(1, JOBS), default=2, metavar="N", help="cases at a time (default: 2)"
    )
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=timeout,
        metavar="S",
        help=f"{means} (default: {timeout:g})",
    )


def _record_flags(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--listen",
        metavar="HOST:PORT",
        type=_address,
        help="where learners connect; port 0 takes a free one",
    )
    add("--connect", metavar="HOST:PORT", type=_address, help="the syncer")
    add("--pcap", type=Path, metavar="FILE", help="read a libpcap file of plain TCP instead")
    add(
        "--port",
        type=whole(1, 65535),
        default=29400,
        metavar="PORT",
        help="the syncer's port in the pcap (default: 29400)",
    )
    add("--out", type=Path, required=True, metavar="FILE", help="the trace; long bytes go to blobs beside it")
    add("--redact", choices=REDACTIONS, default="none", help="leave tensor bytes out")
    add("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the syncer, for a replay")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        raise argparse.ArgumentTypeError("must be HOST:PORT")
    return host.strip("[]"), whole(0, 65535)(port)


if __name__ == "__main__":
    sys.exit(main())
