"""Arguments of the public classes: their accepted spellings, and one clear ValueError for the rest."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, SupportsIndex

from yeto_proto._generated.constants import HASH_BYTES
from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.types import Dtype
from yeto_proto.layout import Layout, Pattern, build_layout

__all__ = [
    "check_hash",
    "environment_key",
    "make_layout",
    "parse_contract",
    "parse_dtype",
    "parse_hash",
    "parse_key",
    "require",
    "require_seconds",
    "require_whole",
]

KEY_VARIABLE: Final = "YETO_ISLAND_HMAC_KEY"


def require(condition: bool, message: str) -> None:
    """Raise ValueError with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_whole(name: str, value: SupportsIndex, low: int, high: int | None = None) -> int:
    """The value as an int.  Raises ValueError for one that is no whole number, or not low to high."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    bounds = f"at least {low}" if high is None else f"{low} to {high}"
    require(low <= number and (high is None or number <= high), f"{name} must be {bounds}, not {number}")
    return number


def require_seconds(**seconds: float) -> None:
    """Raise ValueError unless all of them are 0 or more; NaN is not."""
    for name, value in seconds.items():
        require(
            isinstance(value, int | float) and value >= 0, f"{name} must be 0 or more seconds, not {value!r}"
        )


def make_layout(
    shapes: Mapping[str, Sequence[int]],
    num_fragments: int,
    pattern: Pattern,
    matrix_merge: Literal["rda", "iso"],
    avg_name_regex: str | None,
) -> Layout:
    """`build_layout` for a caller of the SDK.  Raises ValueError for what it refuses."""
    try:
        return build_layout(
            {name: tuple(shape) for name, shape in shapes.items()},
            require_whole("num_fragments", num_fragments, 1),
            pattern,
            matrix_merge=matrix_merge,
            avg_name_regex=avg_name_regex,
        )
    except BadArgument as error:
        raise ValueError(str(error)) from error


def parse_dtype(dtype: Dtype | str) -> Dtype:
    """A Dtype from itself, its number, or "f32", "bf16", "q4"."""
    if isinstance(dtype, str):
        names = {each.name.lower(): each for each in Dtype}
        require(dtype in names, f"dtype must be one of {', '.join(names)}, not {dtype!r}")
        return names[dtype]
    return Dtype(dtype)


def check_hash(value: bytes | None, name: str) -> None:
    """Raise ValueError unless the value is None or 32 bytes."""
    if value is not None:
        require(len(value) == HASH_BYTES, f"{name} must be {HASH_BYTES} bytes, not {len(value)}")


def parse_hash(value: bytes | str | None, name: str) -> bytes | None:
    """32 bytes, or their 64 hexadecimal digits, as `yeto-checkpoint hash` prints them."""
    if isinstance(value, str):
        try:
            value = bytes.fromhex(value)
        except ValueError:
            raise ValueError(
                f"{name} must be {HASH_BYTES} bytes or {2 * HASH_BYTES} hexadecimal digits"
            ) from None
    check_hash(value, name)
    return value


def parse_contract(contract: bytes | str | None) -> bytes | None:
    """32 bytes as they are; a string stands for its SHA-256 (D32)."""
    if isinstance(contract, str):
        require(bool(contract), "session_contract must not be an empty string")
        return hashlib.sha256(contract.encode()).digest()
    check_hash(contract, "session_contract")
    return contract


def parse_key(key: bytes | str | os.PathLike[str]) -> bytes:
    """The bytes of a HELLO key: bytes as they are, text in UTF-8, and of a file all but one newline at its
    end, as the syncer reads it.

    Raises ValueError for an empty key, with which anybody could make a MAC, and OSError.
    """
    if isinstance(key, os.PathLike):
        raw = Path(key).read_bytes()
        raw = raw.removesuffix(b"\r\n") if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")
    else:
        raw = key.encode() if isinstance(key, str) else bytes(key)
    require(bool(raw), f"hmac_key must not be empty: {key!r}; leave it out for a syncer without a key")
    return raw


def environment_key() -> bytes | None:
    """The HELLO key from the environment; an empty variable counts as unset."""
    return os.environ.get(KEY_VARIABLE, "").encode() or None
