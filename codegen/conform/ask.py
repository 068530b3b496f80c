"""Questions for a codec: the cases of `spec/cases/codec`, and those of the value and file areas.

A question and its answer are the lines that a codec adapter reads and writes.
"""

from __future__ import annotations

from typing import Any

from codegen.codec_cases import CaseFile, CaseText, SessionText
from codegen.conform import wire
from codegen.conform.trace import Trace
from codegen.faults import SpecFault
from codegen.spec import Spec


def codec_traces(spec: Spec, files: tuple[CaseFile, ...]) -> list[Trace]:
    """The traces of the codec area."""
    return [_trace(spec, file, case) for file in files for case in file.cases]


def _trace(spec: Spec, file: CaseFile, case: CaseText) -> Trace:
    session = _session(file.sessions[case.session]) if case.session is not None else None
    if case.stream:
        request: dict[str, Any] = {
            "op": "stream",
            "side": case.side,
            "session": session if case.admitted else None,
            "admitted": case.admitted,
            "pieces": [[0, case.data.hex()]],
            "end": True,
            "preset": "wire",
        }
    else:
        request = {
            "op": "decode",
            "frame": file.frame,
            "payload": case.data.hex(),
            "session": session,
            "side": case.side,
        }
    steps = [{"do": "ask", "request": request, "answer": _answer(spec, file, case)}]
    if case.expect == "accept" and not case.stream:
        steps.append(_back(spec, file, case))
    area = "framing" if case.stream else "frames"
    return Trace(case.id, area, "codec", case.rules, case.expect, steps, case.doc)


def _session(text: SessionText) -> dict[str, Any]:
    layout = []
    for each in text.fragments:
        fragment: dict[str, Any] = {"merge_mode": each.merge_mode, "numels": each.numels}
        if each.shapes:
            fragment["shapes"] = each.shapes
        layout.append(wire.layout_json(fragment))
    return {"dtype": text.dtype, "layout": layout}


def _answer(spec: Spec, file: CaseFile, case: CaseText) -> dict[str, Any]:
    if case.expect == "refuse":
        (rule,) = case.rules
        return {"ok": False, "error": error_of(spec, rule, case), "rule": rule}
    if not case.stream:
        fields = wire.decode(spec, file.frame, case.data)
        return {"ok": True, "fields": wire.to_json(spec, file.frame, fields)}
    size = spec.header.size or 0
    (name,) = (each.name for each in spec.frames if each.text.id == case.data[4])
    fields = wire.decode(spec, name, case.data[size:])
    return {"ok": True, "messages": [{"frame": name, "fields": wire.to_json(spec, name, fields)}]}


def _back(spec: Spec, file: CaseFile, case: CaseText) -> dict[str, Any]:
    """The same message, to be encoded."""
    fields = wire.decode(spec, file.frame, case.data)
    head = b"".join(wire.header(spec, file.frame, len(case.data)))
    request = {"op": "encode", "frame": file.frame, "fields": wire.to_json(spec, file.frame, fields)}
    return {"do": "ask", "request": request, "answer": {"ok": True, "wire": (head + case.data).hex()}}


def error_of(spec: Spec, rule: str, case: Any) -> str:
    """The error class of a rule, also of one of a file."""
    for each in spec.rules():
        if each.id == rule:
            return each.error
    for text in spec.parts.get("files", ()):
        for each in text.rules:
            if text.rule_id(each) == rule:
                return str(each.else_)
    raise SpecFault(case.where, "rule", f"{rule} is no rule with an error")
