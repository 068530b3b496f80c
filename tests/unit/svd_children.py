"""SVD workers for tests: the real one with numpy, and scripts that misbehave in one chosen way.

A script stands in for the interpreter of `--iso-worker-python`, so it is started just as that would be.
"""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

from yeto_proto._generated import iso_worker

PREAMBLE = '''\
#!{python}
"""A worker that answers its probe and then does what the test wants."""
import importlib.util
import os
import signal
import struct
import sys

# The frames alone: the whole package would take longer to load than most tests take.
spec = importlib.util.spec_from_file_location("iso_worker", {frames!r})
frames = importlib.util.module_from_spec(spec)
spec.loader.exec_module(frames)
HEADER, TEXT_LIMIT, Header, Status = frames.HEADER, frames.TEXT_LIMIT, frames.Header, frames.Status


def take(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise SystemExit(0)
        data += piece
    return data


def head():
    """The header of the next request; its payload is still to be read."""
    return Header._make(HEADER.unpack(take(HEADER.size)))


def read():
    """The next request whole."""
    header = head()
    return header, take(header.payload_bytes)


def say(data):
    while data:
        data = data[os.write(1, data):]


def frame(request, payload, code=Status.OK, **changes):
    """An answer to a request, with some fields changed."""
    reply = request._replace(code=code, payload_bytes=len(payload))._replace(**changes)
    return HEADER.pack(*reply) + payload


def answer(request, payload, code=Status.OK, **changes):
    say(frame(request, payload, code, **changes))


def floats(*values):
    """A payload of these values."""
    return struct.pack("<%df" % len(values), *values)


def hang():
    while True:
        signal.pause()


def probe():
    """Take part in the start-up."""
    answer(*read())


'''


def script(folder: Path, body: str, name: str = "worker") -> str:
    """A program with this body; `read`, `answer`, `probe`, `hang` and the like are at hand."""
    preamble = PREAMBLE.format(python=sys.executable, frames=iso_worker.__file__)
    return _program(folder / name, preamble + textwrap.dedent(body))


def numpy_python(folder: Path, *flags: str) -> str:
    """An interpreter whose worker decomposes with numpy."""
    more = " ".join(("--backend numpy", *flags))
    return _program(folder / "numpy-python", f'#!/bin/sh\nexec "{sys.executable}" "$@" {more}\n')


def _program(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def gate(folder: Path, name: str = "gate") -> Path:
    """A FIFO: whoever opens it for reading waits until the test opens it for writing."""
    path = folder / name
    os.mkfifo(path)
    return path
