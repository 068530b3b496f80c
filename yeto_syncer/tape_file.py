"""Reading event tapes: JSON lines into records, tolerant of what a crash leaves and strict about the rest.

A line that a crash has torn is passed over and counted; so is a record of an unknown kind. Anything else that
is no record of an event tape says that the file is not one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from yeto_proto._generated.constants import HELLO_MAX
from yeto_proto._generated.files import TAPE

__all__ = ["COMMIT", "NotATapeError", "Reader", "Record", "faults", "kind_of", "read", "tail"]

Record = Mapping[str, Any]

COMMIT: Final = "commit"

# What a commit must tell before anything can be said about it; other writers leave other keys out.
_NEEDED: Final = ("step", "fragment", "launch_base_version", "attempt", "expected_members", "responders")
_PARTS: Final = ("member", "responder", "stamp")

_INTEGERS: Final = 2**64
_NUMBERS: Final = 1e100
"""What is read has lesser magnitudes: counters have 64 bits, and nobody's sums overflow."""

_FRAGMENTS: Final = HELLO_MAX // 13
"""No HELLO has room for more, at 13 bytes each; readers keep a list of them."""

_SHOWN: Final = 80
"""Characters of a wrong value that are told."""


class NotATapeError(Exception):
    """The file is no event tape. The text reads `what; where; what to do`."""


def kind_of(record: Record) -> str:
    """The kind of a record, one of the keys of `TAPE` or unknown."""
    return str(record.get("event", COMMIT))


def faults(record: Record, *, stamped: bool = True) -> list[str]:
    """Everything in which a record differs from the specification; empty for one of ours.

    `stamped`: the record comes from a file, so it also has the keys of the stamp.
    """
    kind = kind_of(record)
    if kind not in TAPE or kind in _PARTS:
        return [f"{kind}: there is no such record"]
    found = [f"event: {record['event']} is not text"] if not isinstance(record.get("event", ""), str) else []
    fields = dict(TAPE[kind]) | (dict(TAPE["stamp"]) if stamped else {})
    return found + _object_faults(kind, record, fields)


def _object_faults(
    name: str, value: Record, fields: Mapping[str, Any], *, unknown_allowed: bool = False
) -> list[str]:
    """`unknown_allowed`: here and further inside, objects may have keys that the specification lacks."""
    found = []
    if not unknown_allowed:
        found += [f"{name}.{key}: is not in the specification" for key in value if key not in fields]
    for key, field in fields.items():
        if key in value:
            found += _value_faults(f"{name}.{key}", value[key], field.type, unknown_allowed=unknown_allowed)
        elif not field.optional:
            found.append(f"{name}.{key}: is missing")
    return found


def _value_faults(name: str, value: object, kind: str, *, unknown_allowed: bool = False) -> list[str]:
    if kind.startswith("list of "):
        if not isinstance(value, list):
            return [f"{name}: {_shown(value)} is no list"]
        inner = kind.removeprefix("list of ")
        return [
            fault
            for index, each in enumerate(value)
            for fault in _value_faults(f"{name}[{index}]", each, inner, unknown_allowed=unknown_allowed)
        ]
    if kind in TAPE:
        if not isinstance(value, dict):
            return [f"{name}: {_shown(value)} is no object"]
        return _object_faults(name, value, TAPE[kind], unknown_allowed=unknown_allowed)
    if value is None and kind.endswith(" or null"):
        return []
    plain = kind.removesuffix(" or null")
    good = {
        "integer": isinstance(value, int) and not isinstance(value, bool) and abs(value) < _INTEGERS,
        "number": isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _NUMBERS,
        "text": isinstance(value, str),
        "hex32": isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"),
        "true or false": isinstance(value, bool),
    }[plain]
    return [] if good else [f"{name}: {_shown(value)} is no {kind}"]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


@dataclass(slots=True)
class Reader:
    """Takes the lines of a tape one by one. `name` is told to people when the file is no tape."""

    name: str
    lines: int = 0
    torn: int = 0  # lines that a crash has cut
    unknown: int = 0  # records of kinds that are not in the specification
    seen: int = 0  # records

    def take(self, line: bytes) -> Record | None:
        """The record of a line, or None for an empty, torn or unknown one. Raises NotATapeError."""
        self.lines += 1
        if not line.strip():
            return None
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError too
            if self.seen == 0 and not line.lstrip().startswith(b"{"):
                raise self._refusal("is no JSON object") from None
            self.torn += 1
            return None
        if not isinstance(record, dict):
            raise self._refusal("is no JSON object")
        if "event" in record:
            if not isinstance(record["event"], str):
                raise self._refusal("has an `event` that is no text")
            if record["event"] not in TAPE or record["event"] in (*_PARTS, COMMIT):
                self.unknown += 1
                return None
        self._require(record)
        self.seen += 1
        return record

    def _require(self, record: Record) -> None:
        kind = kind_of(record)
        needed = (
            _NEEDED if kind == COMMIT else [key for key, field in TAPE[kind].items() if not field.optional]
        )
        for key in needed:
            if key not in record:
                raise self._refusal(f"is no {kind} record: it has no `{key}`")
        for key, field in (*TAPE[kind].items(), *TAPE["stamp"].items()):
            if key in record:
                wrong = _value_faults(f"`{key}`", record[key], field.type, unknown_allowed=True)
                if wrong:
                    raise self._refusal(f"is wrong: {wrong[0]}")
        for key in ("fragment", "fragments"):
            if not 0 <= record.get(key, 0) <= _FRAGMENTS:
                raise self._refusal(f"is wrong: `{key}`: {record[key]} is no number of a fragment")

    def _refusal(self, what: str) -> NotATapeError:
        return NotATapeError(
            f"not an event tape: line {self.lines} {what}; {self.name}; give the file of "
            "yeto-syncer --event-tape"
        )


def read(path: Path, reader: Reader | None = None) -> Iterator[Record]:
    """The records of a tape, one after the other. Raises OSError and NotATapeError."""
    taking = Reader(str(path)) if reader is None else reader
    with path.open("rb") as file:
        yield from _records(file, taking)


def _records(lines: Iterable[bytes], reader: Reader) -> Iterator[Record]:
    for line in lines:
        record = reader.take(line)
        if record is not None:
            yield record


def tail(path: Path, reader: Reader) -> Iterator[Record | None]:
    """The records of a tape that is being written; None whenever nothing more is there yet.

    A last line without its line feed is waited for. A file that shrinks is read from its start again.
    """
    offset = 0
    with path.open("rb") as file:
        while True:
            if file.seek(0, 2) < offset:
                offset = 0
            file.seek(offset)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            if offset == whole == 0 and data and not data.lstrip().startswith(b"{"):
                reader.take(data)  # whatever follows, no line that begins like this one becomes a record
            offset += whole
            yield from _records(data[:whole].splitlines(), reader)
            yield None
