"""What the subcommands of `yeto-checkpoint` do."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from yeto_proto._generated.errors import BadArgument, WireError
from yeto_proto._generated.types import IsoBackend
from yeto_proto.console.output import fail, printable, say, say_json, say_parts
from yeto_proto.errors_base import YetoError
from yeto_proto.files import temporary_path
from yeto_proto.layout import Layout
from yeto_syncer.checkpoint import inspect
from yeto_syncer.checkpoint.contents import NotAFileError, NoValuesError, count_fragments
from yeto_syncer.checkpoint.diff import diff
from yeto_syncer.checkpoint.digests import digests
from yeto_syncer.checkpoint.export import export
from yeto_syncer.checkpoint.migrate import CannotMigrateError, Supplied, migrate
from yeto_syncer.checkpoint.named import FORMATS, CannotNameError
from yeto_syncer.checkpoint.naming import Source
from yeto_syncer.checkpoint.progress import bar
from yeto_syncer.checkpoint.verify import Wanted, verify
from yeto_syncer.shell import storage
from yeto_syncer.shell.lockfile import LockHeldError

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Do what was asked for; the exit code."""
    where = str(options.file)
    try:
        return COMMANDS[options.command](options)
    except _RefusedError as error:
        return fail(*error.args)
    except BrokenPipeError:
        raise
    except (NotAFileError, NoValuesError) as error:
        return fail(str(error), where, "give a checkpoint or a final state")
    except CannotNameError as error:
        return fail(str(error), "--output", "choose the other format")
    except CannotMigrateError as error:
        return fail(str(error), where, error.fix)
    except YetoError as error:
        return fail(str(error), where, "yeto-checkpoint verify tells all that is wrong with a file")
    except OSError as error:
        what = error.strerror or str(error)
        return fail(what, str(error.filename or where), "give paths that can be read and written")


class _RefusedError(Exception):
    """What, where, what to do."""

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(what, where, fix)


def _say(text: str) -> None:
    say(printable(text))


# -- commands ------------------------------------------------------------------------------------------------


def _inspect(options: argparse.Namespace) -> int:
    about = inspect.describe(options.file)
    if options.json:
        say_parts(inspect.as_json(about))
        return 0
    for line in inspect.lines(about):
        _say(line)
    return 0


def _verify(options: argparse.Namespace) -> int:
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
        say_json(verdict.as_dict())
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
    return fail(
        f"{count} fault{'s' if count > 1 else ''}, the first is {first.line()}",
        str(options.file),
        "go back to a copy that is whole, or give the layout and contract of its own run",
    )


def _export(options: argparse.Namespace) -> int:
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
        say_json({**about, "global_step": done.global_step, "layout_proven": done.proven})
    else:
        step = "" if done.global_step is None else f" of global step {done.global_step}"
        _say(f"wrote {output}: {done.tensors} tensors, {done.numel:,} f32 values{step}")
    return 0


def _diff(options: argparse.Namespace) -> int:
    with bar("comparing") as progress:
        found = diff(options.file, options.other, progress)
    if options.json:
        say_json(found.as_dict())
    elif found.equal:
        _say(f"equal: compared was {found.compared}")
    else:
        for line in found.lines():
            _say(line)
    return 0 if found.equal else 1


def _migrate(options: argparse.Namespace) -> int:
    _may_write(options)
    supplied = Supplied(options.fingerprint, _backend(options), options.contract)
    try:
        with bar("migrating") as progress:
            done = migrate(options.file, options.output, supplied, progress)
    except LockHeldError as error:
        raise _RefusedError(str(error.strerror), "--output", "end that process, or choose another") from None
    backend = inspect.backend_name(done.head.iso_backend)
    by_hand = ["layout fingerprint", *(["iso backend"] if done.backend_by_hand else [])]
    contract = done.trailer.contract
    if contract is not None and done.contract_by_hand:
        by_hand.append("session contract")
    if options.json:
        about = {"output": str(options.output), "from_version": int(done.source), "iso_backend": backend}
        say_json({**about, "global_step": done.head.global_step, "supplied_by_hand": by_hand})
        return 0
    _say(f"wrote {options.output}: V3, global step {done.head.global_step}, iso backend {backend}")
    _say(f"supplied by hand, and checked by nothing: {' and '.join(by_hand)}")
    if contract is None:
        _say("it has no session contract: only a session without one of its own can resume it")
    return 0


def _hash(options: argparse.Namespace) -> int:
    with bar("hashing") as progress:
        found = digests(options.file, progress)
    if options.json:
        say_json(found.as_dict())
    else:
        for line in found.lines():
            _say(line)
    return 0


# -- what options mean ---------------------------------------------------------------------------------------


def _source(options: argparse.Namespace) -> Source:
    return Source(
        options.layout, options.fragments, options.pattern, options.matrix_merge, options.avg_name_regex
    )


def _layout(source: Source, path: Path) -> Layout:
    """The layout for this checkpoint; every mistake in its file is a refusal."""

    fix = "give a layout file (JSON) or the safetensors model"
    try:
        return source.layout(lambda: count_fragments(path))
    except (ValueError, BadArgument) as error:
        raise _RefusedError(str(error), str(source.path), fix) from None


def _backend(options: argparse.Namespace) -> IsoBackend | None:
    return None if options.iso_backend is None else IsoBackend[options.iso_backend.upper().replace("-", "_")]


def _may_write(options: argparse.Namespace) -> None:
    output: Path = options.output
    for path in (output, temporary_path(output)):
        if path.exists() and not options.force:
            raise _RefusedError(f"{path} is there already", "--output", "choose another, or give --force")
        trouble = storage.problem(path)
        if trouble is not None:
            raise _RefusedError(f"cannot write {path}: {trouble}", "--output", "choose another")


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "inspect": _inspect,
    "verify": _verify,
    "export": _export,
    "diff": _diff,
    "migrate": _migrate,
    "hash": _hash,
}
