"""`yeto-checkpoint`: the command line of the tools for checkpoints, final states and markers.

Exit codes: 0 done, whole, equal; 1 the file cannot be read or is not whole, the files differ, or nothing was
written; 2 command-line syntax; 130 and 143 ended by SIGINT and SIGTERM.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from yeto_proto.console import program
from yeto_proto.console.parser import Parser, whole

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
    return program.dispatch(_parser, arguments, "yeto_syncer.checkpoint.commands")


def _parser() -> Parser:
    parser = Parser(
        prog="yeto-checkpoint",
        description="Looks into the files of a run: checkpoints, final states, final markers.",
        epilog=EXAMPLES,
    )
    parser.add_version()
    add = parser.add_commands()

    def command(name: str, summary: str, about: str) -> Parser:
        lines = [line for line in EXAMPLES.splitlines() if line.startswith(f"  yeto-checkpoint {name} ")]
        each = add(name, summary, about, "\n".join(["example:", *lines]))
        each.add_argument("file", metavar="FILE", type=Path, help="a checkpoint, final state or final marker")
        each.add_argument("--json", action="store_true", help="print one JSON object")
        return each

    command("inspect", "what a file says about itself", INSPECT_ABOUT)
    verify = command("verify", "say what is wrong with a file, and where", VERIFY_ABOUT)
    _layout_flags(verify, required=False)
    verify.add_argument("--fingerprint", metavar="HEX", type=_digest, help="layout fingerprint it must have")
    verify.add_argument("--contract", metavar="HEX", type=_digest, help="session contract it must have")
    _backend_flag(verify, "iso backend it must have")
    export = command("export", "write the parameters as named tensors", EXPORT_ABOUT)
    _layout_flags(export, required=True)
    _output_flags(export, "a new .safetensors or .npz file")
    export.add_argument("--momentum", action="store_true", help="the momentum in place of the parameters")
    diff = command("diff", "compare two files", DIFF_ABOUT)
    diff.add_argument("other", metavar="OTHER", type=Path, help="the second file")
    migrate = command("migrate", "write a V1 or V2 checkpoint as V3", MIGRATE_ABOUT)
    _output_flags(migrate, "the new checkpoint")
    migrate.add_argument(
        "--fingerprint", metavar="HEX", type=_digest, required=True, help="layout fingerprint, 64 digits"
    )
    _backend_flag(migrate, "what V1 does not record")
    migrate.add_argument("--contract", metavar="HEX", type=_digest, help="session contract, 64 digits")
    command("hash", "SHA-256 digests of a file and of its values", HASH_ABOUT)
    return parser


def _layout_flags(parser: Parser, *, required: bool) -> None:
    add = parser.add_argument
    add(
        "--layout", metavar="FILE", type=Path, required=required, help="a layout file, or a safetensors model"
    )
    add(
        "--fragments",
        metavar="P",
        type=whole(1),
        help="of the learners, for a model (that of the checkpoint)",
    )
    add("--pattern", choices=("binpack", "strided"), default="binpack", help="for a model (%(default)s)")
    add("--matrix-merge", choices=("rda", "iso"), default="rda", help="for a model (%(default)s)")
    add("--avg-name-regex", metavar="REGEX", help="for a model: further tensors of the avg fragment")


def _output_flags(parser: Parser, about: str) -> None:
    parser.add_argument("--output", metavar="FILE", type=Path, required=True, help=about)
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def _backend_flag(parser: Parser, about: str) -> None:
    parser.add_argument("--iso-backend", choices=("scalar", "torch-svd"), help=about)


def _digest(text: str) -> bytes:
    from yeto_proto._generated.constants import HASH_BYTES

    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != HASH_BYTES or len(text) != 2 * HASH_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not {2 * HASH_BYTES} hexadecimal digits")
    return digest


if __name__ == "__main__":
    sys.exit(main())
