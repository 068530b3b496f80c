"""Turns the bytes of real connections into a trace: whoever brings the bytes, a proxy or a packet capture."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from yeto_proto import codec
from yeto_proto._generated.constants import HEADER_BYTES, MAGIC
from yeto_proto._generated.messages import Chunk, DataHello, Hello, Message
from yeto_proto._generated.structs import FRAMES
from yeto_proto._generated.types import FrameType
from yeto_proto.errors_base import YetoError
from yeto_proto.session import Session

from . import fields
from .trace import FORMAT, Trace, refer, spec_hash

__all__ = ["Connection", "Recorder"]

_PATTERN: Final = 0x3F
_HEADS: Final = {
    kind: HEADER_BYTES + FRAMES[kind].fixed.size  # type: ignore[union-attr]  # frames of bulk have fixed fields
    for kind in (
        FrameType.INIT_PARAMS,
        FrameType.PUSH_FRAGMENT,
        FrameType.BCAST_FRAGMENT,
        FrameType.FINAL_FRAGMENT,
    )
}


class Connection:
    """One TCP connection, seen from between. `name` is known after its first frame."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self.name = f"c{number}.0"
        self._held: dict[str, bytearray] = {"learner": bytearray(), "syncer": bytearray()}
        self._lost = False
        self.named = False

    def feed(self, side: str, data: bytes, when: float) -> None:
        """Bytes that this side has sent, in order."""
        with self._recorder.lock:
            held = self._held[side]
            held += data
            while self._frame(side, held, when):
                pass

    def _frame(self, side: str, held: bytearray, when: float) -> bool:
        if self._lost or len(held) < HEADER_BYTES:
            return False
        magic, kind, length = codec.parse_header(bytes(held[:HEADER_BYTES]))
        if magic != MAGIC:  # nothing after it can be told apart
            self._lost = True
            self._recorder.stray(self, side, bytes(held), 0, when)
            return False
        if len(held) < HEADER_BYTES + length:
            return False
        data = bytes(held[: HEADER_BYTES + length])
        del held[: HEADER_BYTES + length]
        self._recorder.frame(self, side, kind, data, when)
        return True

    def end(self, side: str, when: float) -> None:
        """That side ends the connection."""
        with self._recorder.lock:
            rest = bytes(self._held[side])
            if rest and not self._lost:
                self._recorder.stray(self, side, rest, HEADER_BYTES, when)
                self._held[side].clear()
            self._recorder.add({"do": "end", "on": self.name, "by": side}, when)


class Recorder:
    """Collects steps of all connections. Methods may be called from any thread."""

    def __init__(self, folder: Path | None = None, redact: str = "none") -> None:
        """folder: where blobs go; without one long bytes stand in the lines."""
        self.lock = threading.RLock()
        self.steps: list[dict[str, Any]] = []
        self.session: Session | None = None
        self._folder, self._redact = folder, redact
        self._connections = 0

    def connection(self) -> Connection:
        with self.lock:
            self._connections += 1
            return Connection(self, self._connections)

    def add(self, step: dict[str, Any], when: float) -> None:
        self.steps.append({**step, "t": round(when, 6)})

    def frame(self, connection: Connection, side: str, kind: int, data: bytes, when: float) -> None:
        """One whole frame."""
        try:
            message: Message | None = codec.decode(kind, data[HEADER_BYTES:], self.session)
        except YetoError:
            message = None
        if not connection.named:
            self._name(connection, message, data, when)
        if message is None:
            self.stray(connection, side, data, HEADER_BYTES, when)
            return
        if isinstance(message, Hello) and self.session is None:
            self.session = Session.from_hello(message)
        head, bulk = self._parts(side, message, data)
        shown = fields.shown(message, lambda given: bulk if len(given) > 0 else "")
        step = {"do": "frame", "on": connection.name, "from": side, "frame": message.frame_type.name}
        rest = bulk if isinstance(bulk, list) else [bulk] if bulk else []
        self.add({**step, "fields": shown, "wire": [head, *rest] if rest else head}, when)

    def stray(self, connection: Connection, side: str, data: bytes, head: int, when: float) -> None:
        """Bytes that are no frame. What stands behind the first `head` of them may be of a tensor."""
        if self._redact == "none":
            wire: Any = refer(data, self._folder)
        else:
            wire = [data[:head].hex(), self._tensor(side, data[head:])]
            wire = [part for part in wire if part]
        self.add({"do": "bytes", "on": connection.name, "from": side, "wire": wire}, when)

    def _name(self, connection: Connection, message: Message | None, data: bytes, when: float) -> None:
        """Name a connection after its first frame: learner, generation and stream."""
        connection.named = True
        if isinstance(message, (Hello, DataHello)):
            stream = message.stream_idx + 1 if isinstance(message, DataHello) else 0
            connection.name = f"l{message.learner_id}g{message.connection_generation}.{stream}"
        self.add({"do": "open", "on": connection.name}, when)

    def _parts(self, side: str, message: Message, data: bytes) -> tuple[str, Any]:
        """The bytes before the bulk with a space between header and fields, and the bulk by reference."""
        frame = FRAMES[message.frame_type]
        if frame.bulk is None or frame.fixed is None or frame.text:
            text = f"{data[:4].hex()} {data[4:5].hex()} {data[5:13].hex()} {data[13:].hex()}"
            return text.strip(), ""
        edge = HEADER_BYTES + frame.fixed.size
        text = f"{data[:4].hex()} {data[4:5].hex()} {data[5:13].hex()} {data[13:edge].hex()}".strip()
        if isinstance(message, Chunk):
            return text, self._chunk(side, message, data[edge:])
        return text, self._tensor(side, data[edge:])

    def _chunk(self, side: str, message: Chunk, data: bytes) -> Any:
        """The bytes of a chunk: what belongs to the head of the inner frame stays as it is."""
        if self._redact == "none":
            return refer(data, self._folder)
        keep = max(0, max(_HEADS.values()) - message.offset)
        if message.offset == 0 and len(data) >= HEADER_BYTES:
            keep = _HEADS.get(FrameType(data[4]), keep) if data[4] in _HEADS else keep
        return [data[:keep].hex(), self._tensor(side, data[keep:])] if data[keep:] else data.hex()

    def _tensor(self, side: str, data: bytes) -> Any:
        if self._redact == "none" or not data:
            return refer(data, self._folder)
        if self._redact == "fill" and side == "learner":
            filled = bytes([_PATTERN]) * len(data)
            digest = hashlib.sha256(filled).hexdigest()
            return {"gen": "fill", "hex": f"{_PATTERN:02x}", "len": len(data), "sha256": digest}
        return {"gen": "hash", "sha256": hashlib.sha256(data).hexdigest(), "len": len(data)}

    def trace(self, name: str, settings: Mapping[str, Any]) -> Trace:
        """All that was recorded."""
        session = None
        if self.session is not None:
            session = {
                "dtype": self.session.dtype.name,
                "layout": fields.layout_json(self.session.layout),
                "fingerprint": self.session.fingerprint.hex(),
                "contract": self.session.contract.hex(),
                "profile": self.session.profile.hex() if self.session.profile else None,
            }
        head: dict[str, Any] = {
            "format": FORMAT,
            "spec": spec_hash(),
            "id": name,
            "area": "recorded",
            "role": "record",
            "rules": [],
            "expect": "accept",
            "doc": "",
            "preset": "wire",
            "session": session,
            "side": "syncer",  # the one that it can be played against
            "settings": dict(settings),
            "redacted": self._redact,
        }
        with self.lock:
            return Trace(head, tuple(self.steps))
