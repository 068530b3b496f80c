"""Sessions that scenarios share: `spec/cases/sessions.yaml`."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from codegen.bind import bind
from codegen.conform import wire
from codegen.faults import Where
from codegen.load import read
from codegen.spec import Spec

NAME = "sessions.yaml"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a fragment, with its full shape."""

    name: str
    shape: tuple[int, ...]
    where: Where

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Tensors in wire order."""

    merge_mode: Literal["AVG", "RDA", "ISO"]
    tensors: tuple[Tensor, ...]
    where: Where

    @property
    def numel(self) -> int:
        return sum(each.numel for each in self.tensors)


@dataclass(frozen=True, slots=True)
class Session:
    """A session with names and shapes, so that its fingerprint follows."""

    dtype: Literal["F32", "BF16", "Q4"]
    fragments: tuple[Fragment, ...]
    where: Where
    contract: str = "conformance"

    @property
    def bulk_dtype(self) -> str:
        """The encoding of INIT and BCAST."""
        return "F32" if self.dtype == "F32" else "BF16"

    @property
    def contract_hash(self) -> bytes:
        return hashlib.sha256(self.contract.encode()).digest()

    def layout(self) -> list[dict[str, Any]]:
        """The numeric layout, as HELLO has it."""
        found: list[dict[str, Any]] = []
        for each in self.fragments:
            fragment: dict[str, Any] = {
                "merge_mode": each.merge_mode,
                "numels": [tensor.numel for tensor in each.tensors],
            }
            if each.merge_mode == "ISO":
                fragment["shapes"] = [list(tensor.shape) for tensor in each.tensors]
            found.append(fragment)
        return found

    def fingerprint(self, spec: Spec) -> bytes:
        """SHA-256 over merge modes and every tensor's name, numel and shape."""
        modes = {each.name: each.value for each in spec.enums["MergeMode"].values}
        data = bytes(spec.constant("FINGERPRINT_DOMAIN")) + struct.pack("<I", len(self.fragments))
        for each in self.fragments:
            data += struct.pack("<BI", modes[each.merge_mode], len(each.tensors))
            for tensor in each.tensors:
                name = tensor.name.encode()
                data += struct.pack("<I", len(name)) + name
                data += struct.pack("<QI", tensor.numel, len(tensor.shape))
                data += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
        return hashlib.sha256(data).digest()

    def json(self, spec: Spec) -> dict[str, Any]:
        """As the head of a trace has it."""
        return {
            "dtype": self.dtype,
            "layout": [wire.layout_json(each) for each in self.layout()],
            "fingerprint": self.fingerprint(spec).hex(),
            "contract": self.contract_hash.hex(),
            "profile": None,
        }


@dataclass(frozen=True, slots=True)
class SessionsText:
    """The file."""

    sessions: Mapping[str, Session]
    where: Where


def load(root: Path) -> Mapping[str, Session]:
    """Every session by its name. Raises `SpecFault`."""
    return bind(SessionsText, read(root / "cases" / NAME, f"{root.name}/cases/{NAME}")).sessions
