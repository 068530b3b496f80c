"""The event tape: one JSON object a line, appended and flushed line by line (D24)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path


class Tape:
    """An event tape, opened once for the life of the process.

    Opening creates the file, or repairs a last line that a crash has torn by ending it. Raises OSError when
    the file cannot be opened or written. `clock` gives the Unix time in seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                self._write(b"\n")
        except OSError:
            os.close(self._fd)
            raise

    def append(self, record: Mapping[str, object]) -> None:
        """Add one record with its time. It is with the kernel when this returns: readers see whole lines."""
        stamped = {**record, "time": round(self._clock(), 3)}
        self._write(json.dumps(stamped, separators=(",", ":"), allow_nan=False).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
