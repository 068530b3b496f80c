"""Traces: one case, or one recorded run, as a file of JSON lines.

The first line is the head, every other line a step. Long bytes stand as references: a repeated pattern, a
ramp of values, a file beside the trace, or a hash in place of bytes that were left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from yeto_proto import dtypes
from yeto_proto._generated.types import Dtype

from . import links

__all__ = [
    "CORPUS",
    "FORMAT",
    "BadTraceError",
    "Step",
    "Trace",
    "load",
    "load_corpus",
    "resolve",
    "save",
    "spec_hash",
]

FORMAT: Final = 1
CORPUS: Final = Path(__file__).parent / "corpus"
INLINE: Final = 256  # bytes that stand in the line itself
BLOBS: Final = "blobs"

Step = Mapping[str, Any]


class BadTraceError(Exception):
    """A trace that cannot be read or played, in one line for people."""


@dataclass(frozen=True)
class Trace:
    """A head and its steps. `path` is where it was read from, for the blobs beside it."""

    head: Mapping[str, Any]
    steps: tuple[Step, ...]
    path: Path | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        return str(self.head["id"])

    @property
    def area(self) -> str:
        return str(self.head["area"])

    @property
    def role(self) -> str:
        """codec, server, client or record."""
        return str(self.head["role"])

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self.head["rules"])

    @property
    def doc(self) -> str:
        return str(self.head.get("doc", ""))

    def wire(self, reference: Any) -> bytes:
        """The bytes of a `wire` or bulk entry of this trace. Raises BadTraceError."""
        return resolve(reference, self.path.parent if self.path else None)


def load(path: Path) -> Trace:
    """Read a trace. Raises BadTraceError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTraceError(f"{path}: cannot be read: {error}") from None
    lines: list[Any] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except (ValueError, RecursionError) as error:  # what is nested or long without end is another error
            raise BadTraceError(f"{path}:{number}: is not JSON: {error}") from None
        if not isinstance(lines[-1], dict):
            raise BadTraceError(f"{path}:{number}: must be an object")
    if not lines or lines[0].get("format") != FORMAT:
        raise BadTraceError(f"{path}:1: is not the head of a trace of format {FORMAT}")
    for key in ("id", "area", "role", "rules"):
        if key not in lines[0]:
            raise BadTraceError(f"{path}:1: the head lacks {key!r}")
    if not isinstance(lines[0]["role"], str):
        raise BadTraceError(f"{path}:1: the role must be text")
    labels: set[str] = set()
    for number, step in enumerate(lines[1:], start=2):
        if not isinstance(step.get("do"), str):
            raise BadTraceError(f"{path}:{number}: the step lacks 'do', which is text")
        wrong = links.fault(lines[0]["role"], step, labels)
        if wrong is not None:
            raise BadTraceError(f"{path}:{number}: {wrong}")
    return Trace(lines[0], tuple(lines[1:]), path)


def save(trace: Trace, path: Path) -> None:
    """Write a trace. Raises OSError."""
    with path.open("w", encoding="utf-8") as file:
        for each in (trace.head, *trace.steps):
            file.write(json.dumps(each) + "\n")


def load_corpus(folder: Path = CORPUS) -> list[Trace]:
    """Every trace of a folder, by area and id. Raises BadTraceError."""
    return sorted((load(path) for path in folder.rglob("*.jsonl")), key=lambda each: (each.area, each.id))


def spec_hash() -> str:
    """The hash of the specification that the shipped corpus was made from."""
    with min(CORPUS.rglob("*.jsonl")).open(encoding="utf-8") as file:
        return str(json.loads(file.readline())["spec"])


def resolve(reference: Any, folder: Path | None = None) -> bytes:
    """The bytes that a reference stands for: text, a recipe, or a list of those. Raises BadTraceError."""
    if isinstance(reference, str):
        try:
            return bytes.fromhex(reference)
        except ValueError:
            raise BadTraceError(f"is not hexadecimal: {reference[:40]!r}") from None
    if isinstance(reference, list):
        return b"".join(resolve(each, folder) for each in reference)
    if not isinstance(reference, dict):
        raise BadTraceError(f"is no reference to bytes: {reference!r}")
    data = _made(reference, folder)
    if len(data) != reference.get("len", len(data)):
        raise BadTraceError(f"gives {len(data)} bytes instead of {reference['len']}")
    wanted = reference.get("blob", reference.get("sha256"))
    if wanted is not None and hashlib.sha256(data).hexdigest() != wanted:
        raise BadTraceError(f"gives bytes with another SHA-256 than {wanted}")
    return data


def _made(reference: Mapping[str, Any], folder: Path | None) -> bytes:
    if "blob" in reference:
        path = (folder or Path()) / BLOBS / str(reference["blob"])
        try:
            return path.read_bytes()
        except OSError as error:
            raise BadTraceError(f"blob {path} cannot be read: {error.strerror}") from None
    kind = reference.get("gen")
    try:
        if kind == "fill":
            pattern, length = bytes.fromhex(reference["hex"]), int(reference["len"])
            return (pattern * (length // len(pattern) + 1))[:length]
        if kind == "ramp":
            dtype = Dtype[reference.get("dtype", "F32")]
            numel = int(reference["len"]) // (4 if dtype is Dtype.F32 else 2)
            return bytes(dtypes.encode(dtype, ramp(int(reference["seed"]), float(reference["scale"]), numel)))
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise BadTraceError(f"recipe {dict(reference)!r} lacks or has a wrong {error}") from None
    if kind == "hash":
        raise BadTraceError("the bytes were left out when this trace was recorded, so it can only be shown")
    raise BadTraceError(f"there is no recipe {kind!r}")


def ramp(seed: int, scale: float, numel: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """float32 array (numel,): value i is ((seed + 7 i) mod 256 - 128) / 128 * scale."""
    steps = (np.arange(numel, dtype=np.int64) * 7 + seed) % 256 - 128
    return (steps.astype(np.float32) / np.float32(128)) * np.float32(scale)


def refer(data: bytes, folder: Path | None) -> Any:
    """Bytes as a line holds them: in hexadecimal, as a pattern, or as a blob that is written to `folder`."""
    if len(data) <= INLINE:
        return data.hex()
    digest = hashlib.sha256(data).hexdigest()
    for period in (1, 2, 4):
        pattern = data[:period]
        if (pattern * (len(data) // period + 1))[: len(data)] == data:
            return {"gen": "fill", "hex": pattern.hex(), "len": len(data), "sha256": digest}
    if folder is None:
        return data.hex()
    (folder / BLOBS).mkdir(parents=True, exist_ok=True)
    path = folder / BLOBS / digest
    if not path.exists():
        path.write_bytes(data)
    return {"blob": digest, "len": len(data)}


def refer_inline(data: bytes) -> Any:
    """Bytes as a line holds them, without a folder for blobs."""
    return refer(data, None)


def select(traces: Iterable[Trace], patterns: Iterable[str]) -> Iterator[Trace]:
    """Those whose id, area, role or a rule matches one of the patterns; all without any."""
    from fnmatch import fnmatchcase

    wanted = list(patterns)
    for trace in traces:
        names = (trace.id, trace.area, trace.role, *trace.rules)
        if not wanted or any(fnmatchcase(name, pattern) for name in names for pattern in wanted):
            yield trace
