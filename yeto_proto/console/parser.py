"""The parser of a command: one-line errors, `--version`, subcommands with examples, and kinds of values."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

from .output import fail, put

__all__ = ["Adder", "Parser", "positive_seconds", "whole"]

SHOWN: Final = 40
"""Characters of a wrong value that an error repeats."""


class Parser(argparse.ArgumentParser):
    """An argument parser, of a command or of one of its subcommands, whose errors are one line.

    Flags cannot be shortened: what is short today may be ambiguous tomorrow. `epilog` holds the examples.
    """

    def __init__(self, *, prog: str, description: str, epilog: str, **more: Any) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **more,
        )

    def error(self, message: str) -> NoReturn:
        """Exit 2, as for every mistake in the syntax of a command line."""
        self.exit(fail(message, "command line", f"see {self.prog} --help", code=2))

    def print_help(self, file: object = None) -> None:
        """On standard output, or nowhere when its reader has gone."""
        code = put(self.format_help().rstrip())
        if code:
            self.exit(code)

    def add_version(self) -> None:
        """`--version`: print the version and leave."""
        self.add_argument(
            "--version",
            action=_Version,
            nargs=0,
            default=argparse.SUPPRESS,
            help="print the version and leave",
        )

    def add_commands(self) -> Adder:
        """Make a subcommand required, whose name is then `options.command`. Returns what adds one."""
        commands = self.add_subparsers(
            dest="command", required=True, metavar="COMMAND", parser_class=type(self)
        )

        def add(name: str, summary: str, about: str, examples: str) -> Parser:
            return commands.add_parser(name, help=summary, description=about, epilog=examples)

        return add


Adder = Callable[[str, str, str, str], Parser]
"""Adds a subcommand by its name, a summary of one line, a description, and examples."""


class _Version(argparse.Action):
    """Looks the version up when it is asked for: that takes longer than everything else here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        from yeto_proto._generated.constants import PROTOCOL_VERSION

        parser.exit(put(f"{parser.prog} {version('yeto')} (protocol {PROTOCOL_VERSION})"))


# -- kinds of values -----------------------------------------------------------------------------------------


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """For `type=`: a whole number, decimal digits, from `low` to `high`."""

    def parse(text: str) -> int:
        if re.fullmatch("-?[0-9]{1,40}", text) is None:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {_shown(text)}")
        value = int(text)
        if high is not None and not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be {low} to {high}, got {value}")
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, got {value}")
        return value

    return parse


def positive_seconds(text: str) -> float:
    """For `type=`: a finite number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {_shown(text)}")
    return value


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
