"""`yeto-syncer plan`: the command line of the planner."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from yeto_proto import Layout, YetoError
from yeto_proto._generated.constants import HELLO_MAX
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_proto.console.output import fail, put
from yeto_proto.console.parser import Parser
from yeto_syncer.cli import add_setting, typed
from yeto_syncer.core.config import DELTA_CORRECTIONS, FOLDS
from yeto_syncer.planner import rates as measuring
from yeto_syncer.planner import units
from yeto_syncer.planner.model import VALUE, Item, Need, Plan, Rates, even_fragments, plan
from yeto_syncer.shell.run import merge_threads
from yeto_syncer.shell.settings import BY_NAME

EXAMPLES: Final = """\
examples:
  a model of 120 billion parameters:
    yeto-syncer plan --parameters 120e9 --learners 8 --dtype bf16 --link 50Gbit --fragments 32
  a model whose layout file exists, learners on slower links, one inner step in half a second:
    yeto-syncer plan --layout layout.json --learners 4 --link 10Gbit --learner-link 1Gbit --step-seconds 0.5
  another machine: give its rates instead of measuring this one
    yeto-syncer plan --parameters 7B --learners 4 --link 10Gbit --disk-rate 1.2GB/s --merge-rate 8GB/s

Merging, encoding, disk and a loopback connection are measured on this machine with the syncer's own code, in
about five seconds. A rate that is given is not measured.

exit codes: 0 planned; 1 a layout file or folder that cannot be used; 2 command-line syntax
"""

FRAGMENTS: Final = 4

MOST_FRAGMENTS: Final = HELLO_MAX // 13
"""Each takes 13 bytes of a HELLO at least."""

SHARED: Final = (
    "pipeline",
    "fold",
    "checkpoint_every",
    "background_checkpoint",
    "sync_interval_steps",
    "delta_correction",
    "merge_threads",
)
"""Settings of the server that change what a run needs; same names, same defaults."""


@dataclass(frozen=True, slots=True)
class Option:
    """One flag of the planner's own."""

    flag: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    required: bool = False


MODEL: Final = (
    Option("--fragments", units.count, "F", "Fragments of --parameters. (default: 4)"),
    Option("--learners", units.count, "M", "Learners. (required)", required=True),
    Option("--step-seconds", units.seconds, "TIME", "One inner step of the slowest learner."),
)
LINKS: Final = (
    Option(
        "--link", units.rate, "RATE", "Of the syncer, such as 50Gbit or 1.2GB/s. (required)", required=True
    ),
    Option("--learner-link", units.rate, "RATE", "Of one learner. (default: --link)"),
)
MACHINE: Final = (
    Option("--merge-rate", units.rate, "RATE", "f32 bytes of all answers that are merged a second."),
    Option("--encode-rate", units.rate, "RATE", "f32 bytes of broadcasts that are encoded a second."),
    Option("--disk-rate", units.rate, "RATE", "Bytes that are written and synced a second."),
    Option("--socket-rate", units.rate, "RATE", "Bytes that one connection moves a second at best."),
)


def build_parser() -> Parser:
    """The parser of `yeto-syncer plan`."""
    parser = Parser(
        prog="yeto-syncer plan",
        description="What a run needs in memory, disk, bytes and seconds, and what binds it.",
        epilog=EXAMPLES,
    )
    model = parser.add_argument_group("the model and the fleet")
    size = model.add_mutually_exclusive_group(required=True)
    size.add_argument(
        "--parameters", type=typed(units.count), metavar="N", help="Parameters, such as 120e9 or 7B."
    )
    size.add_argument("--layout", metavar="FILE", help="A layout file, for its exact fragments.")
    dtypes = [each.name.lower() for each in Dtype]
    model.add_argument("--dtype", choices=dtypes, default="bf16", help="Of the session. (default: bf16)")
    model.add_argument(
        "--merge", choices=("avg", "rda"), default="rda", help="Merge that is measured. (default: rda)"
    )
    _add(model, MODEL)
    _add(parser.add_argument_group("links, each way"), LINKS)
    machine = parser.add_argument_group("rates of the syncer's machine (measured here unless given)")
    _add(machine, MACHINE)
    machine.add_argument(
        "--folder", default=".", metavar="DIR", help="Where the disk is measured. (default: the current one)"
    )
    shared = parser.add_argument_group("settings of the server")
    for name in SHARED:
        add_setting(shared, BY_NAME[name], default=BY_NAME[name].default)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    return parser


def _add(group: argparse._ArgumentGroup, options: Sequence[Option]) -> None:
    for option in options:
        group.add_argument(
            option.flag,
            type=typed(option.parse),
            metavar=option.metavar,
            required=option.required,
            help=option.help,
        )


def main(argv: Sequence[str]) -> int:
    """Plan a run and print it; returns the exit code."""
    parser = build_parser()
    given = parser.parse_args(argv)
    if given.layout is not None and given.fragments is not None:
        parser.error("--fragments goes with --parameters: a layout file has its own")
    if given.parameters is not None and (given.fragments or FRAGMENTS) > given.parameters:
        parser.error(f"--fragments must be at most --parameters, got {given.fragments or FRAGMENTS}")
    if given.fragments is not None and given.fragments > MOST_FRAGMENTS:
        parser.error(f"--fragments must be at most {MOST_FRAGMENTS}: a HELLO has no room for more")
    for name in ("pipeline", "merge_threads"):
        if getattr(given, name) == 0:
            parser.error(f"{BY_NAME[name].flag} must be at least 1")
    if not 0 <= given.sync_interval_steps <= units.MOST:
        parser.error(f"--sync-interval-steps must be a number from 0 to {units.MOST:.0e}")
    for name, values in (("fold", FOLDS), ("delta_correction", DELTA_CORRECTIONS)):
        if getattr(given, name) not in values:
            parser.error(f"{BY_NAME[name].flag} must be one of {', '.join(values)}")
    try:
        need = _need(given)
    except OSError as error:
        return fail(f"cannot read the layout: {error.strerror}; {given.layout}; give a file that can be read")
    except (YetoError, UnicodeDecodeError) as error:
        return fail(f"not a layout file: {error}; {given.layout}; write one with yeto-learner layout")
    try:
        rates = _rates(given)
    except OSError as error:
        return fail(
            f"cannot measure the disk: {error.strerror}; --folder {given.folder}; give a folder to write in"
        )
    result = plan(need, rates)
    if given.json:
        return put(json.dumps(_document(need, rates, result), indent=1))
    return put("\n".join(_lines(need, rates, result)))


def _need(given: argparse.Namespace) -> Need:
    iso = 0
    if given.layout is None:
        numels = even_fragments(given.parameters, given.fragments or FRAGMENTS)
    else:
        layout = Layout.from_json(Path(given.layout).read_text(encoding="utf-8"))
        numels = tuple(fragment.numel for fragment in layout.fragments)
        iso = sum(fragment.merge_mode is MergeMode.ISO for fragment in layout.fragments)
    return Need(
        numels=numels,
        learners=given.learners,
        dtype=Dtype[given.dtype.upper()],
        link=given.link,
        learner_link=given.learner_link or given.link,
        pipeline=given.pipeline,
        on_arrival=given.fold == "on-arrival",
        checkpoint_every=given.checkpoint_every,
        background=given.background_checkpoint,
        interval=given.sync_interval_steps,
        step_seconds=given.step_seconds,
        iso_fragments=iso,
    )


def _rates(given: argparse.Namespace) -> Rates:
    dtype, mode = Dtype[given.dtype.upper()], MergeMode[given.merge.upper()]
    threads, correction = merge_threads(given.merge_threads), given.delta_correction != "none"

    def merging() -> float:
        return VALUE * measuring.merge_rate(given.learners, dtype, mode, correction, threads)

    work: dict[str, Callable[[], float]] = {
        "merge": merging,
        "encode": lambda: measuring.encode_rate(dtype, threads),
        "disk": lambda: measuring.disk_rate(Path(given.folder)),
        "socket": measuring.socket_rate,
    }
    known = {name: getattr(given, f"{name}_rate") for name in work}
    for name in _watched([name for name in work if not known[name]]):
        known[name] = work[name]()
    return Rates(**{**known, "merge": known["merge"] / VALUE})


def _watched(names: Sequence[str]) -> Iterator[str]:
    """The names one after the other, with a bar for whoever waits at a terminal."""
    if not names or not sys.stderr.isatty():
        yield from names
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(names))
        for name in names:
            bar.update(task, description=f"measuring: {name}")
            yield name
            bar.advance(task)


def _document(need: Need, rates: Rates, result: Plan) -> dict[str, Any]:
    """The plan for machines: bytes, seconds and bytes a second."""
    encode = None if math.isinf(rates.encode) else rates.encode
    return {
        "parameters": need.parameters,
        "fragments": len(need.numels),
        "rates": {**asdict(rates), "merge": rates.merge * VALUE, "encode": encode},
        **asdict(result),
        "memory_total": result.memory_total,
        "disk_total": result.disk_total,
        "synchronisation": result.period * len(need.numels),
    }


def _lines(need: Need, rates: Rates, result: Plan) -> Iterator[str]:
    fragments = len(need.numels)
    yield (
        f"{need.parameters:,} parameters in {fragments} fragments, {need.learners} learners, "
        f"{need.dtype.name.lower()}, link {units.show_rate(need.link)} each way"
    )
    yield from _table("Memory of the syncer", result.memory, units.show_bytes, result.memory_total)
    yield from _table("Memory of a learner, beside its model", result.learner_memory, units.show_bytes)
    yield from _table("Disk of the syncer", result.disk, units.show_bytes, result.disk_total)
    yield from _table("Bytes on the wire", result.wire, units.show_bytes)
    yield from _table("Seconds, once", result.once, units.show_seconds)
    yield from _table("Seconds, a round", result.round, units.show_seconds)
    yield ""
    yield f"A round every {units.show_seconds(result.period)}; what binds: {result.binds}."
    yield f"The whole model is synchronised in {units.show_seconds(result.period * fragments)}."
    if result.step_interval is not None:
        yield f"Training asks for a round every {units.show_seconds(result.step_interval)}."
    for note in result.notes:
        yield f"note: {note}"
    yield ""
    known = [
        ("merge", rates.merge * VALUE),
        ("encode", rates.encode),
        ("disk", rates.disk),
        ("socket", rates.socket),
    ]
    told = ", ".join(f"{name} {units.show_rate(value)}" for name, value in known if math.isfinite(value))
    yield f"Rates of this machine, measured or given: {told}."


def _table(
    title: str, items: Sequence[Item], show: Callable[[float], str], total: float | None = None
) -> Iterator[str]:
    yield ""
    yield title
    rows = [(item.name, show(item.value), item.why) for item in items]
    if total is not None:
        rows.append(("together", show(total), ""))
    names, values = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    for name, value, why in rows:
        yield f"  {name:<{names}}  {value:>{values}}  {why}".rstrip()
