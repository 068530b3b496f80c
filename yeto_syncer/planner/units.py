"""Numbers with units, in both directions: `120e9`, `7B`, `50Gbit`, `1.2GB/s`, `64GiB`."""

from __future__ import annotations

import math
import re
from typing import Final

_NUMBER: Final = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)(/s)?\s*")
MOST: Final = 10**18
"""Counts, and bytes a second, that a plan is made for. Nobody has so many, and sums of them stay readable."""

LONGEST: Final = 1e9
"""Seconds, some thirty years."""

_SCALES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final[dict[str, int]] = {f"{prefix}i": 1024**power for power, prefix in enumerate("kmgt", 1)}
_COUNTS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def count(text: str) -> int:
    """A whole number such as `120e9`, `7B` or `64M`; raises ValueError."""
    value, unit, rate = _split(text)
    if rate or unit.lower() not in _COUNTS:
        raise ValueError(f"must be a number such as 120e9, 7B or 64M, got {text!r}")
    scaled = value * _COUNTS[unit.lower()]
    if not scaled.is_integer() or not 1 <= scaled <= MOST:
        raise ValueError(f"must be a whole number from 1 to {MOST:.0e}, got {text!r}")
    return int(scaled)


def rate(text: str) -> float:
    """Bytes a second of `50Gbit`, `10Gbit/s`, `1.2GB/s` or `800MiB/s`; raises ValueError."""
    value, unit, _ = _split(text)
    match = re.fullmatch(r"([kKmMgGtT]i?|)(bit|bps|b|B|Bps)", unit)
    scale = None if match is None else (_SCALES | _BINARY).get(match[1].lower())
    if match is None or scale is None or not value:
        raise ValueError(f"must be a rate above 0 such as 50Gbit or 1.2GB/s, got {text!r}")
    bytes_a_second = value * scale / (1 if match[2].startswith("B") else 8)
    if not 1 <= bytes_a_second <= MOST:
        raise ValueError(f"must be from 1 to {MOST:.0e} bytes a second, got {text!r}")
    return bytes_a_second


def seconds(text: str) -> float:
    """Seconds of `0.5`, `1.5s` or `250ms`; raises ValueError."""
    value, unit, rate = _split(text)
    if rate or unit not in ("", "s", "ms") or not value:
        raise ValueError(f"must be a time above 0 such as 1.5 or 250ms, got {text!r}")
    in_seconds = value / (1000 if unit == "ms" else 1)
    if not 1e-9 <= in_seconds <= LONGEST:
        raise ValueError(f"must be from 1e-9 to {LONGEST:.0e} seconds, got {text!r}")
    return in_seconds


def _split(text: str) -> tuple[float, str, bool]:
    match = _NUMBER.fullmatch(text)
    if match is None or not math.isfinite(float(match[1])):
        raise ValueError(f"must be a number with a unit, got {text!r}")
    return float(match[1]), match[2], match[3] is not None


def show_bytes(value: float) -> str:
    """`966 GB`, in powers of ten, as disks and links are sold."""
    return _shown(value, "B")


def show_rate(value: float) -> str:
    """`6.25 GB/s`."""
    return _shown(value, "B/s")


def show_seconds(value: float) -> str:
    """`0.42 ms`, `12.5 s`, `8 min 3 s` or `2 h 41 min`."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _shown(value: float, unit: str) -> str:
    for prefix, scale in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= scale:
            digits = value / scale
            return f"{digits:,.0f} {prefix}{unit}" if digits >= 100 else f"{digits:.3g} {prefix}{unit}"
    return f"{value:.0f} {unit}"
