"""Expected values against what came: plain values, and the few patterns that a trace may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["differences"]

_PATTERNS = frozenset({"any", "min"})


def differences(expected: Any, actual: Any, name: str = "") -> list[str]:
    """One line for each value that differs. Keys of `actual` that are not expected are passed over."""
    if isinstance(expected, Mapping):
        if set(expected) <= _PATTERNS and expected:
            return _pattern(expected, actual, name)
        if not isinstance(actual, Mapping):
            return [f"{name}: expected {_short(expected)}, got {_short(actual)}"]
        lines = []
        for key, value in expected.items():
            inner = f"{name}.{key}" if name else str(key)
            if key not in actual:
                lines.append(f"{inner}: is missing")
            else:
                lines += differences(value, actual[key], inner)
        return lines
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return [f"{name}: expected {_short(expected)}, got {_short(actual)}"]
        return [
            line
            for number, (one, other) in enumerate(zip(expected, actual, strict=True))
            for line in differences(one, other, f"{name}[{number}]")
        ]
    if type(expected) is not type(actual) or expected != actual:
        return [f"{name}: expected {_short(expected)}, got {_short(actual)}"]
    return []


def _pattern(pattern: Mapping[str, Any], actual: Any, name: str) -> list[str]:
    if "min" in pattern:
        try:
            enough = int(actual) >= int(pattern["min"])
        except (TypeError, ValueError):
            enough = False
        if not enough:
            return [f"{name}: expected at least {pattern['min']}, got {_short(actual)}"]
    return []


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
