"""Verbs that stand for whole passages: the start of a run, a round, the final exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codegen.conform.play import Play


class Script(Play):
    """All verbs."""

    def do_start(self, body: Mapping[str, Any]) -> None:
        """Learner 0 initializes every fragment, and each group gets the initial cut at version 0."""
        first = self._names(body)[0]
        for fragment in range(len(self.session.fragments)):
            self.do_send(first, "INIT_PARAMS", {"fragment_id": fragment, "tensor": body.get("value", 1.0)})
        self.do_catchup({"groups": self._names(body), "value": body.get("value", 1.0)})

    def do_catchup(self, body: Mapping[str, Any]) -> None:
        """Each group gets every fragment, as a syncer under test or from the runner."""
        count = len(self.session.fragments)
        versions = body.get("versions", [0] * count)
        given = body.get("values", [body.get("value", 1.0)] * count)
        for name in self._names(body):
            for fragment in range(count):
                fields = {"fragment_id": fragment, "version": versions[fragment], "tensor": given[fragment]}
                self._syncer(name, "BCAST_FRAGMENT", fields)
                self.groups[name].held[fragment] = versions[fragment]

    def do_round(self, body: Mapping[str, Any]) -> None:
        """PULL_REQ to, and PUSH_FRAGMENT from, each group; then the broadcast, unless `last`.

        `deltas`: of each group, in order. `value`: of the fragment afterwards.
        """
        step = body["step"]
        fragment = (step - 1) % len(self.session.fragments)
        names = self._names(body)
        deltas = body.get("deltas", [0.5] * len(names))
        attempt = body.get("attempt", 1)
        pull = {"fragment_id": fragment, "global_step": step, "round_attempt": attempt}
        for name in names:
            self._syncer(name, "PULL_REQ", pull)
        for name, delta in zip(names, deltas, strict=True):
            push = {**pull, "base_version": self.groups[name].held.get(fragment, 0), "delta": delta}
            self._learner(name, "PUSH_FRAGMENT", push)
        if not body.get("last"):
            for name in names:
                fields = {"fragment_id": fragment, "version": step, "tensor": body["value"]}
                self._syncer(name, "BCAST_FRAGMENT", fields)
                self.groups[name].held[fragment] = step

    def do_final(self, body: Mapping[str, Any]) -> None:
        """The final cut to each group, its FINAL_ACK, and SHUTDOWN."""
        self.do_cut(body)
        for name in self._names(body):
            self._learner(name, "FINAL_ACK", {"final_global_step": body["step"]})
        for name in self._names(body):
            self._syncer(name, "SHUTDOWN", {})

    def do_cut(self, body: Mapping[str, Any]) -> None:
        """FINAL_FRAGMENTs and FINAL_MANIFEST to each group."""
        for name in self._names(body):
            for fragment, (version, value) in enumerate(zip(body["versions"], body["values"], strict=True)):
                fields = {"fragment_id": fragment, "version": version, "tensor": value}
                self._syncer(name, "FINAL_FRAGMENT", fields)
            manifest = {"final_global_step": body["step"], "expected_versions": body["versions"]}
            self._syncer(name, "FINAL_MANIFEST", manifest)
