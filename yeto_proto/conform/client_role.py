"""A learner under test: the runner plays the syncer, and knows every delta in advance."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from yeto_proto._generated.messages import DataHello, Heartbeat, Hello, InitParams, Message, PushFragment
from yeto_proto._generated.types import Role

from .client_model import Model
from .groups import Group
from .player import Player
from .processes import Process
from .sut import Sut
from .trace import Step, Trace
from .verdict import FailError, Result

__all__ = ["ClientPlayer"]


class ClientPlayer(Player):
    """Takes the learner's connections and answers as the trace says."""

    played = "syncer"
    role = Role.SYNCER

    def __init__(
        self,
        trace: Trace,
        result: Result,
        work: Path,
        timeout: float,
        sut: Sut,
        *,
        longest: float = math.inf,
    ) -> None:
        super().__init__(trace, result, work, timeout, longest=longest)
        self.case = dict(trace.head["case"])
        self.model = Model(self.case)
        self.steps_seen = 0
        self.wire.on_message = self._seen
        self.verbs["steps"] = self.steps
        port = self.wire.listen()
        self.case["address"] = f"127.0.0.1:{port}"
        path = work / "case.json"
        path.write_text(json.dumps(self.case, indent=1))
        self.process = Process(sut.command("client", {"case": path, "port": port}), sut.env, sut.folder)

    def open(self, step: Step) -> None:
        name, _, number = step["on"].partition(".")
        group = self.wire.group(name)
        stream = int(number)

        def fits(first: Message) -> bool:
            if stream == 0:
                return isinstance(first, Hello)
            hello = group.hello
            return (
                isinstance(first, DataHello)
                and hello is not None
                and first.connection_generation == hello.connection_generation
                and first.stream_idx == stream - 1
            )

        def there() -> bool:
            return any(link.first is not None and fits(link.first) for link in self.wire.fresh)

        what = f"a connection with {'HELLO' if stream == 0 else f'DATA_HELLO of stream {stream - 1}'}"
        began = self.begin()
        if not self.wire.holds(lambda: there() or self.gone(), self.limit(step)):
            raise FailError(f"expected {what}; {self.nothing(step)}")
        if not there():
            raise self.died(f"expected {what}")
        self.in_time(step, what, began, self.wire.clock())
        link = self.wire.claim(name, stream, fits)
        assert link.first is not None
        group.control.appendleft(self.wire.links.arrived(link.first, self.wire.clock(), link))

    def _seen(self, group: Group, message: Message) -> None:
        if isinstance(message, (PushFragment, Heartbeat)):
            self.steps_seen = max(self.steps_seen, message.local_step)

    def sent(self, step: Step) -> None:
        whole = step.get("completes", step)
        if whole["frame"] == "BCAST_FRAGMENT":
            given = whole["fields"]
            tensor = self.trace.wire(given["tensor"])
            self.model.broadcast(int(given["fragment_id"]), int(given["version"]), tensor)

    def wanted(self, group: Group, name: str, value: Any, message: Message) -> Any:
        if isinstance(value, dict) and "same" in value:
            hello = self.wire.group(value["same"].partition(".")[0]).hello
            return str(hello.connection_generation) if hello is not None else value
        if isinstance(value, dict) and "other" in value:
            hello = self.wire.group(value["other"].partition(".")[0]).hello
            used = hello is not None and getattr(message, name) == hello.connection_generation
            return "another generation" if used else {"min": 1}
        if isinstance(value, dict) and value.get("steps"):
            if isinstance(message, PushFragment):
                if name == "c_tokens":
                    return str(message.c_steps * self.case["tokens_per_step"])
                return self.model.delta(
                    message.fragment_id, message.base_version, message.local_step, message.c_steps
                ).hex()
            if isinstance(message, InitParams):
                return self.model.initial(message.fragment_id).hex()
        return super().wanted(group, name, value, message)

    def steps(self, step: Step) -> None:
        """Wait until the learner has made this many steps."""
        began = self.begin()
        if not self.wire.holds(lambda: self.steps_seen >= step["least"], self.limit(step)):
            raise FailError(f"expected {step['least']} local steps; {self.nothing(step)}")
        self.in_time(step, f"{step['least']} local steps", began, self.wire.clock())

    def close(self) -> None:
        super().close()
        if self.process is not None:
            self.process.stop()
