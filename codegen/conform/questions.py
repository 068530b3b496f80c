"""Questions about chunks, values, fingerprints and files: `spec/cases/questions/*.yaml`.

`request` and `answer` stand as an adapter reads and writes them; a case that is refused gives no answer,
since it follows from the rule. Two short forms save bytes: `inner` with `pieces` cuts a frame into CHUNKs,
and `session` names one of `sessions.yaml`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from codegen.bind import bind
from codegen.conform import files, sessions, values, wire
from codegen.conform.ask import error_of
from codegen.conform.sessions import Session
from codegen.conform.trace import Trace
from codegen.faults import SpecFault, Where
from codegen.load import read
from codegen.spec import Spec


@dataclass(frozen=True, slots=True)
class Inner:
    """A frame in CHUNKs. Each piece is a range of its bytes; other keys override what follows from that."""

    frame: str
    where: Where
    fields: Mapping[str, Any] = field(default_factory=dict)
    pieces: tuple[Any, ...] = ()
    sockets: tuple[int, ...] = (0,)
    msg_ids: tuple[int, ...] = (0,)
    totals: tuple[int, ...] = ()
    patch: Mapping[str, str] = field(default_factory=dict)
    bare: tuple[int, ...] = ()
    done: int = 1
    preset: Literal["wire", "tiny"] = "wire"


@dataclass(frozen=True, slots=True)
class Question:
    """One case."""

    id: str
    rule: str | tuple[str, ...]
    expect: Literal["accept", "refuse"]
    where: Where
    lines: Mapping[str, Where]
    doc: str = ""
    session: str | None = None
    side: Literal["syncer", "learner"] = "syncer"
    request: Mapping[str, Any] = field(default_factory=dict)
    answer: Mapping[str, Any] = field(default_factory=dict)
    inner: Inner | None = None
    snapshot: Mapping[str, Any] | None = None

    @property
    def rules(self) -> tuple[str, ...]:
        return (self.rule,) if isinstance(self.rule, str) else self.rule


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """A file of cases."""

    area: str
    cases: tuple[Question, ...]
    where: Where


def traces(spec: Spec) -> list[Trace]:
    """Every trace of these files. Raises `SpecFault`."""
    shared = sessions.load(spec.root)
    found = []
    for path in sorted((spec.root / "cases" / "questions").glob("*.yaml")):
        file = bind(QuestionFile, read(path, f"{spec.root.name}/cases/questions/{path.name}"))
        for case in file.cases:
            session = shared[case.session] if case.session else None
            request, answer = _ask(spec, case, session)
            if case.expect == "refuse":
                (rule,) = case.rules
                answer = {"ok": False, "error": error_of(spec, rule, case), "rule": rule}
            step = {"do": "ask", "request": request, "answer": answer}
            found.append(Trace(case.id, file.area, "codec", case.rules, case.expect, [step], case.doc))
    return found


def _ask(spec: Spec, case: Question, session: Session | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if case.inner is not None:
        if session is None:
            raise SpecFault(case.where, "session", "is needed to take a message out of CHUNKs")
        return _chunked(spec, case, case.inner, session)
    if case.snapshot is not None:
        request = {"op": "snapshot", "file": files.snapshot(spec, case.snapshot).hex(), **case.request}
        if session is not None:
            known = session.json(spec)
            request["session"] = {key: known[key] for key in ("layout", "fingerprint", "contract")}
        if case.request.get("session"):
            request["session"] = {**request.get("session", {}), **case.request["session"]}
        return request, {"ok": True, "fields": files.snapshot_fields(case.snapshot)}
    return case.request, {"ok": True, **case.answer}


def frame_parts(
    spec: Spec, session: Session, frame: str, given: Mapping[str, Any], where: Where
) -> tuple[dict[str, Any], bytes]:
    """Fields and bytes of a frame of bulk, with plain values where the case gives none."""
    fragment = given.get("fragment_id", 0)
    numel = session.fragments[fragment].numel
    fields: dict[str, Any] = {}
    for each in spec.frame(frame).fields:
        fields[each.name] = given.get(each.name, 1 if each.text.must is not None else 0)
    fields["fragment_id"] = fragment
    bulk = spec.frame(frame).text.bulk
    if bulk is not None:
        dtype = {"FINAL_FRAGMENT": "F32", "PUSH_FRAGMENT": session.dtype}.get(frame, session.bulk_dtype)
        found = values.values_of(given.get(bulk.name, 0.5), numel, where)
        fields[bulk.name] = values.pack(spec, dtype, found, where)
    payload = b"".join(data for _, data in wire.encode(spec, frame, fields, where))
    return fields, b"".join(wire.header(spec, frame, len(payload))) + payload


def _chunked(
    spec: Spec, case: Question, inner: Inner, session: Session
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    fields, data = frame_parts(spec, session, inner.frame, inner.fields, inner.where)
    patched = bytearray(data)
    for offset, text in inner.patch.items():
        patched[int(offset) : int(offset) + len(text) // 2] = bytes.fromhex(text)
    pieces: list[Any] = []
    for number, (start, end) in enumerate(inner.pieces or ((0, len(data)),)):
        socket = inner.sockets[number % len(inner.sockets)]
        if number in inner.bare:
            pieces.append([socket, values.reference(data)])
            continue
        total = inner.totals[number % len(inner.totals)] if inner.totals else len(data)
        message = inner.msg_ids[number % len(inner.msg_ids)]
        piece = bytes.fromhex(chunk(spec, message, total, start, patched[start:end]))
        pieces.append([socket, values.reference(piece)])
    known = session.json(spec)
    request = {
        "op": "stream",
        "side": case.side,
        "session": {"dtype": known["dtype"], "layout": known["layout"]},
        "admitted": True,
        "pieces": pieces,
        "end": True,
        "preset": inner.preset,
    }
    whole = {"frame": inner.frame, "fields": wire.to_json(spec, inner.frame, fields)}
    return request, {"ok": True, "messages": [whole] * inner.done}


def chunk(spec: Spec, message: int, total: int, offset: int, data: bytes | bytearray) -> str:
    """A CHUNK frame in hexadecimal."""
    payload = struct.pack("<QQQ", message, total, offset % 2**64) + data
    return (b"".join(wire.header(spec, "CHUNK", len(payload))) + payload).hex()
