"""One conformance case as the lines of its file."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codegen.render import Output

FOLDER = "yeto_proto/conform/corpus"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """A head and its steps, both ready for JSON."""

    id: str
    area: str
    role: str
    rules: Sequence[str]
    expect: str
    steps: Sequence[Mapping[str, Any]]
    doc: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def lines(self, digest: str) -> str:
        """The text of the file."""
        head = {
            "format": FORMAT,
            "spec": digest,
            "id": self.id,
            "area": self.area,
            "role": self.role,
            "rules": list(self.rules),
            "expect": self.expect,
            "doc": " ".join(self.doc.split()),
            "preset": "wire",
            "session": None,  # that of a codec stands with each question
            "side": self.role,
            **self.more,
        }
        return "".join(json.dumps(each, ensure_ascii=True) + "\n" for each in (head, *self.steps))


def stale(files: Sequence[Output], root: Path) -> list[Path]:
    """Traces in the folder of the corpus that no case gives any more."""
    wanted = {root / each.path for each in files}
    return sorted(path for path in (root / FOLDER).rglob("*.jsonl") if path not in wanted)


@functools.cache
def spec_hash(root: Path) -> str:
    """SHA-256 over the names and texts of all files that say what is on the wire."""
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.yaml")):
        name = path.relative_to(root).as_posix()
        if "/" not in name or name.startswith("frames/"):
            total.update(f"{name}\n".encode())
            total.update(path.read_bytes())
    return total.hexdigest()
