"""Plays the steps of a trace against a process: what both network roles share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from yeto_proto._generated.messages import Heartbeat, Message
from yeto_proto._generated.types import Role

from . import fields
from .groups import Group, Wire
from .match import differences
from .outputs import judge_file
from .processes import Process
from .trace import Step, Trace
from .verdict import BrokenError, FailError, Result, Verdict

__all__ = ["Player"]

_BULK: Final = frozenset({"INIT_PARAMS", "PUSH_FRAGMENT", "BCAST_FRAGMENT", "FINAL_FRAGMENT"})
_CLOSING_S: Final = 8.0  # how long after its ERROR a peer may keep a connection


class Player:
    """One case, one way of cutting its bytes. A subclass says how the process under test is started."""

    played: str  # the side that the runner plays
    role: Role  # the same, as the receiver of what the side under test sends

    def __init__(self, trace: Trace, result: Result, work: Path, timeout: float) -> None:
        self.trace, self.result, self.work, self.timeout = trace, result, work, timeout
        self.process: Process | None = None
        self.wire = Wire(self.role, fields.session(trace.head["session"]), result.cut, result.log.append)
        self.verbs: dict[str, Callable[[Step], None]] = {
            "open": self.open,
            "frame": self.frame,
            "bytes": self.bytes,
            "end": self.end,
            "refused": self.refused,
            "exit": self.exit,
            "file": self.file,
            "running": self.running,
            "none": self.none,
            "signal": self.signal,
        }

    def play(self) -> None:
        """Every step. Raises FailError, SkipError, BrokenError, NotStartedError."""
        for number, step in enumerate(self.trace.steps):
            self.result.step = number
            verb = self.verbs.get(step["do"])
            if verb is None:
                raise BrokenError(f"a {self.trace.role} case has no step {step['do']!r}")
            verb(step)
        self.wire.flush()
        self.result.step = None

    # -- verbs

    def open(self, step: Step) -> None:
        raise NotImplementedError

    def frame(self, step: Step) -> None:
        if step["from"] == self.played:
            self.result.log.append(f"> {step['on']}: {step['frame']} {plain(step['fields'])}")
            self.wire.send(step["on"], self.parts(step["wire"]))
            self.sent(step)
            return
        group = self.wire.group(step["on"].partition(".")[0])
        message = self.next(group, step)
        self.compare(group, step, message)

    def parts(self, wire: Any) -> list[bytes]:
        """The bytes of a step, at the edges of its fields."""
        if isinstance(wire, str):
            return [bytes.fromhex(each) for each in wire.split()]
        if isinstance(wire, list):
            return [part for each in wire for part in self.parts(each)]
        return [self.trace.wire(wire)]

    def sent(self, step: Step) -> None:
        """A frame was sent."""

    def next(self, group: Group, step: Step) -> Message:
        """The next frame of this kind in its order."""
        kind, wanted = step["frame"], step["fields"]
        what = f"{kind} from {group.name}"
        self.result.expected, self.result.actual = {"frame": kind, **plain(wanted)}, None
        queue = group.bulk[kind, int(wanted["fragment_id"])] if kind in _BULK else group.control
        while True:
            self.wait(group, lambda: bool(queue), what)
            message = queue.popleft()
            if kind == "HEARTBEAT" or not isinstance(message, Heartbeat):
                break
        if message.frame_type.name != kind:
            self.result.actual = {"frame": message.frame_type.name, **plain(fields.shown(message))}
            raise FailError(f"expected {what}, got {message.frame_type.name}")
        return message

    def wait(self, group: Group, condition: Callable[[], bool], what: str) -> None:
        """Read until the condition holds; an ERROR, the end of the connection or of the process ends the
        wait.
        """

        def over() -> bool:
            return condition() or group.error is not None or group.ended or self.gone()

        self.wire.until(over, self.timeout, what)
        if condition():
            return
        if group.error is not None:
            self.result.actual = {"ERROR": group.error.text}
            raise FailError(f"expected {what}, got an ERROR: {group.error.text}")
        if group.ended:
            raise FailError(f"expected {what}, but the connection ended ({group.links[0].ended})")
        assert self.process is not None
        raise FailError(f"expected {what}, but the process ended with {self.process.code}")

    def gone(self) -> bool:
        """Whether the process under test has ended."""
        return self.process is not None and self.process.code is not None

    def compare(self, group: Group, step: Step, message: Message) -> None:
        """Field by field."""
        found = fields.shown(message)
        wanted = {key: self.wanted(group, key, value, message) for key, value in step["fields"].items()}
        self.result.expected = {"frame": step["frame"], **plain(wanted)}
        self.result.actual = {"frame": step["frame"], **plain(found)}
        lines = differences(wanted, found)
        if lines:
            raise FailError(f"{step['frame']} of {group.name}: {'; '.join(lines)}")

    def wanted(self, group: Group, name: str, value: Any, message: Message) -> Any:
        """The value that a field must have, with references resolved."""
        if name in ("tensor", "delta", "data") and value != {"any": True}:
            return self.trace.wire(value).hex()
        return value

    def bytes(self, step: Step) -> None:
        self.result.log.append(f"> {step['on']}: {str(step['wire'])[:120]}")
        self.wire.send(step["on"], self.parts(step["wire"]))

    def end(self, step: Step) -> None:
        if step["by"] == self.played:
            self.result.log.append(f"> {step['on']}: closed")
            self.wire.close(step["on"], reset=bool(step.get("reset")))
            return
        name, _, number = step["on"].partition(".")
        link = self.wire.link(step["on"])
        self.wire.until(lambda: link.ended is not None, self.timeout, f"the end of {name}.{number or 0}")
        error = self.wire.group(name).error
        if error is not None:
            raise FailError(f"expected an end without a word, got an ERROR: {error.text}")

    def refused(self, step: Step) -> None:
        name = step["on"].partition(".")[0]
        group, link = self.wire.group(name), self.wire.link(step["on"])
        says = self.role is Role.LEARNER  # only a syncer sends ERROR
        self.result.expected, self.result.actual = {"refused as": step["error"]}, None

        def over() -> bool:
            return link.ended is not None or (says and group.error is not None)

        if not self.wire.holds(lambda: over() or self.gone(), self.timeout):
            raise FailError(f"accepted what must be refused as {step['error']}")
        if not over() and self.role is Role.LEARNER:
            raise FailError("the process ended instead of refusing one connection")
        if says:
            self.wire.holds(lambda: group.error is not None, 0.5 if link.ended else 0)
            if group.error is None:
                self.result.closing = Verdict.LOOSE
                self.result.reason = f"the connection was {link.ended} without an ERROR"
            elif not self.wire.holds(lambda: link.ended is not None, _CLOSING_S):
                self.result.closing = Verdict.FAIL
                self.result.reason = "an ERROR came, and the connection stayed open"
            group.error = None

    def exit(self, step: Step) -> None:
        assert self.process is not None
        self.wire.holds(self.gone, self.timeout)
        code = self.process.code
        self.result.expected, self.result.actual = {"exit code": step["code"]}, {"exit code": code}
        if code is None:
            raise FailError(f"the process did not end within {self.timeout:g} s")
        right = code not in (0, None) and code > 0 if step["code"] == "failure" else code == step["code"]
        if not right:
            raise FailError(f"exit code {code}, expected {step['code']}:\n{self.process.output}")

    def running(self, step: Step) -> None:
        if self.gone():
            assert self.process is not None
            raise FailError(f"the process ended with {self.process.code}:\n{self.process.output}")

    def none(self, step: Step) -> None:
        """No such frame has come, as far as it was read."""
        group = self.wire.group(step["on"])
        self.wire.holds(lambda: False, 0.1)
        waiting = [*group.control, *(each for queue in group.bulk.values() for each in queue)]
        for each in waiting:
            if each.frame_type.name == step["frame"] and step.get("fragment_id") in (None, _fragment(each)):
                self.result.expected, self.result.actual = {"no": step["frame"]}, plain(fields.shown(each))
                raise FailError(f"{step['frame']} came, which must not come here")

    def signal(self, step: Step) -> None:
        assert self.process is not None
        self.wire.flush()
        self.process.signal(step["name"])

    def file(self, step: Step) -> None:
        judge_file(self, self.work / step["name"], step)

    def holds_file(self, condition: Callable[[], bool]) -> bool:
        """Go on reading until a file is as it must be."""
        return self.wire.holds(condition, self.timeout)

    def close(self) -> None:
        """End the sockets; the process is ended by its owner."""
        self.wire.close_all()


def _fragment(message: Message) -> Any:
    return getattr(message, "fragment_id", None)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields for a log, with long ones cut."""
    return {
        key: value if len(str(value)) <= 160 else f"{str(value)[:150]}... ({len(str(value))} characters)"
        for key, value in values.items()
    }
