"""What a command prints: answers on standard output, mistakes as one line on standard error.

Nothing that a peer or a file has sent reaches the terminal with a control character in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = [
    "OutputError",
    "complain",
    "fail",
    "flush",
    "full",
    "give_up",
    "printable",
    "put",
    "say",
    "say_json",
    "say_parts",
]


LONGEST: Final = 1000
"""Characters of a complaint; of a longer one the middle is left out."""


class OutputError(Exception):
    """Standard output takes no more, e.g. on a full disk."""


def printable(text: str) -> str:
    """The text with every control character escaped, line feeds too."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def complain(text: str) -> None:
    """`error: ...` on standard error, one line; nothing when nobody listens there."""
    line = printable(text)
    if len(line) > LONGEST:  # somebody has given a file in the place of a name
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    with contextlib.suppress(OSError, ValueError):
        print(f"error: {line}", file=sys.stderr, flush=True)


def fail(*parts: str, code: int = 1) -> int:
    """Complain of what, where, and what to do; the exit code."""
    complain("; ".join(parts))
    return code


def say(text: object) -> None:
    """Print a text, one or more lines, as it is. Raises BrokenPipeError, OutputError."""
    with _told():
        print(text)


def say_parts(parts: Iterable[str]) -> None:
    """Print a text that comes in parts, and end its line. Raises as `say`."""
    with _told():
        sys.stdout.writelines(parts)
        print()


def say_json(document: object, *, indent: int | None = None) -> None:
    """Print one JSON document: a line, or an indented text. Raises as `say`."""
    say(json.dumps(document, indent=indent))


def flush() -> None:
    """Let out what was said. Raises BrokenPipeError, OutputError."""
    with _told():
        sys.stdout.flush()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror) from None


def put(text: object) -> int:
    """Print a text and let it out; the exit code. A reader that has gone (`| head`) is no mistake."""
    try:
        say(text)
        flush()
    except BrokenPipeError:
        give_up()
    except OutputError as error:
        return full(error)
    return 0


def full(error: OutputError) -> int:
    """Complain of this, and give up standard output; the exit code."""
    give_up()
    return fail(f"cannot write: {error}", "standard output", "give it a place with room")


def give_up() -> None:
    """Whatever is still to be said goes nowhere: Python flushes standard output once more at exit, and would
    complain again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
