"""Mutants of the codec, behind the adapter protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.conform.mutants.patches import rule_holds, wrap
from yeto_proto import chunks, dtypes, ranges
from yeto_proto._generated.types import Dtype
from yeto_proto.conform import adapter, answers
from yeto_proto.files import checks
from yeto_proto.layout import Layout


def run() -> int:
    return adapter.main()


def _no_overlap() -> None:
    wrap(ranges.RangeSet, "overlap", lambda old: lambda self, start, end: None)


def _one_partial_less() -> None:
    def make(old: Any) -> Any:
        def begin(self: Any, msg_id: int, total: int, offset: int, length: int) -> Any:
            if msg_id not in self._partials and len(self._partials) == self._preset.max_partial_messages - 1:
                raise chunks.RULES["chunk.msg_id.partials"].error_at(offset=None)
            return old(self, msg_id, total, offset, length)

        return begin

    wrap(chunks.Reassembler, "begin", make)


def _bf16_down() -> None:
    def make(old: Any) -> Any:
        def encode(dtype: Dtype, array: Any, out: Any = None) -> Any:
            if dtype is not Dtype.BF16:
                return old(dtype, array, out)
            data = bytes(old(Dtype.F32, array))
            return b"".join(data[at + 2 : at + 4] for at in range(0, len(data), 4))

        return encode

    wrap(dtypes, "encode", make)


def _q4_nibbles() -> None:
    def make(old: Any) -> Any:
        def q4(request: Mapping[str, Any]) -> Any:
            found = old(request)
            if "data" in found:
                data = bytearray.fromhex(found["data"])
                for at in range(len(data)):
                    if at % 132 >= 4:
                        data[at] = data[at] >> 4 | (data[at] & 15) << 4
                found["data"] = data.hex()
            return found

        return q4

    _op("q4", make)


def _op(name: str, make: Callable[[Any], Any]) -> None:
    table = dict(answers.OPS)
    table[name] = make(table[name])
    answers.OPS = table  # type: ignore[misc]  # it is final everywhere but here


def _q4_scale() -> None:
    wrap(dtypes, "check_finite", lambda old: lambda dtype, data: None)


def _flat() -> None:
    wrap(Layout, "fingerprint", lambda old: lambda self: old(self, shapes="flat"))


def _big_endian() -> None:
    def make(old: Any) -> Any:
        def encode(request: Mapping[str, Any]) -> Any:
            found = old(request)
            if request["frame"] == "HEARTBEAT":
                data = bytes.fromhex(found["wire"])
                found["wire"] = (data[:17] + data[17:][::-1]).hex()
            return found

        return encode

    _op("encode", make)


def _ledger() -> None:
    def make(old: Any) -> Any:
        def snapshot(request: Mapping[str, Any]) -> Any:
            try:
                return old(request)
            except answers.YetoError as error:
                if error.rule == "snapshot.ledger.unique":
                    return {"fields": {}}
                raise

        return snapshot

    _op("snapshot", make)


def _contiguous() -> None:
    wrap(checks, "check_round_robin", lambda old: lambda versions, global_step: None)


def _marker() -> None:
    def make(old: Any) -> Any:
        def marker(request: Mapping[str, Any]) -> Any:
            data = request["file"]
            return old({**request, "file": data if data.endswith("0a") else f"{data}0a"})

        return marker

    _op("marker", make)


MUTANTS: Mapping[str, Callable[[], None]] = {
    "pull-attempt-0": rule_holds("pull_req.round_attempt.must"),
    "push-no-steps": rule_holds("push_fragment.c_steps.must"),
    "init-fragment": rule_holds("init_params.fragment_id.must", "init_params.tensor.length"),
    "manifest-revision": rule_holds("final_manifest.revision.must"),
    "manifest-count": rule_holds("final_manifest.num_fragments.must"),
    "hello-streams": rule_holds("hello.num_streams.must"),
    "hello-generation": rule_holds("hello.connection_generation.must"),
    "chunk-empty": rule_holds("chunk.data.some"),
    "chunk-overlap": _no_overlap,
    "chunk-total": rule_holds("chunk.total_len.limit"),
    "chunk-one-partial-less": _one_partial_less,
    "bf16-down": _bf16_down,
    "q4-nibbles": _q4_nibbles,
    "q4-scale": _q4_scale,
    "fingerprint-flat": _flat,
    "big-endian": _big_endian,
    "snapshot-ledger": _ledger,
    "snapshot-contiguous": _contiguous,
    "marker-loose": _marker,
}
