"""The `yeto-learner` command.

Imports are made where they are needed: `--help` and an early Ctrl-C should not wait for numpy.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from yeto_learner.demo.signals import Interrupted, SignalGuard

# A demo has more processes than a small machine has cores, where BLAS threads mostly wait for each other.
BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

EXAMPLES = """\
examples:
  yeto-learner demo                     a whole run on this machine, in about a minute
  yeto-learner demo --quick             the same, shorter
"""

DEMO_ABOUT = """\
Starts a syncer and three learners on loopback, which train a small byte-level language model on
English text, each on its own shard. Learner 1 is killed in mid-run and comes back. Then two learners
train alone for comparison, and the run is checked against what it promises. The folder receives the
checkpoint with its .final marker, the final state, the event tape, logs and a report with plots.
"""

DEMO_EXAMPLES = """\
examples:
  yeto-learner demo --output build/demo
  yeto-learner demo --quick --json      one JSON object at the end and nothing else
  yeto-learner demo --seed 7 --torch    another model, trained with torch

exit codes:
  0    every promise was kept
  1    a promise was broken, or the run could not be finished
  2    the command line is wrong
  130  ended by SIGINT (Ctrl-C); 143 by SIGTERM. No process is left behind.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    try:
        with SignalGuard() as guard:
            options = _parser().parse_args(arguments)
            return _demo(options, guard)
    except Interrupted as interrupted:
        print(f"interrupted by {interrupted}", file=sys.stderr)
        return interrupted.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="yeto-learner",
        description="The learner's side of Decoupled DiLoCo.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('yeto')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="a whole run on this machine, with checks and a report",
        description=DEMO_ABOUT,
        epilog=DEMO_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--quick", action="store_true", help="a shorter run: at most 20 seconds instead of 90")
    demo.add_argument(
        "--output",
        type=Path,
        default=Path("yeto-demo"),
        metavar="DIR",
        help="where files go (default: %(default)s)",
    )
    demo.add_argument(
        "--seed", type=_natural, default=0, help="of the model and the batches (default: %(default)s)"
    )
    demo.add_argument(
        "--port", type=_port, default=0, help="of the syncer on 127.0.0.1 (default: a free one)"
    )
    demo.add_argument("--torch", action="store_true", help="train with torch instead of numpy")
    demo.add_argument("--json", action="store_true", help="print one JSON object at the end and nothing else")
    return parser


def _demo(options: argparse.Namespace, guard: SignalGuard) -> int:
    if options.torch and importlib.util.find_spec("torch") is None:
        return _fail(
            "torch is not installed; --torch; install yeto[torch], or leave --torch out to train with numpy"
        )

    for name in BLAS_THREADS:
        os.environ.setdefault(
            name, "1"
        )  # before numpy is imported, and for the processes that the demo starts
    from yeto_learner.demo.folder import DemoError, Folder
    from yeto_learner.demo.outcome import run_demo
    from yeto_learner.demo.settings import Settings

    settings = Settings(seed=options.seed, backend="torch" if options.torch else "numpy")
    if options.quick:
        settings = settings.quick()
    try:
        return run_demo(settings, Folder(options.output), options.port, guard, as_json=options.json)
    except DemoError as error:
        return _fail(str(error))


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is not a port: 0 to 65535")
    return value
