"""Our own codec adapter: `python -m yeto_proto.conform.adapter` answers JSON lines with JSON lines."""

from __future__ import annotations

import json
import sys
from typing import TextIO

from .answers import answer

__all__ = ["main", "serve"]


def serve(source: TextIO, sink: TextIO) -> None:
    """Answer until the source ends. A line that is no question ends the process, with what was wrong."""
    for line in source:
        request = json.loads(line)
        sink.write(json.dumps({"id": request.get("id"), **answer(request)}) + "\n")
        sink.flush()


def main() -> int:
    """The exit code."""
    serve(sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
