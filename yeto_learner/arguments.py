"""Arguments of the public classes: their accepted spellings, and one clear ValueError for the rest."""

from __future__ import annotations

import hashlib
import os
from typing import Final

from yeto_proto._generated.constants import HASH_BYTES
from yeto_proto._generated.types import Dtype

__all__ = ["check_hash", "environment_key", "parse_contract", "parse_dtype", "parse_hash", "require"]

KEY_VARIABLE: Final = "YETO_ISLAND_HMAC_KEY"


def require(condition: bool, message: str) -> None:
    """Raise ValueError with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


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


def environment_key() -> bytes | None:
    """The HELLO key from the environment; an empty variable counts as unset."""
    return os.environ.get(KEY_VARIABLE, "").encode() or None
