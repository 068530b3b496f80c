"""Mutants of the syncer:

rules that always hold, and effects of its core that are changed before the shell acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.conform.mutants.patches import rule_holds, wrap
from yeto_proto._generated.messages import FinalManifest, Heartbeat, Shutdown
from yeto_proto.session import Session
from yeto_syncer import cli
from yeto_syncer.core import effects, events, intake
from yeto_syncer.core.commits import Commits
from yeto_syncer.core.coordinator import Coordinator
from yeto_syncer.core.finalize import Finalization
from yeto_syncer.core.model import Model
from yeto_syncer.core.registry import Registry
from yeto_syncer.shell import checks

Change = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]


def run() -> int:
    return cli.main()


def on_effects(change: Change) -> Callable[[], None]:
    """`change(coordinator, event, effects)` gives the effects that are performed."""

    def apply() -> None:
        def make(old: Any) -> Any:
            def step(self: Any, now: float, event: Any) -> list[Any]:
                return list(change(self, event, old(self, now, event)))

            return step

        wrap(Coordinator, "step", make)

    return apply


def _events(change: Callable[[Any], Any]) -> Callable[[], None]:
    """`change(event)` gives the event that the core sees, or None."""

    def apply() -> None:
        def make(old: Any) -> Any:
            def step(self: Any, now: float, event: Any) -> list[Any]:
                changed = change(event)
                return [] if changed is None else old(self, now, changed)

            return step

        wrap(Coordinator, "step", make)

    return apply


def _init_last_wins() -> None:
    def make(old: Any) -> Any:
        def initialize(self: Any, fragment_id: int, values: Any) -> bool:
            if self._fragments[fragment_id] is None:
                return bool(old(self, fragment_id, values))
            state = self._fragments[fragment_id]
            self._fragments[fragment_id] = replace(state, params=values)
            return True

        return initialize

    wrap(Model, "initialize", make)


def _stream_twice() -> None:
    rule_holds("data_hello.stream_idx.free")()


def _last_step_broadcast() -> None:
    def make(old: Any) -> Any:
        def publish(self: Any, now: float) -> Any:
            links = self._registry.current_links()
            round_ = old(self, now)
            if round_.global_step == self._config.total_steps:
                cut = self._model.versioned(round_.fragment_id)
                self._outbox.emit(effects.Deliver(links, (cut,)))
            return round_

        return publish

    wrap(Commits, "publish", make)


def _version_behind() -> None:
    def change(core: Any, event: Any, found: Sequence[Any]) -> Sequence[Any]:
        def lowered(each: Any) -> Any:
            if not isinstance(each, effects.Deliver) or each.final:
                return each
            older = tuple(replace(part, version=max(part.version - 1, 0)) for part in each.fragments)
            return replace(each, fragments=older)

        return [lowered(each) for each in found]

    on_effects(change)()


def _ack_any_step() -> None:
    rule_holds("final_ack.final_global_step.must")()


def _shutdown_early() -> None:
    def make(old: Any) -> Any:
        def ack(self: Any, link: Any, message: Any) -> None:
            old(self, link, message)
            self._outbox.emit(effects.Send(link, Shutdown()))

        return ack

    wrap(Finalization, "ack", make)


def _manifest_without_cut() -> None:
    def change(core: Any, event: Any, found: Sequence[Any]) -> Sequence[Any]:
        changed: list[Any] = []
        for each in found:
            if isinstance(each, effects.Deliver) and each.final:
                for link in each.links:
                    manifest = FinalManifest(final_global_step=2, expected_versions=(1, 2))
                    changed.append(effects.Send(link, manifest))
            elif not (isinstance(each, effects.Send) and isinstance(each.message, FinalManifest)):
                changed.append(each)
        return changed

    on_effects(change)()


def _marker_kept() -> None:
    def change(core: Any, event: Any, found: Sequence[Any]) -> Sequence[Any]:
        return [each for each in found if not isinstance(each, effects.RemoveMarker)]

    on_effects(change)()


def _weight(compute: Callable[[Any], float]) -> Callable[[], None]:
    def apply() -> None:
        wrap(intake.Intake, "_weight", lambda old: lambda self, push: compute(push))

    return apply


def _nan_accepted() -> None:
    wrap(checks.dtypes, "check_finite", lambda old: lambda dtype, data: None)


def _generation_live() -> None:
    rule_holds("hello.connection_generation.connected")()


def _generation_retired() -> None:
    wrap(Registry, "was_used", lambda old: lambda self, link: self.is_live(link))


def _session_same(field: str) -> Callable[[], None]:
    """The session takes a HELLO that differs in this field."""

    def apply() -> None:
        def make(old: Any) -> Any:
            return lambda self, hello: old(self, replace(hello, **{field: _own(self, field)}))

        wrap(Session, "difference", make)

    return apply


def _own(session: Session, field: str) -> Any:
    return session.fingerprint if field == "layout_fingerprint" else session.dtype


def _silent(event: Any) -> Any:
    """Heartbeats of others vanish where they must be refused."""
    if isinstance(event, events.Received) and isinstance(event.message, Heartbeat):
        return event if event.message.learner_id == event.link.learner_id else None
    return event


MUTANTS: Mapping[str, Callable[[], None]] = {
    "learner-range": rule_holds("hello.learner_id.must"),
    "generation-live": _generation_live,
    "generation-retired": _generation_retired,
    "session-fingerprint": _session_same("layout_fingerprint"),
    "session-dtype": _session_same("dtype"),
    "profile-any": rule_holds("hello.syncer_profile_hash.matches"),
    "stream-twice": _stream_twice,
    "init-anybody": rule_holds("init_params.initializer"),
    "init-last-wins": _init_last_wins,
    "heartbeat-anybody": rule_holds("heartbeat.learner_id.must"),
    "nan-accepted": _nan_accepted,
    "duplicate-counts": rule_holds("push_fragment.first"),
    "future-base": rule_holds("push_fragment.base_version.must"),
    "stale-base": rule_holds("push_fragment.base_version.lag"),
    "attempt-ignored": rule_holds("push_fragment.round_attempt.round"),
    "weight-tokens": _weight(lambda push: float(push.c_tokens)),
    "zero-weight-counts": _weight(lambda push: 1.0),
    "last-step-broadcast": _last_step_broadcast,
    "version-behind": _version_behind,
    "ack-any-step": _ack_any_step,
    "shutdown-early": _shutdown_early,
    "manifest-without-cut": _manifest_without_cut,
    "marker-kept": _marker_kept,
    "budget-any": rule_holds("budget_done.exact_local_steps.target"),
    "error-silent": _events(_silent),
}
