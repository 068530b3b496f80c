"""What the steps of a trace may declare about order and time: `label`, `after` and `within`.

Replies are compared for each stream by itself, and their timing is not compared. A step can ask for more:
`after` names earlier steps, by their `label`, that what it expects must not have come before, and `within`
says in how many seconds it must be there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from yeto_proto._generated.messages import Message

if TYPE_CHECKING:
    from .groups import Link

__all__ = ["Arrival", "Links", "fault", "watched"]

#: Two sockets of one peer are no clock. Of replies on two of them one counts as earlier only when it was
#: there so many seconds before the other.
SLACK_S: Final = 1.0
#: Before a step that others name is sent, and where a case says that something has not come, the runner reads
#: for as long as all of the exchange before has taken, within these bounds: what comes too early is there by
#: then on a busy machine too.
SETTLE_S: Final = (0.3, 3.0)

_TIMED: Final = frozenset({"refused", "exit", "file", "steps"})  # and some of the others
_SENT: Final = frozenset({"frame", "bytes"})
_TESTED: Final = {"server": "syncer", "record": "syncer", "client": "learner"}


def fault(role: str, step: Any, labels: set[str]) -> str | None:
    """What is wrong with the declarations of a step, or None. `labels` are those before it, and grow."""
    tested = _TESTED.get(role)
    expects = step["do"] == "frame" and step.get("from") == tested and tested is not None
    after = step.get("after", [])
    if not isinstance(after, list) or not all(isinstance(each, str) for each in after):
        return "after: must be a list of labels"
    for name in after:
        if not expects:
            return "after: belongs to a frame that the side under test sends"
        if name not in labels:
            return f"after: no step before this one has the label {name!r}"
    if "within" in step:
        within = step["within"]
        if isinstance(within, bool) or not isinstance(within, (int, float)) or not 0 < within < math.inf:
            return "within: must be a number of seconds above 0"
        waits = {
            "frame": expects,
            "end": step.get("by") == tested,
            "open": tested == "learner",  # a syncer's connections are opened by the runner
        }
        if not waits.get(step["do"], step["do"] in _TIMED):
            return "within: belongs to a step that waits for the side under test"
    if "label" in step:
        label = step["label"]
        if not isinstance(label, str) or not label:
            return "label: must be text"
        if step["do"] not in _SENT or tested is None:
            return "label: belongs to a frame, or to bytes that are sent"
        if label in labels:
            return f"label: an earlier step has the label {label!r} too"
        labels.add(label)
    return None


def watched(steps: Sequence[Any]) -> frozenset[str]:
    """The labels that an `after` names."""
    return frozenset(name for step in steps for name in step.get("after", ()))


@dataclass(frozen=True)
class Arrival:
    """A message with its place in the order of events at the runner: `tick` counts what is sent and what
    comes, `when` is the time in seconds of a monotonic clock.
    """

    message: Message
    tick: int
    when: float
    link: Link | None = None


class Links:
    """Which labelled steps are done, and when each was."""

    def __init__(self) -> None:
        self.tick = 0
        self._sent: dict[str, int] = {}
        self._came: dict[str, Arrival] = {}

    def arrived(self, message: Message, when: float, link: Link | None = None) -> Arrival:
        """A message has come."""
        self.tick += 1
        return Arrival(message, self.tick, when, link)

    def sent(self, label: str) -> None:
        """The bytes of a labelled step are about to be written."""
        self.tick += 1
        self._sent[label] = self.tick

    def came(self, label: str, arrival: Arrival) -> None:
        """The reply that a labelled step expects was taken."""
        self._came[label] = arrival

    def early(self, arrival: Arrival, labels: Sequence[str], *, one_socket: bool) -> str | None:
        """The first of these steps that the arrival was before. `one_socket`: the group has no other, so that
        the order of its replies is exact.
        """
        for label in labels:
            if label in self._came:
                other = self._came[label]
                exact = one_socket and other.link is arrival.link
                slack = 0.0 if exact else SLACK_S
                if arrival.tick < other.tick and (exact or other.when - arrival.when > slack):
                    return label
            elif label not in self._sent or arrival.tick < self._sent[label]:
                return label
        return None
