"""Cases at each limit of the specification, one byte below it and one above.

They follow from the limit expressions of frames and of `limits.yaml`, so that a changed limit moves its
cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from codegen.conform import questions, sessions, values, wire
from codegen.conform.sessions import Session
from codegen.conform.trace import Trace
from codegen.faults import Where
from codegen.spec import Frame, Spec

_AREA = "limits"
_HERE = Where("codegen/conform/limits.py", 0)


def traces(spec: Spec) -> list[Trace]:
    """Every case of this kind."""
    shared = sessions.load(spec.root)
    found: list[Trace] = []
    for name in ("two", "half", "nibble"):
        for frame in spec.frames:
            if frame.text.carried_by == "data" or name == "two":
                found += _frame_cases(spec, frame, name, shared[name])
    found += _hello_cases(spec)
    found += _chunk_cases(spec, shared["two"])
    found += _partial_cases(spec, shared["two"])
    return found


def limit(spec: Spec, frame: Frame, session: Session, preset: str = "wire") -> int:
    """The largest payload of a frame."""
    lookup = _lookup(spec, session, preset)
    functions = {each.name: _size(spec, each.name) for each in spec.types.sizes}
    if frame.text.limit is not None:
        return int(frame.text.limit.evaluate(lookup, functions))
    repeated = sum(8 * len(session.fragments) for each in frame.fields if each.text.count is not None)
    total = frame.head_size + repeated
    bulk = frame.text.bulk
    size = None if bulk is None else bulk.length or bulk.limit
    return total + (0 if size is None else int(size.evaluate(lookup, functions)))


def _lookup(spec: Spec, session: Session, preset: str) -> Callable[[str], Any]:
    largest = max(each.numel for each in session.fragments)
    limits = {each.name.lower(): each for each in spec.limits.constants}

    def look(name: str) -> Any:
        if name.startswith("preset."):
            constant = limits[name.removeprefix("preset.")]
            return constant.tiny if preset == "tiny" else spec.constant(constant.name)
        return {"session.dtype": session.dtype, "fragment.numel": largest}[name]

    return look


def _size(spec: Spec, name: str) -> Callable[..., int]:
    size = spec.sizes[name]

    def compute(*arguments: Any) -> int:
        bound = dict(zip(size.args, arguments, strict=True))
        expr = size.value if size.choose is None else size.cases[bound[size.choose]]
        assert expr is not None
        return int(expr.evaluate(lambda each: bound[each] if each in bound else spec.constant(each)))

    return compute


def _frame_cases(spec: Spec, frame: Frame, name: str, session: Session) -> Iterator[Trace]:
    if frame.text.carried_by == "first" or frame.name == "CHUNK":
        return
    largest = max(range(len(session.fragments)), key=lambda each: session.fragments[each].numel)
    preset = "tiny" if frame.name == "ERROR" else "wire"
    top = limit(spec, frame, session, preset)
    side = "syncer" if frame.received_by("syncer") else "learner"
    slug = f"limit-{frame.slug.replace('_', '-')}-{name}"
    fields, data = _full(spec, frame, session, largest, top)
    assert len(data) == top + len(b"".join(wire.header(spec, frame.name, 0)))
    message = {"frame": frame.name, "fields": wire.to_json(spec, frame.name, fields)}
    fits = _rule(frame, ("length", "end", "utf8", "complete"))
    yield _stream(slug, [*fits, "header.len.limit"], side, session, spec, data, message, preset)
    head = b"".join(wire.header(spec, frame.name, top + 1))
    if name == "two" or (name == "nibble" and frame.name == "PUSH_FRAGMENT"):
        yield _stream(f"{slug}-above", ["header.len.limit"], side, session, spec, head, None, preset)
    if top and frame.name != "ERROR":
        below = b"".join(wire.header(spec, frame.name, top - 1)) + data[len(head) : -1]
        rule = _rule(frame, ("length", "complete"))
        yield _stream(f"{slug}-below", rule, side, session, spec, below, None)


def _rule(frame: Frame, endings: tuple[str, ...]) -> list[str]:
    """The first rule of the frame with one of these endings, in their order."""
    ids = [each.id for each in (*frame.rules, *frame.extra_rules) if each.when == "decode"]
    for ending in endings:
        for each in ids:
            if each.endswith(f".{ending}"):
                return [each]
    return []


def _full(
    spec: Spec, frame: Frame, session: Session, fragment: int, top: int
) -> tuple[dict[str, Any], bytes]:
    if frame.name == "ERROR":
        text = "x" * top
        return {"text": text}, b"".join(wire.header(spec, "ERROR", top)) + text.encode()
    if frame.text.carried_by == "data":
        return questions.frame_parts(spec, session, frame.name, {"fragment_id": fragment}, _HERE)
    fields: dict[str, Any] = {}
    for each in frame.fields:
        if each.text.count is not None:
            fields[each.name] = [1] * len(session.fragments)
        elif each.text.counts is not None:
            fields[each.name] = len(session.fragments)
        else:
            fields[each.name] = 0 if each.name in ("fragment_id", "learner_id") else 1
    payload = b"".join(data for _, data in wire.encode(spec, frame.name, fields, _HERE))
    return fields, b"".join(wire.header(spec, frame.name, len(payload))) + payload


def _stream(
    name: str,
    rules: list[str],
    side: str,
    session: Session | None,
    spec: Spec,
    data: bytes,
    message: dict[str, Any] | None,
    preset: str = "wire",
) -> Trace:
    known = session.json(spec) if session is not None else None
    request = {
        "op": "stream",
        "side": side,
        "session": {"dtype": known["dtype"], "layout": known["layout"]} if known else None,
        "admitted": session is not None,
        "pieces": [[0, values.reference(data)]],
        "end": True,
        "preset": preset,
    }
    return _judged(spec, name, rules, request, [message] if message else None)


def _judged(
    spec: Spec, name: str, rules: list[str], request: dict[str, Any], messages: list[Any] | None
) -> Trace:
    if messages is not None:
        answer: dict[str, Any] = {"ok": True, "messages": messages}
    else:
        (error,) = {each.error for each in spec.rules() if each.id == rules[0]}
        answer = {"ok": False, "error": error, "rule": rules[0]}
    expect = "refuse" if messages is None else "accept"
    return Trace(name, _AREA, "codec", rules, expect, [{"do": "ask", "request": request, "answer": answer}])


def _hello_cases(spec: Spec) -> Iterator[Trace]:
    """A HELLO as long as the tiny preset allows, and a header of one byte more."""
    (constant,) = (each for each in spec.limits.constants if each.name == "HELLO_MAX")
    top = int(constant.tiny or 0)
    fixed = 2 + 4 + 8 + 1 + 4 + 2 * int(spec.constant("HASH_BYTES")) + 2
    head = int(spec.constant("FRAGMENT_HEAD_BYTES"))
    count = next(each for each in range(1, 9) if (top - fixed - head * each) % 8 == 0)
    tensors = (top - fixed - head * count) // 8
    layout = [{"merge_mode": "AVG", "numels": [1]} for _ in range(count - 1)]
    layout.append({"merge_mode": "AVG", "numels": [1] * (tensors - count + 1)})
    fields = {
        "protocol_version": spec.constant("PROTOCOL_VERSION"),
        "learner_id": 0,
        "connection_generation": 1,
        "dtype": "F32",
        "num_fragments": count,
        "layout": layout,
        "layout_fingerprint": bytes(32),
        "session_contract_hash": bytes(32),
        "syncer_profile_hash": None,
        "num_streams": 0,
    }
    payload = b"".join(data for _, data in wire.encode(spec, "HELLO", fields, _HERE))
    assert len(payload) == top
    data = b"".join(wire.header(spec, "HELLO", top)) + payload
    message = {"frame": "HELLO", "fields": wire.to_json(spec, "HELLO", fields)}
    rules = ["hello.num_tensors.fits", "header.len.limit"]
    yield _stream("limit-hello-tiny", rules, "syncer", None, spec, data, message, "tiny")
    above = b"".join(wire.header(spec, "HELLO", top + 1))
    yield _stream("limit-hello-tiny-above", ["header.len.limit"], "syncer", None, spec, above, None, "tiny")


def _chunk_cases(spec: Spec, session: Session) -> Iterator[Trace]:
    """A CHUNK of a whole slice of the tiny preset, one of one byte more, and totals around the largest."""
    (constant,) = (each for each in spec.limits.constants if each.name == "CHUNK_SLICE")
    piece = int(constant.tiny or 0)
    chunk_head = int(spec.constant("CHUNK_HEAD_BYTES"))
    header = int(spec.constant("HEADER_BYTES"))
    fields, data = questions.frame_parts(spec, session, "PUSH_FRAGMENT", {"fragment_id": 1}, _HERE)
    message = {"frame": "PUSH_FRAGMENT", "fields": wire.to_json(spec, "PUSH_FRAGMENT", fields)}
    whole = bytes.fromhex(
        questions.chunk(spec, 0, len(data), 0, data[:piece])
        + questions.chunk(spec, 0, len(data), piece, data[piece:])
    )
    rules = ["chunk.data.inside", "header.len.limit"]
    yield _stream("limit-chunk-slice-tiny", rules, "syncer", session, spec, whole, message, "tiny")
    above = b"".join(wire.header(spec, "CHUNK", chunk_head + piece + 1))
    yield _stream(
        "limit-chunk-slice-tiny-above", ["header.len.limit"], "syncer", session, spec, above, None, "tiny"
    )
    for side, names in (
        ("syncer", ("INIT_PARAMS", "PUSH_FRAGMENT")),
        ("learner", ("BCAST_FRAGMENT", "FINAL_FRAGMENT")),
    ):
        top = header + max(limit(spec, spec.frame(each), session) for each in names)
        for label, total in (("", top), ("-above", top + 1)):
            refused = bytes.fromhex(questions.chunk(spec, 0, total, 0, b"\0"))
            name = f"limit-chunk-total-{side}{label}"
            if not label:  # an incomplete message is no fault
                request = _stream(name, ["chunk.total_len.limit"], side, session, spec, refused, None).steps[
                    0
                ]
                yield _judged(spec, name, ["chunk.total_len.limit"], request["request"], [])
            else:
                yield _stream(name, ["chunk.total_len.limit"], side, session, spec, refused, None)


def _partial_cases(spec: Spec, session: Session) -> Iterator[Trace]:
    """As many incomplete messages, and as many ranges of one message, as the presets allow, and one more."""
    limits = {each.name: each for each in spec.limits.constants}
    for preset in ("tiny", "wire"):
        constant = limits["MAX_PARTIAL_MESSAGES"]
        most = int((constant.tiny if preset == "tiny" else spec.constant(constant.name)) or 0)
        for label, count in (("", most), ("-above", most + 1)):
            chunks = [questions.chunk(spec, each, 20, 0, b"\xde") for each in range(count)]
            name = f"limit-partials-{preset}{label}"
            yield _open(spec, session, name, "chunk.msg_id.partials", chunks, preset, not label)
    most = int(limits["MAX_RANGES"].tiny or 0)
    for label, count in (("", most), ("-above", most + 1)):
        places = range(20, 20 + 2 * count, 2)
        chunks = [questions.chunk(spec, 0, 77, each, b"\0") for each in places]
        name = f"limit-ranges-tiny{label}"
        yield _open(spec, session, name, "chunk.data.ranges", chunks, "tiny", not label)


def _open(
    spec: Spec, session: Session, name: str, rule: str, chunks: list[str], preset: str, accepted: bool
) -> Trace:
    """Chunks that leave a message incomplete, which is no fault. Each is a piece of its own."""
    request = _stream(name, [rule], "syncer", session, spec, b"", None, preset).steps[0]["request"]
    request = {**request, "pieces": [[0, each] for each in chunks]}
    return _judged(spec, name, [rule], request, [] if accepted else None)
