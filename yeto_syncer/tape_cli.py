"""`yeto-tape`: what an event tape tells, as a summary, a page, line by line while it is written, or judged.

Exit codes: 0 told, or the check holds; 1 the file cannot be read or is no event tape, or the check does not
hold; 2 command-line syntax; 130 and 143 ended by SIGINT (Ctrl-C) and SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from yeto_proto.console import program
from yeto_proto.console.parser import Parser, whole

MOST: Final = 1_000_000  # learners and fragments; each of them is looked for

EXAMPLES = """\
examples:
  yeto-tape summary run/tape.jsonl             rounds, goodput, staleness, who missed what, recoveries
  yeto-tape summary --json run/tape.jsonl      the same as one JSON object
  yeto-tape report run/tape.jsonl              one HTML file with the same view as the status page
  yeto-tape follow run/tape.jsonl              a line for each record, until the run ends
  yeto-tape check --learners 4 --budget 1000 --from 240 run/tape.jsonl

yeto-tape COMMAND --help has more.

exit codes: 0 told, or the check holds; 1 the file cannot be read or is no event tape, or the check does not
hold; 2 command-line syntax; 130 / 143 ended by SIGINT (Ctrl-C) / SIGTERM
"""

EXAMPLES_OF: Final = {
    "summary": ("yeto-tape summary run.jsonl", "yeto-tape summary --json run.jsonl"),
    "report": ("yeto-tape report run.jsonl", "yeto-tape report run.jsonl --output page.html --json"),
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
    return program.dispatch(_parser, arguments, "yeto_syncer.tape_commands")


def _parser() -> Parser:
    parser = Parser(prog="yeto-tape", description="Reads the event tapes of yeto-syncer.", epilog=EXAMPLES)
    parser.add_version()
    add = parser.add_commands()

    def command(name: str, summary: str, about: str, json: str = "print one JSON object") -> Parser:
        each = add(name, summary, about, "\n  ".join(("examples:", *EXAMPLES_OF[name])))
        each.add_argument("tape", metavar="TAPE", type=Path, help="the file of --event-tape")
        each.add_argument("--json", action="store_true", help=json)
        return each

    command("summary", "what happened in a run", SUMMARY_ABOUT)
    report = command("report", "one HTML file about a run", REPORT_ABOUT)
    report.add_argument(
        "--output", metavar="FILE", type=Path, help="where the page is written (default: TAPE with .html)"
    )
    follow = command(
        "follow", "a line for each record, as it is written", FOLLOW_ABOUT, "print the records as they are"
    )
    follow.add_argument(
        "--keep", action="store_true", help="do not end with the run: wait for its next process"
    )
    forward = command("forward", "curves for TensorBoard or W&B", FORWARD_ABOUT)
    where = forward.add_mutually_exclusive_group(required=True)
    where.add_argument("--tensorboard", metavar="DIR", type=Path, help="the folder of the event files")
    where.add_argument("--wandb", metavar="PROJECT", help="the project of the run")
    forward.add_argument("--follow", action="store_true", help="go on until the run ends")
    check = command("check", "judge a learner-budget benchmark", CHECK_ABOUT)
    for flag, name, kind, about in (
        ("--learners", "M", whole(1, MOST), "number of learners"),
        ("--budget", "N", whole(1), "local steps of each learner"),
        ("--from", "C", whole(0), "global step of the cutoff's checkpoint"),
    ):
        check.add_argument(flag, metavar=name, type=kind, required=True, help=about)
    check.add_argument(
        "--fragments", metavar="F", type=whole(1, MOST), help="number of fragments (from the tape)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
