"""Tensor values as cases write them, and their bytes.

A number fills the fragment, a list gives each value, text is the bytes in hexadecimal, and a recipe is the
ramp of the client case file.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

from codegen.faults import SpecFault, Where
from codegen.spec import Spec

INLINE = 256  # bytes that stand in a line of a trace; more become a reference
_PERIODS = (1, 2, 4, 8)  # bytes of a pattern that repeats inside other bytes
_RUN = 24  # bytes of a repeated pattern that are worth a reference of their own


def ramp(seed: int, scale: float, numel: int) -> list[float]:
    """Value i is ((seed + 7 i) mod 256 - 128) / 128 * scale."""
    return [((seed + 7 * index) % 256 - 128) / 128 * scale for index in range(numel)]


def values_of(text: Any, numel: int, where: Where) -> list[float]:
    """The values of a fragment of `numel` values."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return [float(text)] * numel
    if isinstance(text, list) and len(text) == numel:
        return [float(each) for each in text]
    if isinstance(text, dict) and set(text) == {"seed", "scale"}:
        return ramp(int(text["seed"]), float(text["scale"]), numel)
    raise SpecFault(where, "values", f"must be a number, {numel} numbers, or a recipe with seed and scale")


def pack(spec: Spec, dtype: str, values: Sequence[float], where: Where) -> bytes:
    """The bytes of values in F32, BF16 or, for one constant, in Q4."""
    plain = struct.pack(f"<{len(values)}f", *values)
    if dtype == "F32":
        return plain
    if dtype == "BF16":
        halves = plain[2::4], plain[3::4]
        if any(plain[0::4]) or any(plain[1::4]):
            raise SpecFault(where, "values", "must be exact in bf16")
        return bytes(byte for pair in zip(*halves, strict=True) for byte in pair)
    return _constant_q4(spec, values, where)


def _constant_q4(spec: Spec, values: Sequence[float], where: Where) -> bytes:
    block = int(spec.constant("Q4_BLOCK"))
    nibble_bytes = int(spec.constant("Q4_BLOCK_BYTES")) - 4
    if len(set(values)) != 1:
        raise SpecFault(where, "values", "in q4 a case gives one constant, or the bytes")
    value = values[0]
    top = 0 if value == 0 else 15 if value < 0 else 7
    data = b""
    for start in range(0, len(values), block):
        used = min(block, len(values) - start)
        nibbles = [top] * used + [0] * (2 * nibble_bytes - used)
        pairs = zip(nibbles[::2], nibbles[1::2], strict=True)
        data += struct.pack("<f", abs(value)) + bytes(low | high << 4 for low, high in pairs)
    return data


def reference(data: bytes) -> Any:
    """Bytes for a line of a trace: in hexadecimal, and long ones as the repeated patterns that give them."""
    if len(data) <= INLINE:
        return data.hex()
    for period in (1, 2, 4, 8, 16, 132):
        if (data[:period] * (len(data) // period + 1))[: len(data)] == data:
            return filled(data[:period], data)
    parts = _runs(data)
    short = all(len(part) <= INLINE for part, period in parts if not period)
    if len(parts) == 1 or not short:
        return data.hex()
    return [filled(part[:period], part) if period else part.hex() for part, period in parts]


def filled(pattern: bytes, data: bytes) -> dict[str, Any]:
    """The recipe of a repeated pattern."""
    digest = hashlib.sha256(data).hexdigest()
    return {"gen": "fill", "hex": pattern.hex(), "len": len(data), "sha256": digest}


def _runs(data: bytes) -> list[tuple[bytes, int]]:
    """The data in parts: those that repeat a pattern, with its period, and what is between them, with 0."""
    parts: list[tuple[bytes, int]] = []
    start = at = 0
    while at < len(data):
        length, period = max((_run(data, at, period), -period) for period in _PERIODS)
        if length < _RUN:
            at += 1
            continue
        if start < at:
            parts.append((data[start:at], 0))
        parts.append((data[at : at + length], -period))
        start = at = at + length
    return [*parts, (data[start:], 0)] if start < len(data) else parts


def _run(data: bytes, at: int, period: int) -> int:
    """How many bytes from there on repeat the first `period` of them."""
    end = at + period
    while end < len(data) and data[end] == data[end - period]:
        end += 1
    return min(end, len(data)) - at
