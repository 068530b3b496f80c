"""Mutants of the learner, which run a case file like the learner itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.conform.mutants.patches import rule_holds, wrap
from yeto_learner import case, connection, final_cut, fragments, initial_cut, streaming
from yeto_learner.client import SyncerClient
from yeto_learner.core.boundary import Boundary
from yeto_learner.core.link import Link, Seen
from yeto_proto._generated.messages import BcastFragment, PullReq, PushFragment
from yeto_proto.errors_base import YetoError
from yeto_proto.writer import frame


def run() -> int:
    return case.main()


def _pushes(change: Callable[[PushFragment], PushFragment]) -> Callable[[], None]:
    """What the learner pushes is changed before it is encoded."""

    def apply() -> None:
        def make(old: Any) -> Any:
            return lambda message: old(change(message) if isinstance(message, PushFragment) else message)

        wrap(streaming, "encode", make)

    return apply


def _generation_same() -> None:
    def make(old: Any) -> Any:
        def generation(self: Any) -> int:
            return self.link.generation or int(old(self))

        return generation

    wrap(connection.Connection, "_new_generation", make)


def _drifted_anchor() -> None:
    def make(old: Any) -> Any:
        def install(self: Any, update: Any, mode: Any) -> None:
            old(self, update, mode)
            number = update.fragment_id
            values = bytearray(update.data)
            if self._wire_dtype is not fragments.Dtype.F32:
                return
            for name, start, first, count in fragments.blocks(self._spans[number]):
                values[4 * first : 4 * (first + count)] = self.parameters.read(
                    name, start, start + count
                ).tobytes()
            self._anchors[number].load(0, self._numels[number], self._wire_dtype, bytes(values))

        return install

    wrap(fragments.FragmentValues, "install", make)


def _delta_negated() -> None:
    def make(old: Any) -> Any:
        def write_delta(self: Any, fragment_id: int, out: Any) -> None:
            old(self, fragment_id, out)
            out *= -1

        return write_delta

    wrap(fragments.FragmentValues, "write_delta", make)


def _steps_in_all() -> None:
    def make(old: Any) -> Any:
        def answer(self: Any, pull: Any, catching_up: Any = ()) -> Any:
            found = old(self, pull, catching_up)
            return None if found is None else replace(found, c_steps=self.steps)

        return answer

    wrap(Boundary, "answer", make)


def _anchor_again() -> None:
    def make(old: Any) -> Any:
        def answer(self: Any, pull: Any, catching_up: Any = ()) -> Any:
            self.reuse_anchor = True
            return old(self, pull, catching_up)

        return answer

    wrap(Boundary, "answer", make)


def _pull_lost() -> None:
    def make(old: Any) -> Any:
        def receive(self: Any, epoch: int, message: Any, digest: bytes, now: float) -> None:
            if hasattr(message, "round_attempt") and len(self._seen) < self.session.num_fragments:
                return
            old(self, epoch, message, digest, now)

        return receive

    wrap(Link, "receive", make)


def _init_not_first() -> None:
    def make(old: Any) -> Any:
        def run_cut(self: Any) -> None:
            for number in range(self._values.num_fragments):
                self._client.send_init_parts(number, self._values.init_parts(number))
            old(self)

        return run_cut

    wrap(initial_cut.InitialCut, "run", make)


def _lower_version() -> None:
    def make(old: Any) -> Any:
        def broadcast(self: Any, message: BcastFragment, digest: bytes, now: float) -> None:
            self._seen[message.fragment_id] = Seen(0, b"")
            old(self, message, digest, now)

        return broadcast

    wrap(Link, "_broadcast", make)


def _ack_early() -> None:
    def make(old: Any) -> Any:
        def run_final(self: Any, timeout: float) -> None:
            manifest = self._client._connection.link.manifest
            if manifest is not None:
                self._client.acknowledge_finalization(manifest, timeout)
            old(self, timeout)

        return run_final

    wrap(final_cut.FinalCut, "run", make)


def _streams_from_one() -> None:
    def make(old: Any) -> Any:
        def hello_frame(self: Any, hello: Any, index: int) -> Any:
            return old(self, hello, index + 1 if index else 0)

        return hello_frame

    wrap(connection.Connection, "_hello_frame", make)


def _push_without_anchor() -> None:
    """A pull of a fragment that has not come is answered with nothing."""

    def make(old: Any) -> Any:
        def handle(self: Any, group: Any, message: Any) -> None:
            old(self, group, message)
            if isinstance(message, PullReq) and message.fragment_id not in self.link._seen:
                delta = bytes(4 * self.link.session.numel(message.fragment_id))
                push = PushFragment(0, message.fragment_id, message.global_step, 1, 0, 1, 1, 8, delta)
                group.outboxes[0].offer(frame(push))

        return handle

    wrap(connection.Connection, "_handle", make)


def _redial_late() -> None:
    wrap(connection, "redial_waits", lambda old: lambda: iter([1000.0]))


def _ack_never() -> None:
    wrap(SyncerClient, "acknowledge_finalization", lambda old: lambda self, manifest, timeout=None: None)


def _fault_hangs() -> None:
    def make(old: Any) -> Any:
        def run_case(given: Any) -> int:
            try:
                return int(old(given))
            except (RuntimeError, YetoError):
                time.sleep(1000)
                raise

        return run_case

    wrap(case, "run", make)


MUTANTS: Mapping[str, Callable[[], None]] = {
    "generation-same": _generation_same,
    "drifted-anchor": _drifted_anchor,
    "delta-negated": _delta_negated,
    "base-zero": _pushes(lambda push: replace(push, base_version=0)),
    "attempt-one": _pushes(lambda push: replace(push, round_attempt=1)),
    "steps-in-all": _steps_in_all,
    "anchor-again": _anchor_again,
    "pull-lost": _pull_lost,
    "init-not-first": _init_not_first,
    "lower-version": _lower_version,
    "ack-early": _ack_early,
    "shutdown-any": rule_holds("shutdown.acknowledged"),
    "manifest-any": rule_holds("final_manifest.same"),
    "streams-from-one": _streams_from_one,
    "push-without-anchor": _push_without_anchor,
    "redial-late": _redial_late,
    "ack-never": _ack_never,
    "fault-hangs": _fault_hangs,
}
