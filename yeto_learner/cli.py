"""The `yeto-learner` command.

Imports are made where they are needed: `--help` and an early Ctrl-C should not wait for numpy.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from yeto_proto.console import program
from yeto_proto.console.output import fail, flush, say, say_json
from yeto_proto.console.parser import Parser, whole
from yeto_proto.console.signals import SignalGuard

# A demo has more processes than a small machine has cores, where BLAS threads mostly wait for each other.
BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

EXAMPLES = """\
examples:
  yeto-learner demo                     a whole run on this machine, in about a minute
  yeto-learner doctor 127.0.0.1:29400   why a learner cannot join
  yeto-learner layout model.safetensors the fragments that a model is cut into

yeto-learner COMMAND --help has more.

exit codes: 0 done; 1 a promise was broken, a learner cannot join, or a file cannot be used; 2 command-line
syntax; 130 / 143 ended by SIGINT / SIGTERM
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


DOCTOR_ABOUT = """\
Looks at what can keep a learner out: name, port, protocol, MAC and version. That joins nothing, and a running
session does not notice. With --layout and --learner-id also session and profile: the HELLO of that learner is
sent, so use the id of one that is not running. The key of the MAC is taken from the environment variable
YETO_ISLAND_HMAC_KEY.
"""

DOCTOR_EXAMPLES = """\
examples:
  yeto-learner doctor 127.0.0.1:29400
  yeto-learner doctor host:29400 --layout layout.json --learner-id 2 --contract "experiment 7"

exit codes: 0 nothing was found, 1 something was, 2 the command line is wrong
"""

LAYOUT_ABOUT = """\
Prints fragments and fingerprint of a layout metadata file (JSON), or of the layout that a safetensors file
gets. Only the header of a safetensors file is read.
"""

LAYOUT_EXAMPLES = """\
examples:
  yeto-learner layout yeto-demo/layout.json
  yeto-learner layout model.safetensors --fragments 24 --pattern strided
  yeto-learner layout model.safetensors --write layout.json

exit codes: 0 printed, 1 the file cannot be used, 2 the command line is wrong
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""

    def run(guard: SignalGuard) -> int:
        options = _parser().parse_args(arguments)
        commands = {"demo": _demo, "doctor": _doctor, "layout": _layout}
        return commands[options.command](options, guard)

    return program.run(run, unread=lambda: 1)


def _parser() -> Parser:
    parser = Parser(
        prog="yeto-learner", description="The learner's side of Decoupled DiLoCo.", epilog=EXAMPLES
    )
    parser.add_version()
    command = parser.add_commands()
    _demo_flags(command("demo", "a whole run on this machine, with checks", DEMO_ABOUT, DEMO_EXAMPLES))
    _doctor_flags(command("doctor", "why a learner cannot join", DOCTOR_ABOUT, DOCTOR_EXAMPLES))
    _layout_flags(command("layout", "fragments of a model file", LAYOUT_ABOUT, LAYOUT_EXAMPLES))
    return parser


def _demo_flags(demo: Parser) -> None:
    add = demo.add_argument
    add("--quick", action="store_true", help="a shorter run: at most 20 seconds instead of 90")
    add("--output", type=Path, default=Path("yeto-demo"), metavar="DIR", help="for its files (%(default)s)")
    add("--seed", type=whole(0), default=0, help="for model and batches (default: %(default)s)")
    add("--port", type=whole(0, 65535), default=0, help="of the syncer on 127.0.0.1 (default: a free one)")
    add("--torch", action="store_true", help="train with torch instead of numpy")
    add("--json", action="store_true", help="print one JSON object at the end and nothing else")


def _doctor_flags(doctor: Parser) -> None:
    add = doctor.add_argument
    add("address", metavar="HOST:PORT", help="of the syncer")
    add("--layout", type=Path, metavar="FILE", help="layout metadata of the learner: also try its session")
    add(
        "--learner-id",
        type=whole(0, 2**32 - 1),
        metavar="N",
        help="the id of that learner; it must not be running",
    )
    add("--dtype", choices=("f32", "bf16", "q4"), default="bf16", help="on the wire (default: %(default)s)")
    add("--contract", help="session contract: a text, or 64 hexadecimal digits (default: the fingerprint)")
    add("--profile", metavar="HEX", help="syncer profile that the learner is bound to")
    add("--tls-ca", type=Path, metavar="FILE", help="use TLS, and trust the CA in this PEM file")
    add(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="certificate (PEM) that the learner shows; needs --tls-ca",
    )
    add("--tls-key", type=Path, metavar="FILE", help="its key, if that is in a file of its own")
    add("--json", action="store_true", help="print a JSON object")


def _layout_flags(layout: Parser) -> None:
    add = layout.add_argument
    add("file", type=Path, help="layout metadata (JSON) or a safetensors file")
    add("--fragments", type=whole(1), default=4, metavar="P", help="for safetensors (default: %(default)s)")
    add("--pattern", choices=("binpack", "strided"), default="binpack", help="default: %(default)s")
    add("--matrix-merge", choices=("rda", "iso"), default="rda", help="default: %(default)s")
    add("--avg-name-regex", metavar="REGEX", help="further tensors for the avg fragment")
    add("--write", type=Path, metavar="FILE", help="write the layout as metadata")
    add("--json", action="store_true", help="print a JSON object")


def _demo(options: argparse.Namespace, guard: SignalGuard) -> int:
    if options.torch and importlib.util.find_spec("torch") is None:
        return fail(
            "torch is not installed", "--torch", "install yeto[torch], or leave --torch out to use numpy"
        )
    # Before numpy is imported, and for the processes that the demo starts.
    for name in BLAS_THREADS:
        os.environ.setdefault(name, "1")
    with guard.held():  # an exception in the middle of numpy's import comes out as something else
        from yeto_learner.demo.folder import DemoError, Folder
        from yeto_learner.demo.outcome import run_demo
        from yeto_learner.demo.settings import Settings

    settings = Settings(seed=options.seed, backend="torch" if options.torch else "numpy")
    if options.quick:
        settings = settings.quick()
    try:
        return run_demo(settings, Folder(options.output), options.port, guard, as_json=options.json)
    except DemoError as error:
        return fail(str(error))


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    if options.tls_ca is None:
        return None
    context = ssl.create_default_context(cafile=options.tls_ca)
    if options.tls_cert is not None:
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: "")
    return context


def _doctor(options: argparse.Namespace, guard: SignalGuard) -> int:
    with guard.held():
        from yeto_learner.arguments import environment_key, parse_contract, parse_dtype, parse_hash
        from yeto_learner.channel import parse_address
        from yeto_learner.doctor import Patient, Verdict, examine
        from yeto_learner.layout_command import read_layout
        from yeto_proto.errors_base import YetoError
        from yeto_proto.layout import Layout

    if (options.layout is None) != (options.learner_id is None):
        return fail("--layout and --learner-id go together", "command line", "give both or neither")
    if options.tls_ca is None and (options.tls_cert or options.tls_key):
        return fail("--tls-cert and --tls-key need --tls-ca", "command line", "give the CA of the syncer")
    try:
        tls = _tls(options)
    except OSError as error:  # ssl.SSLError is one too
        what = error.strerror or str(error)
        return fail(f"cannot use the TLS files: {what}", "--tls-ca, --tls-cert", "give PEM files that fit")
    try:
        host, port = parse_address(options.address)
        contract = options.contract
        hexadecimal = (
            contract is not None and len(contract) == 64 and set(contract.lower()) <= set("0123456789abcdef")
        )
        layout = read_layout(options.layout) if options.layout else None
        if layout is not None and not isinstance(layout, Layout):
            return fail(
                "this is no layout metadata", str(options.layout), "make it with yeto-learner layout --write"
            )
        patient = Patient(
            host,
            port,
            key=environment_key(),
            layout=layout,
            learner_id=options.learner_id or 0,
            dtype=parse_dtype(options.dtype),
            contract=parse_hash(contract, "--contract") if hexadecimal else parse_contract(contract),
            profile=parse_hash(options.profile, "--profile"),
            tls=tls,
        )
    except OSError as error:
        return fail(
            f"cannot read it: {error.strerror}", str(options.layout), "give the path of layout metadata"
        )
    except (ValueError, YetoError) as error:
        return fail(str(error), "command line", "see yeto-learner doctor --help")
    findings = []
    for finding in examine(patient):
        findings.append(finding)
        if not options.json:
            say(finding)
            flush()
    good = all(finding.verdict is not Verdict.BAD for finding in findings)
    if options.json:
        rows = [
            {"subject": f.subject, "verdict": f.verdict.name.lower(), "detail": f.detail} for f in findings
        ]
        say_json({"ok": good, "findings": rows})
    return 0 if good else 1


def _layout(options: argparse.Namespace, guard: SignalGuard) -> int:
    with guard.held():
        from yeto_learner.layout_command import as_dict, describe, read_layout
        from yeto_proto.errors_base import YetoError
        from yeto_proto.layout import Layout, build_layout

    where = str(options.file)
    try:
        found = read_layout(options.file)
        if isinstance(found, Layout):
            layout = found
        else:
            layout = build_layout(
                found,
                options.fragments,
                options.pattern,
                matrix_merge=options.matrix_merge,
                avg_name_regex=options.avg_name_regex,
            )
        if options.write is not None:
            where = str(options.write)
            options.write.write_text(layout.to_json() + "\n")
    except OSError as error:
        return fail(
            error.strerror or str(error), where, "give a file that can be read, and written for --write"
        )
    except (ValueError, YetoError) as error:
        return fail(str(error), where, "give layout metadata (JSON) or a safetensors file")
    if options.json:
        say_json(as_dict(layout))
    else:
        say(describe(layout))
    return 0
