"""Log lines on standard error, for people or as JSON. Never a control character, whatever a peer has sent."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import TextIO

from yeto_proto.console.output import printable

LEVELS = ("debug", "info", "warning", "error")
"""From the most talkative to the quietest."""


class Log:
    """Writes `time level message key=value ...` lines, or one JSON object a line with `style="json"`."""

    def __init__(self, stream: TextIO, style: str = "human", level: str = "info") -> None:
        self._stream = stream
        self._json = style == "json"
        self._from = LEVELS.index(level)

    def write(self, level: str, message: str, fields: Mapping[str, object] | None = None) -> None:
        """One line; nothing when `level` is below the one asked for. A closed stream is not an error."""
        if LEVELS.index(level) < self._from:
            return
        now = time.time()
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        stamp = f"{seconds}.{int(now * 1000) % 1000:03d}Z"
        if self._json:
            line = json.dumps(
                {"time": stamp, "level": level, "message": message, **(fields or {})}, default=str
            )
        else:
            pairs = "".join(f" {key}={plain(value)}" for key, value in (fields or {}).items())
            line = f"{stamp} {level:<7} {printable(message)}{pairs}"
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()


def plain(value: object) -> str:
    """A value as a log line shows it: bare when it is one word, else quoted as in JSON."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else str(value)
    if text and text.isprintable() and text.isascii() and not set(text) & set(' "='):
        return text
    return json.dumps(text)
