"""The verbs of scenarios, each as the lines of a trace that it stands for."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from codegen.conform import files, links, values, wire
from codegen.conform.scenario import Scenario
from codegen.conform.sessions import Session
from codegen.faults import SpecFault
from codegen.spec import Spec

Line = dict[str, Any]
_BULK = {
    "INIT_PARAMS": "tensor",
    "PUSH_FRAGMENT": "delta",
    "BCAST_FRAGMENT": "tensor",
    "FINAL_FRAGMENT": "tensor",
}


@dataclass
class Group:
    """A connection group as the runner plays or sees it."""

    learner: int = 0
    generation: int = 1
    streams: int = 0
    messages: int = 0  # chunked messages sent so far
    held: dict[int, int] = field(default_factory=dict)  # fragment: version of the last broadcast


def _single(body: Any, key: str) -> Any:
    """What a verb is about, written alone or under its key beside others."""
    return body[key] if isinstance(body, Mapping) else body


class Play:
    """Turns the steps of one scenario into lines."""

    def __init__(self, spec: Spec, session: Session, case: Scenario, side: str, first: int = 0) -> None:
        self.spec, self.session, self.case = spec, session, case
        self.first = first  # the learner of the first group that says no other
        self.tested = side  # the side under test
        self.played = "learner" if side == "syncer" else "syncer"
        self.groups: dict[str, Group] = {}
        self.lines: list[Line] = []
        self.labels = links.Labels()
        self.ramps: dict[bytes, Line] = {}  # the recipes of long tensors, by their bytes

    def run(self) -> list[Line]:
        """The lines of all steps."""
        for step in self.case.steps:
            self.do(step)
        for label in self.labels.unnamed():
            raise self.fault(f"no step is after the one with the label {label!r}")
        return self.lines

    def fault(self, what: str) -> SpecFault:
        return SpecFault(self.case.where, self.case.id, what)

    def do(self, step: Any) -> None:
        """One step."""
        if isinstance(step, str):
            step = {step: {}}
        if not isinstance(step, dict) or len(step) != 1:
            raise self.fault("a step is a mapping with one key")
        ((key, body),) = step.items()
        verb, *words = key.split()
        method: Callable[..., None] | None = getattr(self, f"do_{verb}", None)
        if method is None:
            raise self.fault(f"there is no verb {verb}")
        own, body = links.taken(body)
        try:
            declared = self.labels.declared(verb, own)
        except links.BadLinkError as error:
            raise self.fault(f"{key}: {error}") from None
        before = len(self.lines)
        method(*words, body)
        if declared:
            # A learner that connects is waited for at its first socket; else the last line is what is meant.
            self.lines[before if verb == "accept" else -1].update(declared)

    # -- sockets

    def do_join(self, name: str, body: Mapping[str, Any]) -> None:
        """A whole group: HELLO, then a DATA_HELLO for each stream but those that are `attached`.

        `hello` overrides fields (`fingerprint` as a value is that of the layout), `like` names a group of the
        same learner, `mac` is the key of the HELLO MAC.
        """
        group = self._group(name, body)
        self.lines.append({"do": "open", "on": f"{name}.0"})
        self._frame(f"{name}.0", self.played, "HELLO", self._hello(group, body), body.get("mac"))
        for index in range(body.get("attached", 0), group.streams):
            self.do_attach(f"{name}.{index + 1}", {})

    def do_attach(self, on: str, body: Mapping[str, Any]) -> None:
        """A data socket with its DATA_HELLO."""
        name, _, number = on.partition(".")
        group = self.groups.get(name) or self._group(name, body)
        self.lines.append({"do": "open", "on": on})
        fields = {
            "protocol_version": self.spec.constant("PROTOCOL_VERSION"),
            "learner_id": group.learner,
            "connection_generation": group.generation,
            "stream_idx": int(number) - 1,
        }
        overrides = {key: value for key, value in body.items() if key in fields}
        self._frame(on, self.played, "DATA_HELLO", {**fields, **overrides})

    def do_accept(self, name: str, body: Mapping[str, Any]) -> None:
        """The learner under test connects: HELLO, and a DATA_HELLO for each stream.

        With `like` it has connected before, as that group, and must use another generation.
        """
        client = self.case.client
        group = Group(client.get("learner_id", 0), 0, client.get("num_streams", 0))
        self.groups[name] = group
        self.lines.append({"do": "open", "on": f"{name}.0"})
        fresh = {"other": f"{body['like']}.0"} if "like" in body else {"min": 1}
        hello = {**self._hello(group, {}), "connection_generation": fresh}
        del hello["syncer_profile_hash"]
        self._expect(f"{name}.0", "HELLO", hello)
        for index in range(group.streams):
            self.lines.append({"do": "open", "on": f"{name}.{index + 1}"})
            fields = {
                "protocol_version": self.spec.constant("PROTOCOL_VERSION"),
                "learner_id": group.learner,
                "connection_generation": {"same": f"{name}.0"},
                "stream_idx": index,
            }
            self._expect(f"{name}.{index + 1}", "DATA_HELLO", fields)

    def do_open(self, on: str, body: Mapping[str, Any]) -> None:
        """A socket that says nothing yet."""
        self.groups.setdefault(on.partition(".")[0], Group())
        self.lines.append({"do": "open", "on": on if "." in on else f"{on}.0"})

    def do_end(self, on: str, body: Mapping[str, Any]) -> None:
        """The runner closes a socket, or all of a group."""
        self.lines.append({"do": "end", "on": on, "by": self.played, **body})

    def do_ended(self, on: str, body: Mapping[str, Any]) -> None:
        """The side under test closes a socket, or all of a group, without a word."""
        self.lines.append({"do": "end", "on": on, "by": self.tested})

    # -- frames

    def do_send(self, on: str, frame: str, body: Mapping[str, Any]) -> None:
        """A bare frame of the side that the runner plays."""
        self._frame(on if "." in on else f"{on}.0", self.played, frame, self._filled(on, frame, body))

    def do_get(self, name: str, frame: str, body: Mapping[str, Any]) -> None:
        """A frame of the side under test, in any number of pieces."""
        self._expect(name, frame, self._expected(name, frame, body))

    def do_bytes(self, on: str, body: Any) -> None:
        """Bytes as they are."""
        body = _single(body, "wire")
        self.lines.append({"do": "bytes", "on": on if "." in on else f"{on}.0", "wire": body})

    def do_head(self, on: str, frame: str, body: Mapping[str, Any]) -> None:
        """The header of a frame with any length."""
        parts = wire.header(self.spec, frame, int(body["len"]))
        self.do_bytes(on, " ".join(each.hex() for each in parts))

    def do_payload(self, on: str, frame: str, body: Any) -> None:
        """A frame with the bytes of its payload as they are."""
        body = _single(body, "payload")
        head = wire.header(self.spec, frame, len(bytes.fromhex(body)))
        self.do_bytes(on, " ".join([*(each.hex() for each in head), body]).strip())

    def do_chunks(self, name: str, frame: str, body: Mapping[str, Any]) -> None:
        """A message in CHUNKs, cut at the offsets of `cut`; `order` is that of the pieces, `sockets` where
        they go, by turns.
        """
        group = self.groups[name]
        own = {key: body[key] for key in ("cut", "order", "sockets", "msg_id", "total") if key in body}
        fields = self._filled(name, frame, {key: body[key] for key in body if key not in own})
        inner = b"".join(part for _, part in self._parts(frame, fields))
        edges = [0, *own.get("cut", []), len(inner)]
        pieces = [(start, inner[start:end]) for start, end in pairwise(edges)]
        sockets = own.get("sockets", [0] * len(pieces))
        message = own.get("msg_id", group.messages)
        for turn, place in enumerate(own.get("order", range(len(pieces)))):
            offset, data = pieces[place]
            chunk = {
                "msg_id": message,
                "total_len": own.get("total", len(inner)),
                "offset": offset,
                "data": data,
            }
            self._frame(f"{name}.{sockets[turn % len(sockets)]}", self.played, "CHUNK", chunk)
        self.lines[-1]["completes"] = {"frame": frame, "fields": self._complete(frame, fields)}
        group.messages += 1

    # -- ends

    def do_refused(self, on: str, body: Any) -> None:
        """The side under test refuses: ERROR where it is the syncer, and the end of the connection."""
        body = _single(body, "error")
        if body not in self.spec.errors:
            raise self.fault(f"there is no error class {body}")
        self.lines.append({"do": "refused", "on": on, "error": body})

    def do_exit(self, body: Any) -> None:
        """The process under test ends with this exit code, or with any but 0."""
        self.lines.append({"do": "exit", "code": _single(body, "code")})

    def do_signal(self, body: str) -> None:
        """A signal to the process under test."""
        self.lines.append({"do": "signal", "name": body})

    def do_restart(self, body: Mapping[str, Any]) -> None:
        """The syncer under test is started again, with these settings on top."""
        self.lines.append({"do": "restart", "settings": dict(body)})
        self.groups.clear()

    def do_file(self, name: str, body: Mapping[str, Any]) -> None:
        """A file that the syncer under test has written."""
        self.lines.append({"do": "file", "name": name, **body})

    def do_place(self, name: str, body: Mapping[str, Any]) -> None:
        """A file that is there before the syncer starts: a snapshot of this session, or a text."""
        if "text" in body:
            data = body["text"].encode()
        else:
            own = {
                "fingerprint": self.session.fingerprint(self.spec).hex(),
                "contract": self.session.contract_hash.hex(),
            }
            data = files.snapshot(self.spec, {**own, **body["snapshot"]})
        self.lines.append({"do": "place", "name": name, "wire": self._refer(data)})

    def do_launch(self, body: Any) -> None:
        """Start the syncer under test without waiting for it to be ready."""
        self.lines.append({"do": "launch"})

    def do_none(self, name: str, frame: str, body: Mapping[str, Any]) -> None:
        """No such frame came that no step has taken."""
        self.lines.append({"do": "none", "on": name, "frame": frame, **body})

    def do_first(self, name: str, body: Mapping[str, Any]) -> None:
        """What a learner 0 under test sends first: INIT of every fragment."""
        for fragment in range(len(self.session.fragments)):
            self._expect(name, "INIT_PARAMS", {"fragment_id": fragment, "tensor": {"steps": True}})

    def do_alive(self, name: str, body: Any) -> None:
        """The group is served: it is refused for another learner's HEARTBEAT, which ends it."""
        self.do_send(name, "HEARTBEAT", {"learner_id": self.groups[name].learner + 1})
        self.do_refused(name, "WrongLearner")

    def do_running(self, body: Any) -> None:
        """The process under test is still there."""
        self.lines.append({"do": "running"})

    def do_steps(self, body: Any) -> None:
        """Wait until the learner under test says, in a PUSH or HEARTBEAT, that it has made so many steps."""
        self.lines.append({"do": "steps", "least": _single(body, "least")})

    # -- parts

    def _names(self, body: Mapping[str, Any]) -> list[str]:
        return list(body.get("groups", ["a"]))

    def _syncer(self, name: str, frame: str, fields: Mapping[str, Any]) -> None:
        (self.do_get if self.tested == "syncer" else self.do_send)(name, frame, fields)

    def _learner(self, name: str, frame: str, fields: Mapping[str, Any]) -> None:
        if self.tested == "syncer":
            self.do_send(name, frame, fields)
        else:
            kept = {key: value for key, value in fields.items() if key != "delta"}
            self.do_get(name, frame, kept)

    def _group(self, name: str, body: Mapping[str, Any]) -> Group:
        learner = body.get("learner", self.first + len(self.groups))
        if "like" in body:
            learner = self.groups[body["like"]].learner
        self.groups[name] = Group(learner, body.get("generation", 1), body.get("streams", 0))
        return self.groups[name]

    def _hello(self, group: Group, body: Mapping[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "protocol_version": self.spec.constant("PROTOCOL_VERSION"),
            "learner_id": group.learner,
            "connection_generation": group.generation,
            "dtype": self.session.dtype,
            "layout": self.session.layout(),
            "layout_fingerprint": self.session.fingerprint(self.spec),
            "session_contract_hash": self.session.contract_hash,
            "syncer_profile_hash": None,
            "num_streams": group.streams,
        }
        for key, value in body.get("hello", {}).items():
            hexed = key in ("layout_fingerprint", "session_contract_hash", "syncer_profile_hash")
            own = fields["layout_fingerprint"] if value == "fingerprint" else None
            fields[key] = own or (bytes.fromhex(value) if hexed else value)
        if "layout" in body.get("hello", {}):
            fields["layout"] = [{**each, "merge_mode": each["merge-mode"]} for each in fields["layout"]]
            for each in fields["layout"]:
                del each["merge-mode"]
        return fields

    def _filled(self, on: str, frame: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """All fields of a frame that the runner sends: what the case gives, and what follows."""
        group = self.groups.get(on.partition(".")[0], Group())
        fields: dict[str, Any] = dict(body)
        names = [each.name for each in self.spec.frame(frame).fields if each.text.counts is None]
        plain = {
            "protocol_version": self.spec.constant("PROTOCOL_VERSION"),
            "learner_id": group.learner,
            "connection_generation": group.generation,
            "fragment_id": 0,
            "round_attempt": 1,
            "base_version": group.held.get(body.get("fragment_id", 0), 0),
            "local_step": 1,
            "c_steps": 1,
            "c_tokens": 10,
            "revision": self.spec.constant("FINALIZATION_REVISION"),
        }
        for key in names:
            fields.setdefault(key, plain.get(key, 0))
        if frame in _BULK:
            fields[_BULK[frame]] = self._bulk(frame, fields)
        if frame == "CHUNK":
            fields["data"] = bytes.fromhex(fields["data"])
        return fields

    def _bulk(self, frame: str, fields: Mapping[str, Any]) -> bytes:
        text = fields.get(_BULK[frame], 0.5)
        if isinstance(text, str):
            return bytes.fromhex(text)
        fragment = fields["fragment_id"]
        inside = 0 <= fragment < len(self.session.fragments)
        numel = self.session.fragments[fragment if inside else 0].numel
        dtypes = {"FINAL_FRAGMENT": "F32", "PUSH_FRAGMENT": self.session.dtype}
        dtype = dtypes.get(frame, self.session.bulk_dtype)
        found = values.values_of(text, numel, self.case.where)
        data = values.pack(self.spec, dtype, found, self.case.where)
        if isinstance(text, Mapping):
            digest = hashlib.sha256(data).hexdigest()
            recipe = {"gen": "ramp", **text, "dtype": dtype, "len": len(data), "sha256": digest}
            self.ramps[data] = recipe
        return data

    def _refer(self, data: bytes) -> Any:
        """Bytes as a line has them."""
        long = len(data) > values.INLINE
        return self.ramps[data] if long and data in self.ramps else values.reference(data)

    def _expected(self, name: str, frame: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that are compared: what the case gives, with the bytes of its values."""
        fields: dict[str, Any] = dict(body)
        if self.tested == "learner" and frame == "PUSH_FRAGMENT":
            group = self.groups[name]
            fields.setdefault("learner_id", self.case.client.get("learner_id", 0))
            fields.setdefault("base_version", group.held.get(body.get("fragment_id", 0), 0))
            fields.setdefault("c_steps", {"min": 1})
            fields.setdefault("c_tokens", {"steps": True})
            fields.setdefault("delta", {"steps": True})
        bulk = _BULK.get(frame)
        given = fields.get(bulk) if bulk is not None else None
        if bulk is not None and given is not None and (not isinstance(given, dict) or "seed" in given):
            fields[bulk] = self._bulk(frame, fields)
        return fields

    def _parts(self, frame: str, fields: Mapping[str, Any]) -> list[tuple[str, bytes]]:
        parts = wire.encode(self.spec, frame, fields, self.case.where)
        length = sum(len(each) for _, each in parts)
        head = zip(("magic", "type", "len"), wire.header(self.spec, frame, length), strict=True)
        return [*head, *parts]

    def _frame(
        self, on: str, side: str, frame: str, fields: Mapping[str, Any], key: str | None = None
    ) -> None:
        """A frame that is sent: its decoded fields, and its bytes with a space between fields."""
        found = self._parts(frame, fields) if key is None else self._sealed(frame, fields, key)
        texts: list[Any] = []
        for part in (self._refer(data) for _, data in found if data):
            if isinstance(part, list):
                texts += part
            elif isinstance(part, str) and texts and isinstance(texts[-1], str):
                texts[-1] += f" {part}"
            else:
                texts.append(part)
        shown = self._complete(frame, fields)
        line = {"do": "frame", "on": on, "from": side, "frame": frame, "fields": shown}
        self.lines.append({**line, "wire": texts[0] if len(texts) == 1 else texts})

    def _sealed(self, frame: str, fields: Mapping[str, Any], key: str) -> list[tuple[str, bytes]]:
        """A HELLO with its MAC behind it."""
        parts = wire.encode(self.spec, frame, fields, self.case.where)
        payload = b"".join(data for _, data in parts)
        domain = bytes(self.spec.constant("MAC_DOMAIN"))
        mac = hmac.digest(key.encode(), domain + payload, "sha256")
        head = wire.header(self.spec, frame, len(payload) + len(mac))
        return [*zip(("magic", "type", "len"), head, strict=True), *parts, ("mac", mac)]

    def _expect(self, on: str, frame: str, fields: Mapping[str, Any]) -> None:
        shown = wire.to_json(self.spec, frame, self._short(frame, fields))
        self.lines.append({"do": "frame", "on": on, "from": self.tested, "frame": frame, "fields": shown})

    def _complete(self, frame: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Every field in wire order, counts included, long bulk as in `wire`."""
        text = self.spec.frame(frame)
        full: dict[str, Any] = {}
        for each in text.fields:
            counted = each.text.counts
            if counted is not None and fields.get(each.name) is None:
                full[each.name] = len(fields[counted])
            else:
                full[each.name] = fields.get(each.name)
        if text.text.bulk is not None:
            full[text.text.bulk.name] = fields.get(text.text.bulk.name, b"")
        return wire.to_json(self.spec, frame, self._short(frame, full))

    def _short(self, frame: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        short = dict(fields)
        bulk = self.spec.frame(frame).text.bulk
        if bulk is not None and isinstance(short.get(bulk.name), bytes):
            short[bulk.name] = self._refer(short[bulk.name])
        return short
