"""`yeto-checkpoint`: the command line of the tools for checkpoints, final states and markers.

Exit codes: 0 done, whole, equal; 1 the file cannot be read or is not whole, the files differ, or nothing was
written; 2 command-line syntax; 130 and 143 ended by SIGINT and SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yeto_syncer.cli import Parser
from yeto_syncer.early import open_streams
from yeto_syncer.shell.logs import complain, printable

if TYPE_CHECKING:
    from yeto_syncer.checkpoint.naming import Source

EXAMPLES = """\
examples:
  yeto-checkpoint inspect run/state.ckpt                     what it says about itself, in an instant
  yeto-checkpoint verify run/state.ckpt                      read all of it and say what is wrong, and where
  yeto-checkpoint export run/state.ckpt --layout layout.json --output model.safetensors
  yeto-checkpoint diff run/state.ckpt backup/state.ckpt      1 when they differ
  yeto-checkpoint hash run/state.ckpt                        SHA-256 of the file and of its parameters
  yeto-checkpoint migrate old.ckpt --output new.ckpt --fingerprint HEX --iso-backend scalar

All read checkpoints V1, V2 and V3, final states (--final-state) and final markers (.final). Memory stays
under 256 MiB, however large the file is. yeto-checkpoint COMMAND --help has more.

exit codes: 0 done, whole or equal; 1 the file cannot be read or is not whole, the files differ, or nothing
was written; 2 command-line syntax; 130 / 143 ended by SIGINT / SIGTERM
"""

INSPECT_ABOUT = """\
Prints version, iso backend, layout fingerprint, session contract, global step, fragments, ledger and trailer,
and whether the final marker belongs to the checkpoint. Values are skipped: use verify to read them.
"""

VERIFY_ABOUT = """\
Reads the whole file and prints each fault with its byte offset, its field, what was expected and what is
there: lengths, magic, versions that do not follow from the step, values that are not finite, a learner twice
in the ledger, fingerprints that differ, a marker of another step. With --layout, --fingerprint, --contract
and --iso-backend also what a resume would refuse. A checkpoint carries no checksum: a flipped bit that leaves
a number a number is found only by comparing with a digest that was kept (yeto-checkpoint hash).
"""

EXPORT_ABOUT = """\
Writes the parameters as named f32 tensors: safetensors or npz, by the ending of --output. --layout is a
layout file (the learners' layout.json, or one of yeto-learner layout --write), or the safetensors model that
training started from; for a model, --fragments, --pattern, --matrix-merge and --avg-name-regex say how the
learners dealt it out. A V3 file proves that the layout is its own. V1, V2 and final states do not: sizes are
compared, and a warning says so. The output is written whole or not at all.
"""

DIFF_ABOUT = """\
Compares two files: settings, versions, ledgers, and every value bit by bit. With a final state on one side
only the parameters are compared. Exit 1 when something differs.
"""

MIGRATE_ABOUT = """\
Writes a V1 or V2 checkpoint as V3, which a syncer can resume. The file cannot prove its layout (nor, in V1,
its iso backend): both are taken from the command line, and nothing checks them against the training that made
the file. The layout fingerprint is what yeto-learner layout prints. Without --contract the new file resumes
only a session that has no contract of its own. The final marker stays with the old file.
"""

HASH_ABOUT = """\
Prints SHA-256 digests: of the file, of the parameters of all fragments, of the momentum, and of each
fragment. The parameters of a checkpoint and of the final state of one run have the same digest.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    open_streams()
    # An unfinished output is removed on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = _parser().parse_args(arguments)
    try:
        code = _guarded(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`). Python flushes standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _guarded(options: argparse.Namespace) -> int:
    from yeto_proto.errors_base import YetoError
    from yeto_syncer.checkpoint import migrate, named
    from yeto_syncer.checkpoint.contents import NotAFileError, NoValuesError

    where = str(options.file)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except _RefusedError as error:
        return _fail(*error.args)
    except BrokenPipeError:
        raise
    except (NotAFileError, NoValuesError) as error:
        return _fail(str(error), where, "give a checkpoint or a final state")
    except named.CannotNameError as error:
        return _fail(str(error), "--output", "choose the other format")
    except migrate.CannotMigrateError as error:
        return _fail(str(error), where, error.fix)
    except YetoError as error:
        return _fail(str(error), where, "yeto-checkpoint verify tells all that is wrong with a file")
    except OSError as error:
        what = error.strerror or str(error)
        return _fail(what, str(error.filename or where), "give paths that can be read and written")


class _RefusedError(Exception):
    """What, where, what to do."""

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(what, where, fix)


def _fail(what: str, where: str, fix: str) -> int:
    complain(f"{what}; {where}; {fix}")
    return 1


def _say(text: str) -> None:
    print(printable(text))


# -- commands ------------------------------------------------------------------------------------------------


def _inspect(options: argparse.Namespace) -> int:
    from yeto_syncer.checkpoint import inspect

    about = inspect.describe(options.file)
    if options.json:
        sys.stdout.writelines(inspect.as_json(about))
        print()
        return 0
    for line in inspect.lines(about):
        _say(line)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from yeto_proto._generated.errors import WireError
    from yeto_syncer.checkpoint.progress import bar
    from yeto_syncer.checkpoint.verify import Wanted, verify

    layout = None
    if options.layout is not None:
        # A file whose head cannot be read is judged without a layout.
        with contextlib.suppress(WireError):
            layout = _layout(_source(options), options.file)
    fingerprint = options.fingerprint
    if layout is not None:
        if fingerprint is not None and fingerprint != layout.fingerprint():
            raise _RefusedError(
                "this is not the fingerprint of the layout", "--fingerprint", "leave one of them out"
            )
        fingerprint = layout.fingerprint()
    wire = None if layout is None else layout.wire()
    with bar("verifying") as progress:
        verdict = verify(
            options.file, Wanted(wire, fingerprint, options.contract, _backend(options)), progress
        )
    if options.json:
        print(json.dumps(verdict.as_dict()))
    else:
        if verdict.about:
            _say(f"{options.file}: {verdict.about}")
        for fault in verdict.faults:
            _say(f"fault: {fault.line()}")
        for note in verdict.notes:
            _say(f"note: {note}")
        if not verdict.faults:
            _say("whole: no fault was found")
    if not verdict.faults:
        return 0
    first, count = verdict.faults[0], len(verdict.faults)
    return _fail(
        f"{count} fault{'s' if count > 1 else ''}, the first is {first.line()}",
        str(options.file),
        "go back to a copy that is whole, or give the layout and contract of its own run",
    )


def _export(options: argparse.Namespace) -> int:
    from yeto_syncer.checkpoint.export import export
    from yeto_syncer.checkpoint.named import FORMATS
    from yeto_syncer.checkpoint.progress import bar

    output: Path = options.output
    if output.suffix not in FORMATS:
        raise _RefusedError(
            f"{output.suffix or 'no ending'} is no format", "--output", f"end it with {' or '.join(FORMATS)}"
        )
    _may_write(options)
    source = _source(options)
    _layout(source, options.file)  # its mistakes are told before anything is written
    with bar("exporting") as progress:
        done = export(options.file, source, output, momentum=options.momentum, progress=progress)
    if not done.proven:
        print(
            f"warning: a {done.kind} cannot prove this layout: only the sizes were compared",
            file=sys.stderr,
        )
    if options.json:
        about = {"output": str(output), "tensors": done.tensors, "numel": done.numel}
        print(json.dumps({**about, "global_step": done.global_step, "layout_proven": done.proven}))
    else:
        step = "" if done.global_step is None else f" of global step {done.global_step}"
        _say(f"wrote {output}: {done.tensors} tensors, {done.numel:,} f32 values{step}")
    return 0


def _diff(options: argparse.Namespace) -> int:
    from yeto_syncer.checkpoint.diff import diff
    from yeto_syncer.checkpoint.progress import bar

    with bar("comparing") as progress:
        found = diff(options.file, options.other, progress)
    if options.json:
        print(json.dumps(found.as_dict()))
    elif found.equal:
        _say(f"equal: compared was {found.compared}")
    else:
        for line in found.lines():
            _say(line)
    return 0 if found.equal else 1


def _migrate(options: argparse.Namespace) -> int:
    from yeto_syncer.checkpoint.inspect import backend_name
    from yeto_syncer.checkpoint.migrate import Supplied, migrate
    from yeto_syncer.checkpoint.progress import bar
    from yeto_syncer.shell.lockfile import LockHeldError

    _may_write(options)
    supplied = Supplied(options.fingerprint, _backend(options), options.contract)
    try:
        with bar("migrating") as progress:
            done = migrate(options.file, options.output, supplied, progress)
    except LockHeldError as error:
        raise _RefusedError(str(error.strerror), "--output", "end that process, or choose another") from None
    backend = backend_name(done.head.iso_backend)
    by_hand = ["layout fingerprint", *(["iso backend"] if done.backend_by_hand else [])]
    contract = done.trailer.contract
    if contract is not None and done.contract_by_hand:
        by_hand.append("session contract")
    if options.json:
        about = {"output": str(options.output), "from_version": int(done.source), "iso_backend": backend}
        print(json.dumps({**about, "global_step": done.head.global_step, "supplied_by_hand": by_hand}))
        return 0
    _say(f"wrote {options.output}: V3, global step {done.head.global_step}, iso backend {backend}")
    _say(f"supplied by hand, and checked by nothing: {' and '.join(by_hand)}")
    if contract is None:
        _say("it has no session contract: only a session without one of its own can resume it")
    return 0


def _hash(options: argparse.Namespace) -> int:
    from yeto_syncer.checkpoint.digests import digests
    from yeto_syncer.checkpoint.progress import bar

    with bar("hashing") as progress:
        found = digests(options.file, progress)
    if options.json:
        print(json.dumps(found.as_dict()))
    else:
        for line in found.lines():
            _say(line)
    return 0


# -- what options mean ---------------------------------------------------------------------------------------


def _source(options: argparse.Namespace) -> Source:
    from yeto_syncer.checkpoint.naming import Source

    return Source(
        options.layout, options.fragments, options.pattern, options.matrix_merge, options.avg_name_regex
    )


def _layout(source: Source, path: Path) -> Any:
    """The layout for this checkpoint; every mistake in its file is a refusal."""
    from yeto_proto._generated.errors import BadArgument
    from yeto_syncer.checkpoint.contents import count_fragments

    fix = "give a layout file (JSON) or the safetensors model"
    try:
        return source.layout(lambda: count_fragments(path))
    except (ValueError, BadArgument) as error:
        raise _RefusedError(str(error), str(source.path), fix) from None


def _backend(options: argparse.Namespace) -> Any:
    from yeto_proto._generated.types import IsoBackend

    return None if options.iso_backend is None else IsoBackend[options.iso_backend.upper().replace("-", "_")]


def _may_write(options: argparse.Namespace) -> None:
    from yeto_proto.files import temporary_path
    from yeto_syncer.shell import storage

    output: Path = options.output
    for path in (output, temporary_path(output)):
        if path.exists() and not options.force:
            raise _RefusedError(f"{path} is there already", "--output", "choose another, or give --force")
        trouble = storage.problem(path)
        if trouble is not None:
            raise _RefusedError(f"cannot write {path}: {trouble}", "--output", "choose another")


# -- the parser ----------------------------------------------------------------------------------------------


def _parser() -> Parser:
    parser = Parser(
        prog="yeto-checkpoint",
        description="Looks into the files of a run: checkpoints, final states, final markers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(commands, "inspect", "what a file says about itself", INSPECT_ABOUT, _inspect)
    verify = _command(commands, "verify", "say what is wrong with a file, and where", VERIFY_ABOUT, _verify)
    _layout_flags(verify, required=False)
    verify.add_argument("--fingerprint", metavar="HEX", type=_digest, help="layout fingerprint it must have")
    verify.add_argument("--contract", metavar="HEX", type=_digest, help="session contract it must have")
    _backend_flag(verify, "iso backend it must have")
    export = _command(commands, "export", "write the parameters as named tensors", EXPORT_ABOUT, _export)
    _layout_flags(export, required=True)
    _output_flags(export, "a new .safetensors or .npz file")
    export.add_argument("--momentum", action="store_true", help="the momentum in place of the parameters")
    diff = _command(commands, "diff", "compare two files", DIFF_ABOUT, _diff)
    diff.add_argument("other", metavar="OTHER", type=Path, help="the second file")
    migrate = _command(commands, "migrate", "write a V1 or V2 checkpoint as V3", MIGRATE_ABOUT, _migrate)
    _output_flags(migrate, "the new checkpoint")
    migrate.add_argument(
        "--fingerprint", metavar="HEX", type=_digest, required=True, help="layout fingerprint, 64 digits"
    )
    _backend_flag(migrate, "what V1 does not record")
    migrate.add_argument("--contract", metavar="HEX", type=_digest, help="session contract, 64 digits")
    _command(commands, "hash", "SHA-256 digests of a file and of its values", HASH_ABOUT, _hash)
    return parser


def _command(
    commands: argparse._SubParsersAction[Parser],
    name: str,
    summary: str,
    about: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    lines = [line for line in EXAMPLES.splitlines() if line.startswith(f"  yeto-checkpoint {name} ")]
    parser = commands.add_parser(
        name,
        help=summary,
        description=about,
        epilog="\n".join(["example:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a checkpoint, final state or final marker")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)
    return parser


def _layout_flags(parser: argparse.ArgumentParser, *, required: bool) -> None:
    add = parser.add_argument
    add(
        "--layout", metavar="FILE", type=Path, required=required, help="a layout file, or a safetensors model"
    )
    add("--fragments", metavar="P", type=_count, help="of the learners, for a model (that of the checkpoint)")
    add("--pattern", choices=("binpack", "strided"), default="binpack", help="for a model (%(default)s)")
    add("--matrix-merge", choices=("rda", "iso"), default="rda", help="for a model (%(default)s)")
    add("--avg-name-regex", metavar="REGEX", help="for a model: further tensors of the avg fragment")


def _output_flags(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--output", metavar="FILE", type=Path, required=True, help=about)
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def _backend_flag(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--iso-backend", choices=("scalar", "torch-svd"), help=about)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def _digest(text: str) -> bytes:
    from yeto_proto._generated.constants import HASH_BYTES

    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != HASH_BYTES or len(text) != 2 * HASH_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not {2 * HASH_BYTES} hexadecimal digits")
    return digest


class _Version(argparse.Action):
    """Looks the version up when it is asked for: that takes longer than everything else here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"{parser.prog} {version('yeto')}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
