"""Plays the steps of a trace against a process: what both network roles share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from yeto_proto._generated.messages import Heartbeat, Message
from yeto_proto._generated.types import Role

from . import fields
from .groups import Group, Wire
from .links import Arrival, watched
from .match import differences
from .outputs import judge_file
from .processes import Process
from .trace import Step, Trace
from .verdict import UNSUPPORTED, BrokenError, FailError, Result, SkipError, Verdict

__all__ = ["Player"]

_BULK: Final = frozenset({"INIT_PARAMS", "PUSH_FRAGMENT", "BCAST_FRAGMENT", "FINAL_FRAGMENT"})
_CLOSING_S: Final = 8.0  # how long after its ERROR a peer may keep a connection


class Player:
    """One case, one way of cutting its bytes. A subclass says how the process under test is started."""

    played: str  # the side that the runner plays
    role: Role  # the same, as the receiver of what the side under test sends

    def __init__(
        self, trace: Trace, result: Result, work: Path, timeout: float, *, longest: float = math.inf
    ) -> None:
        """timeout: seconds that a step may take. A longer `within` of the case wins, up to `longest`."""
        self.trace, self.result, self.work, self.timeout = trace, result, work, timeout
        self.longest = longest
        self.watched = watched(trace.steps)
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
            self.send(step)
            self.sent(step)
            return
        group = self.wire.group(step["on"].partition(".")[0])
        arrival = self.next(group, step)
        self.ordered(group, step, arrival)
        self.compare(group, step, arrival.message)

    def send(self, step: Step) -> None:
        """Send the bytes of a step."""
        label = step.get("label")
        if label in self.watched:
            self.wire.settle()
        self.wire.send(step["on"], self.parts(step["wire"]), label)

    def parts(self, wire: Any) -> list[bytes]:
        """The bytes of a step, at the edges of its fields."""
        if isinstance(wire, str):
            return [bytes.fromhex(each) for each in wire.split()]
        if isinstance(wire, list):
            return [part for each in wire for part in self.parts(each)]
        return [self.trace.wire(wire)]

    def sent(self, step: Step) -> None:
        """A frame was sent."""

    def next(self, group: Group, step: Step) -> Arrival:
        """The next frame of this kind in its order."""
        kind, wanted = step["frame"], step["fields"]
        what = f"{kind} from {group.name}"
        self.result.expected, self.result.actual = {"frame": kind, **plain(wanted)}, None
        queue = group.bulk[kind, int(wanted["fragment_id"])] if kind in _BULK else group.control
        began = self.begin()
        while True:
            self.wait(group, lambda: bool(queue), what, step, began)
            arrival = queue.popleft()
            message = arrival.message
            if kind == "HEARTBEAT" or not isinstance(message, Heartbeat):
                break
        if message.frame_type.name != kind:
            self.result.actual = {"frame": message.frame_type.name, **plain(fields.shown(message))}
            raise FailError(f"expected {what}, got {message.frame_type.name}")
        self.in_time(step, what, began, arrival.when)
        return arrival

    def begin(self) -> float:
        """Now, with nothing left to be sent: `within` counts from here."""
        self.wire.flush()
        return self.wire.clock()

    def limit(self, step: Step) -> float:
        """How long to wait for what a step expects: at least as long as the case allows."""
        within = step.get("within")
        return self.timeout if within is None else min(max(self.timeout, within), self.longest)

    def in_time(self, step: Step, what: str, began: float, when: float) -> None:
        """What a step expects has come at `when`."""
        within = step.get("within")
        if within is not None and when - began > within:
            took = f"{when - began:.1f} s"
            self.result.expected, self.result.actual = {"within": f"{within:g} s"}, {"within": took}
            raise FailError(f"{what} came after {took}, and the case says within {within:g} s")

    def nothing(self, step: Step) -> str:
        """Why the wait is over."""
        limit = self.limit(step)
        if "within" not in step:
            return f"nothing came in the {limit:g} s that the runner waits"
        return f"nothing came in {limit:g} s, and the case says within {step['within']:g} s"

    def wait(self, group: Group, condition: Callable[[], bool], what: str, step: Step, began: float) -> None:
        """Read until the condition holds; an ERROR, the end of the connection or of the process ends the
        wait.
        """

        def over() -> bool:
            return condition() or group.error is not None or group.ended or self.gone()

        if not self.wire.holds(over, began + self.limit(step) - self.wire.clock()):
            raise FailError(f"expected {what}; {self.nothing(step)}")
        if condition():
            return
        if group.error is not None:
            self.result.actual = {"ERROR": group.error.text}
            raise FailError(f"expected {what}, got an ERROR: {group.error.text}")
        if group.ended:
            raise FailError(f"expected {what}, but the connection ended ({group.links[0].ended})")
        raise self.died(f"expected {what}")

    def died(self, what: str) -> FailError | SkipError:
        """The process under test has ended where it must not have."""
        assert self.process is not None
        if self.process.code == UNSUPPORTED:
            return SkipError(f"the process ended with {UNSUPPORTED}: not supported")
        return FailError(f"{what}, but the process ended with {self.process.code}:\n{self.process.output}")

    def ordered(self, group: Group, step: Step, arrival: Arrival) -> None:
        """The frame must not have come before what the step names as `after`."""
        links = self.wire.links
        label = links.early(arrival, step.get("after", ()), one_socket=len(group.links) == 1)
        if label is not None:
            self.result.expected = {"frame": step["frame"], "after": step["after"]}
            self.result.actual = {"frame": step["frame"], "before": label}
            raise FailError(f"{step['frame']} of {group.name} came before {label!r}")
        if "label" in step:
            links.came(step["label"], arrival)

    def gone(self) -> bool:
        """Whether the process under test has ended; all that it has sent is taken first."""
        if self.process is None or self.process.code is None:
            return False
        self.wire.take()
        return True

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
        self.send(step)

    def end(self, step: Step) -> None:
        if step["by"] == self.played:
            self.result.log.append(f"> {step['on']}: closed")
            self.wire.close(step["on"], reset=bool(step.get("reset")))
            return
        name, _, number = step["on"].partition(".")
        link = self.wire.link(step["on"])
        what, began = f"the end of {name}.{number or 0}", self.begin()
        if not self.wire.holds(lambda: link.ended is not None, self.limit(step)):
            raise FailError(f"expected {what}; {self.nothing(step)}")
        self.in_time(step, what, began, link.ended_at)
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

        began = self.begin()
        if not self.wire.holds(lambda: over() or self.gone(), self.limit(step)):
            raise FailError(f"accepted what must be refused as {step['error']}: {self.nothing(step)}")
        if not over() and self.role is Role.LEARNER:
            raise self.died("expected that one connection is refused")
        if over():
            when = group.error_at if says and group.error is not None else link.ended_at
            self.in_time(step, f"the refusal as {step['error']}", began, when)
        if says:
            # Its ERROR may come on another socket than the one whose end was seen first.
            self.wire.holds(lambda: group.error is not None or group.over, _CLOSING_S)
            if group.error is None:
                self.result.closing = Verdict.LOOSE
                self.result.reason = f"the connection was {link.ended} without an ERROR"
            elif not self.wire.holds(lambda: link.ended is not None, max(_CLOSING_S, self.timeout)):
                self.result.closing = Verdict.FAIL
                self.result.reason = "an ERROR came, and the connection stayed open"
            group.error = None

    def exit(self, step: Step) -> None:
        assert self.process is not None
        began = self.begin()
        self.wire.holds(self.gone, self.limit(step))
        code = self.process.code
        self.result.expected, self.result.actual = {"exit code": step["code"]}, {"exit code": code}
        if code == UNSUPPORTED:
            raise self.died("")
        if code is None:
            raise FailError(f"the process did not end: {self.nothing(step)}")
        self.in_time(step, "the end of the process", began, self.wire.clock())
        right = code not in (0, None) and code > 0 if step["code"] == "failure" else code == step["code"]
        if not right:
            raise FailError(f"exit code {code}, expected {step['code']}:\n{self.process.output}")

    def running(self, step: Step) -> None:
        if self.gone():
            raise self.died("it must run")

    def none(self, step: Step) -> None:
        """No such frame has come, as far as it was read."""
        group = self.wire.group(step["on"])
        self.wire.settle()
        waiting = [*group.control, *(each for queue in group.bulk.values() for each in queue)]
        for each in (arrival.message for arrival in waiting):
            if each.frame_type.name == step["frame"] and step.get("fragment_id") in (None, _fragment(each)):
                self.result.expected, self.result.actual = {"no": step["frame"]}, plain(fields.shown(each))
                raise FailError(f"{step['frame']} came, which must not come here")

    def signal(self, step: Step) -> None:
        assert self.process is not None
        self.wire.flush()
        self.process.signal(step["name"])

    def file(self, step: Step) -> None:
        began = self.begin()
        judge_file(self, self.work / step["name"], step)
        self.in_time(step, f"the file {step['name']}", began, self.wire.clock())

    def holds_file(self, step: Step, condition: Callable[[], bool]) -> bool:
        """Go on reading until a file is as it must be."""
        return self.wire.holds(condition, self.limit(step))

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
