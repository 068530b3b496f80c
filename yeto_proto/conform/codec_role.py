"""The codec role: questions to a process, or to our own codec in this one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from . import answers
from .groups import BYTE_CUT
from .match import differences
from .processes import NotStartedError, Process
from .trace import Trace
from .verdict import UNSUPPORTED, BrokenError, FailError, Result, SkipError, Verdict

__all__ = ["AdapterProcess", "Asker", "InProcess", "run"]


class Asker(Protocol):
    """Something that answers questions."""

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer. Raises FailError, SkipError, BrokenError."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class InProcess:
    """Our own codec, called in this process."""

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return answers.answer(request)

    def close(self) -> None:
        """There is nothing to end."""


class AdapterProcess:
    """An adapter, started again when it has ended with 127, "not supported"."""

    def __init__(self, start: Any, timeout: float) -> None:
        self._start = start
        self._timeout = timeout
        self._process: Process | None = None
        self._asked = 0

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._process is None:
            self._process = self._start()
        self._asked = number = self._asked + 1
        line = self._process.ask(json.dumps({"id": number, **request}), self._timeout)
        if line is None:
            return self._ended()
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):  # what is nested or long without end is no JSONDecodeError
            self.close()
            raise FailError(f"the adapter answered with a line that is not JSON: {line[:80]!r}") from None
        if not isinstance(found, dict) or found.get("id") != number:
            self.close()
            raise FailError(f"the adapter answered with another id than {number}")
        return found

    def _ended(self) -> Mapping[str, Any]:
        assert self._process is not None
        code, output = self._process.wait(self._timeout), self._process.output
        first = self._asked == 1
        self.close()
        if code == UNSUPPORTED:
            raise SkipError("the adapter ended with 127: not supported")
        if first:
            raise NotStartedError(f"the adapter ended with {code} at its first question:\n{output}")
        raise FailError(f"the adapter ended with {code}:\n{output}")

    def close(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


def run(trace: Trace, asker: Asker, result: Result) -> None:
    """Ask every question of a case, with the verdict in `result`."""
    for number, step in enumerate(trace.steps):
        result.step = number
        if step["do"] != "ask":
            raise BrokenError(f"a codec case has no step {step['do']!r}")
        request, expected = dict(step["request"]), step["answer"]
        if request["op"] == "stream":
            pieces = [(socket, trace.wire(piece)) for socket, piece in request["pieces"]]
            request["pieces"] = [[socket, piece.hex()] for socket, piece in cut(pieces, result.cut)]
        result.log.append(f"> {json.dumps(request)}")
        found = asker.ask(request)
        result.log.append(f"< {json.dumps(found)}")
        _judge(expected, found, result)
    result.step = None


def cut(pieces: Sequence[tuple[int, bytes]], how: str) -> list[tuple[int, bytes]]:
    """The pieces of a stream as recorded, those of one socket in a row together, or one byte each."""
    if how == "bytes" and sum(len(piece) for _, piece in pieces) <= BYTE_CUT:
        return [(socket, piece[at : at + 1]) for socket, piece in pieces for at in range(len(piece))]
    if how == "coalesced":
        runs = groupby(pieces, key=lambda each: each[0])
        return [(socket, b"".join(piece for _, piece in run)) for socket, run in runs]
    return list(pieces)


def _judge(expected: Mapping[str, Any], found: Mapping[str, Any], result: Result) -> None:
    if found.get("unsupported"):
        raise SkipError("the adapter does not support this question")
    result.expected, result.actual = expected, {key: found[key] for key in found if key != "id"}
    if expected["ok"] and not found.get("ok"):
        raise FailError(f"refused what must be accepted: {found.get('error')}")
    if not expected["ok"]:
        if found.get("ok"):
            raise FailError(f"accepted what must be refused as {expected['error']}")
        if found.get("error") != expected["error"]:
            result.verdict = Verdict.LOOSE
            result.reason = f"refused as {found.get('error')}, expected {expected['error']}"
        elif found.get("rule") not in (None, expected["rule"]):
            result.verdict = Verdict.LOOSE
            result.reason = f"refused by {found['rule']}, expected {expected['rule']}"
        return
    lines = differences(expected, {**found, "id": None} | {"ok": True})
    if lines:
        raise FailError("; ".join(lines))
