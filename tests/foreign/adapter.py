"""Questions to a codec adapter, one JSON object a line, and messages as the answers show them."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from yeto_proto._generated.messages import FinalManifest, Hello, Message
from yeto_proto.session import Session, WireLayout

INTEROP = Path(__file__).resolve().parents[2] / "site" / "docs" / "interop"
U64 = {
    *("connection_generation", "global_step", "base_version", "local_step", "c_tokens", "version", "msg_id"),
    *("total_len", "offset", "final_global_step", "exact_local_steps"),
}


class Adapter:
    """The process; it ends by itself when its input is closed, and that is checked."""

    def __init__(self, command: Sequence[str]) -> None:
        self._numbers = itertools.count(1)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Adapter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        code = self._process.wait(600)
        self._process.stdout.close()
        assert code == 0 or kind is not None

    def ask(self, op: str, **question: Any) -> dict[str, Any]:
        """The answer, without its id."""
        assert self._process.stdin is not None and self._process.stdout is not None
        number = next(self._numbers)
        self._process.stdin.write(json.dumps({"id": number, "op": op, **question}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the adapter ended at {op} {question}"
        answer: dict[str, Any] = json.loads(line)
        assert answer.pop("id") == number
        return answer


def layout_shown(layout: WireLayout) -> list[dict[str, Any]]:
    """A layout, fragment by fragment."""
    shown = []
    for number in range(layout.num_fragments):
        fragment: dict[str, Any] = {
            "merge_mode": layout.merge_mode(number).name,
            "numels": [str(numel) for numel in layout.numels(number)],
        }
        shapes = layout.shapes(number)
        if shapes is not None:
            fragment["shapes"] = [[str(rows), str(cols)] for rows, cols in shapes]
        shown.append(fragment)
    return shown


def session_shown(session: Session | None) -> dict[str, Any] | None:
    """What a question says of the session."""
    return session and {"dtype": session.dtype.name, "layout": layout_shown(session.layout)}


def fields_shown(message: Message) -> dict[str, Any]:
    """The fields of a message, counts included, as answers have them."""
    fields = {name: getattr(message, name) for name in message.__slots__}
    if isinstance(message, Hello):
        fields["num_fragments"] = message.layout.num_fragments
        fields["layout"] = layout_shown(message.layout)
        fields["dtype"] = message.dtype.name
    if isinstance(message, FinalManifest):
        fields["num_fragments"] = len(message.expected_versions)
        fields["expected_versions"] = [str(each) for each in message.expected_versions]
    return {name: _plain(name, value) for name, value in fields.items()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    return str(value) if name in U64 else value
