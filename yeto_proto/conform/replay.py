"""A recorded run as a case of a syncer: what the learners sent is sent again, and it must answer as then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yeto_proto._generated.messages import Message
from yeto_proto._generated.types import Role
from yeto_proto.chunks import Reassembler

from . import fields
from .check import whole
from .trace import BadTraceError, Step, Trace

__all__ = ["as_server_case"]


def as_server_case(trace: Trace) -> Trace:
    """Raises BadTraceError for a trace that cannot be sent again."""
    session = trace.head.get("session")
    if session is None:
        raise BadTraceError(f"{trace.id}: no HELLO was recorded, so there is nothing to replay")
    known = fields.session(session)
    groups: dict[str, Reassembler] = {}
    left: set[str] = set()  # sockets that the learner has ended
    steps: list[Step] = []
    for number, step in enumerate(trace.steps):
        on = step["on"]
        name = on.partition(".")[0]
        if step["do"] == "end":
            steps += [] if on in left else [step]
            left.add(on)
        elif step["do"] != "frame" or step["from"] == "learner":
            steps.append(step)
        elif step["frame"] == "ERROR":
            steps.append({"do": "refused", "on": on, "error": "as recorded"})
        elif step["frame"] == "CHUNK":
            group = groups.setdefault(name, Reassembler(Role.LEARNER, known))
            message = _joined(trace, group, step)
            if message is not None:
                steps.append(_expected(trace, step, message.frame_type.name, fields.shown(message)))
        else:
            steps.append(_expected(trace, step, step["frame"], step["fields"]))
        if step["do"] == "bytes" and step.get("from") == "syncer":
            raise BadTraceError(f"{trace.id}: step {number + 1} holds bytes of the syncer that are no frame")
    rules = trace.head["rules"] or ["syncer.order.contiguous"]
    head = {**trace.head, "role": "server", "side": "syncer", "rules": rules}
    return Trace(head, tuple(steps), trace.path)


def _joined(trace: Trace, group: Reassembler, step: Step) -> Message | None:
    """The message that this chunk completes. Redacted bytes stand as zeros; they are not compared."""
    given = step["fields"]
    data = whole(trace, given["data"])
    arguments = int(given["msg_id"]), int(given["total_len"]), int(given["offset"])
    group.begin(*arguments, len(data))[:] = data
    return group.commit(arguments[0], arguments[2], len(data))


def _expected(trace: Trace, step: Step, frame: str, given: Mapping[str, Any]) -> Step:
    """A frame of the syncer, compared by its fields; tensors only where they were recorded."""
    if trace.head.get("redacted", "none") != "none" and "tensor" in given:
        given = {**given, "tensor": {"any": True}}
    return {
        "do": "frame",
        "on": step["on"].partition(".")[0],
        "from": "syncer",
        "frame": frame,
        "fields": given,
    }
